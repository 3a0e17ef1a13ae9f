"""SimCLR in one file of plain torch: from a folder of images to a kNN accuracy, in minutes on two cores.

    python examples/nano.py photos/ --minutes 10
    python examples/nano.py cifar10/ --size 32 --crop 24 --minutes 60

DATA holds Parquet files (columns `image` or `img`, and `label`) or image files in folders of classes, with "train" and
"test" in the names of files or top folders; without them every fifth image is a test image. Labels are used for the
final accuracy alone. Loss, gradient and step are those of `nearfar pretrain --method simclr`.
"""

from __future__ import annotations

import argparse
import io
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

# ---------------------------------------------------------------- data: uint8 [images, 3, size, size], in memory


def decode(source: Path | bytes, size: int) -> Tensor:
    """Decode one image, resize its shorter side to `size` and cut the centre: uint8 [3, size, size]."""
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
        image.draft(
            "RGB", (2 * size, 2 * size)
        )  # JPEG decodes faster to about the size that is needed
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        box = (left, top, left + side, top + side)
        square = image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC, box)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)


def encoded(folder: Path) -> Iterator[tuple[str, Path | bytes, str | int]]:
    """Yield (name of the file, encoded image, label) of every image below a folder."""
    tables = sorted(folder.rglob("*.parquet"))
    for path in tables:
        import pyarrow.parquet

        for row in pyarrow.parquet.read_table(path).to_pylist():
            yield path.name, (row.get("image") or row["img"])["bytes"], row["label"]
    for path in [] if tables else sorted(folder.rglob("*")):
        if path.suffix.lower() in (".jpg", ".jpeg", ".png", ".webp", ".bmp"):
            yield str(path.relative_to(folder)), path, path.parent.name


def load(folder: Path, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Load train images, train labels, test images and test labels."""
    if not (found := list(encoded(folder))):
        raise SystemExit(f"nano: '{folder}' holds no images")
    with ThreadPoolExecutor() as pool:
        images = torch.stack(list(pool.map(lambda one: decode(one[1], size), found)))
    classes = sorted({label for *_, label in found}, key=str)
    labels = torch.tensor([classes.index(label) for *_, label in found])
    is_test = torch.tensor([name.startswith(("test", "val")) for name, *_ in found])
    is_test = is_test if is_test.any() else torch.arange(len(found)) % 5 == 4
    return images[~is_test], labels[~is_test], images[is_test], labels[is_test]


# ---------------------------------------------------------------- views: one batch at a time, on the model's device


def resize_matrix(start: Tensor, length: Tensor, source: int, size: int, mirror: Tensor) -> Tensor:
    """Weights [images, size, source] that resize a stretch of a line to `size` pixels, bilinear and antialiased."""
    start, length = start[:, None, None], length[:, None, None]
    place = torch.arange(size, device=start.device).expand(len(start), size)
    place = torch.where(mirror[:, None], size - 1 - place, place)[:, :, None]
    pixel = torch.arange(source, device=start.device) + 0.5 - start
    near = 1 - (pixel - (place + 0.5) * length / size).abs() / (length / size).clamp(min=1)
    weight = near.clamp(min=0) * ((pixel > 0) & (pixel < length))
    return weight / weight.sum(2, keepdim=True)


def crop(images: Tensor, size: int, smallest: float) -> Tensor:
    """Cut a random box of at least that share of the area, ratio 3/4 to 4/3; resize it, mirror half: in 0..1."""
    n, _, height, width = images.shape
    area = torch.empty(n, device=images.device).uniform_(smallest, 1) * height * width
    ratio = torch.empty(n, device=images.device).uniform_(math.log(3 / 4), math.log(4 / 3)).exp()
    tall, wide = (
        (area / ratio).sqrt().clamp(1, height).round(),
        (area * ratio).sqrt().clamp(1, width).round(),
    )
    top = (torch.rand(n, device=images.device) * (height - tall + 1)).floor()
    left = (torch.rand(n, device=images.device) * (width - wide + 1)).floor()
    mirror = torch.rand(n, device=images.device) < 0.5
    down = resize_matrix(top, tall, height, size, torch.zeros_like(mirror))
    across = resize_matrix(left, wide, width, size, mirror)
    return torch.einsum("nyh,nchw,nxw->ncyx", down, images.float() / 255, across)


def recolour(
    images: Tensor, strength: float = 0.4, hue: float = 0.1, jitter: float = 0.8, gray: float = 0.1
) -> Tensor:
    """Change brightness, contrast, saturation and hue of most images, and make some gray: one 3 x 4 matrix an image."""
    n, device = len(images), images.device
    luma, unit = torch.tensor([0.299, 0.587, 0.114], device=device), torch.eye(3, device=device)

    def factor(reach: float) -> Tensor:
        return torch.empty(n, 1, 1, device=device).uniform_(1 - reach, 1 + reach)

    bright, contrast, saturation = factor(strength), factor(strength), factor(strength)
    saturation = torch.where(torch.rand(n, 1, 1, device=device) < gray, 0.0, saturation)
    angle = 2 * math.pi * (factor(hue) - 1)
    # Hue turns the colours about the gray axis, which is linear; torchvision's turn in HSV is not.
    axis = torch.tensor([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]], device=device) / math.sqrt(
        3
    )  # turns about (1, 1, 1)
    turn = unit + angle.sin() * axis + (1 - angle.cos()) * (axis @ axis)
    matrix = turn @ (saturation * unit + (1 - saturation) * luma.expand(3, 3)) * bright * contrast
    mean = torch.einsum("c,nchw->n", luma, images)[:, None, None] / images[0, 0].numel()
    shift = (1 - contrast) * bright * mean
    changed, plain = (
        torch.rand(n, 1, 1, device=device) < jitter,
        torch.where(saturation == 0, luma.expand(3, 3), unit),
    )
    matrix, shift = torch.where(changed, matrix, plain), torch.where(changed, shift, 0.0)
    return torch.baddbmm(shift, matrix, images.flatten(2)).clamp_(0, 1).view_as(images)


# ---------------------------------------------------------------- net: a residual net for a CPU, stem whitened


class Block(nn.Module):
    """Two 3x3 convolutions, the first with stride 2, around a shortcut that averages 2x2 pixels."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential(
            nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False),
            nn.Conv2d(inputs, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(
            self.norm2(self.conv2(F.relu_(self.norm1(self.conv1(x))))) + self.shortcut(x)
        )


class Net(nn.Module):
    """Stem to a map of 32 x 32 or less, three blocks, mean: [batch, 3, size, size] -> [batch, 256]."""

    def __init__(self, size: int, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        patch = round(size / 32)
        stem = (
            dict(kernel_size=patch, stride=patch)
            if size > 90
            else dict(kernel_size=3, stride=1 + (size > 32))
        )
        self.conv = nn.Conv2d(3, widths[0], **stem, padding=0 if size > 90 else 1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        self.blocks = nn.Sequential(*map(Block, widths[:-1], widths[1:]))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, images: Tensor) -> Tensor:
        maps = self.blocks(F.relu_(self.norm(self.conv(images))))
        return F.avg_pool2d(maps, maps.shape[2:]).flatten(1)

    @torch.no_grad()
    def whiten(self, images: Tensor) -> None:
        """Let the first convolution whiten patches of these images, and train it no more."""
        side = self.conv.kernel_size[0]
        patches = F.unfold(images, side, stride=side).transpose(1, 2).flatten(0, 1).double()
        values, directions = torch.linalg.eigh(patches.T.cov())
        filters = (directions / (values + 1e-2).sqrt()).T.flip(0)[: len(self.conv.weight) // 2]
        both = torch.cat([filters, -filters])
        self.conv.weight[: len(both)] = both.view(-1, *self.conv.weight.shape[1:])
        self.conv.requires_grad_(False)


def seconds(net: nn.Module, images: Tensor, half: bool) -> float:
    """Time forward and backward on a CPU, in bfloat16 or float32."""
    began = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        net(images).float().sum().backward()
    net.zero_grad()
    return time.perf_counter() - began


def projector(inputs: int, hidden: int = 512, out: int = 128) -> nn.Sequential:
    """Build the head that the loss sees."""
    first = nn.Linear(inputs, hidden, bias=False)
    return nn.Sequential(first, nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, out))


# ---------------------------------------------------------------- loss and step


def simclr(z: Tensor, temperature: float = 0.2) -> Tensor:
    """NT-Xent of rows [2 * batch, dim], the first views of all images above the second ones; mean over the rows."""
    z = F.normalize(z.float(), dim=1)
    logits = (z @ z.T / temperature).fill_diagonal_(-math.inf)
    return F.cross_entropy(logits, torch.arange(len(z), device=z.device).roll(len(z) // 2))


def orthogonal(matrix: Tensor) -> Tensor:
    """Set the singular values of a matrix near 1: five steps of Newton and Schulz (Jordan et al. 2024)."""
    x = matrix / matrix.norm().clamp_min(1e-7)
    x = x.T if len(matrix) > matrix.shape[1] else x
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if len(matrix) > matrix.shape[1] else x


class Muon:
    """Muon for weights with two or more dimensions; torch's AdamW, without decay, for the others."""

    def __init__(
        self, parameters: list[nn.Parameter], momentum: float = 0.9, weight_decay: float = 0.1
    ) -> None:
        self.weights = [p for p in parameters if p.requires_grad and p.ndim > 1]
        self.moving = [torch.zeros_like(p) for p in self.weights]
        self.vectors = torch.optim.AdamW([p for p in parameters if p.ndim <= 1], weight_decay=0.0)
        self.momentum, self.weight_decay = momentum, weight_decay

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Take one step and clear the gradients."""
        for w, m in zip(self.weights, self.moving, strict=True):
            m.mul_(self.momentum).add_(w.grad)
            direction = (w.grad + self.momentum * m).flatten(1)
            rate = 0.2 * max(direction.shape) ** 0.5 * lr
            w.mul_(1 - lr * self.weight_decay).sub_(orthogonal(direction).view_as(w), alpha=rate)
            w.grad = None
        self.vectors.param_groups[0]["lr"] = lr
        self.vectors.step()
        self.vectors.zero_grad()


@torch.no_grad()
def features(net: nn.Module, images: Tensor, normalise: Callable[[Tensor], Tensor]) -> Tensor:
    """Return unit features of whole images."""
    net.eval()
    return torch.cat(
        [F.normalize(net(normalise(part.float() / 255)), dim=1) for part in images.split(500)]
    )


def knn_accuracy(train: Tensor, labels: Tensor, test: Tensor, truth: Tensor, k: int = 20) -> float:
    """Return the accuracy of votes weighted by exp(cosine / 0.07) among the k nearest training images."""
    right = 0
    for rows, there in zip(test.split(1000), truth.split(1000), strict=True):
        cosine, near = (rows @ train.T).topk(min(k, len(train)))
        votes = F.one_hot(labels[near]) * (cosine / 0.07).exp()[:, :, None]
        right += int((votes.sum(1).argmax(1) == there).sum())
    return right / len(test)


# ---------------------------------------------------------------- training: the learning rate follows the clock


def main(words: list[str] | None = None) -> float:
    """Train, print, and return the kNN accuracy on the test images."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder of images or Parquet files")
    parser.add_argument("--minutes", type=float, default=10.0, help="of training")
    parser.add_argument("--size", type=int, default=96, help="side of the images, pixels")
    parser.add_argument(
        "--crop", type=int, help="side of a view, pixels; default: two thirds of the image"
    )
    parser.add_argument("--batch", type=int, default=256, help="images in a batch")
    parser.add_argument("--lr", type=float, default=0.02, help="peak learning rate")
    parser.add_argument(
        "--smallest", type=float, default=0.2, help="smallest share of the area that a view shows"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    given = parser.parse_args(words)
    torch.manual_seed(given.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size, side = given.size, given.crop or given.size * 2 // 3

    images, labels, test_images, test_labels = [part.to(device) for part in load(given.data, size)]
    batch = min(given.batch, len(images) // 2)
    some = images[:: max(1, len(images) // 2000)].float() / 255
    mean, std = (
        some.mean((0, 2, 3))[:, None, None],
        some.std((0, 2, 3)).clamp_min(1e-6)[:, None, None],
    )

    def normalise(pixels: Tensor) -> Tensor:
        return (pixels - mean) / std

    net, head = Net(side).to(device, memory_format=torch.channels_last), projector(256).to(device)
    net.whiten(normalise(images[:: max(1, len(images) // 200)].float() / 255))
    tried = normalise(crop(images[:batch], side, given.smallest))
    kinds = {
        False,
        torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    }
    half = images.is_cuda or min(
        kinds, key=lambda half: min(seconds(net, tried, half) for _ in range(3))
    )
    optimizer = Muon([*net.parameters(), *head.parameters()])
    began, step, seen = time.perf_counter(), 0, 0
    while (done := (time.perf_counter() - began) / (60 * given.minutes)) < 1 or step == 0:
        net.train()
        rows = torch.randperm(len(images), device=device)
        for some in rows[: len(rows) // batch * batch].view(-1, batch):
            done = min(1.0, (time.perf_counter() - began) / (60 * given.minutes))
            views = normalise(recolour(crop(images[torch.cat([some, some])], side, given.smallest)))
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                z = head(net(views.contiguous(memory_format=torch.channels_last)))
            (loss := simclr(z)).backward()
            optimizer.step(given.lr * min(1, (step + 1) / 50) * (1 + math.cos(math.pi * done)) / 2)
            step, seen = step + 1, seen + batch
            if done == 1:
                break
        print(
            f"{100 * done:3.0f} % {seen / len(images):6.1f} epochs  loss {loss.item():.3f}",
            flush=True,
        )

    train, test = features(net, images, normalise), features(net, test_images, normalise)
    accuracy = knn_accuracy(train, labels, test, test_labels)
    print(
        f"kNN accuracy {accuracy:.4f} on {len(test)} test images after {seen / len(images):.1f} epochs"
    )
    return accuracy


if __name__ == "__main__":
    main()
