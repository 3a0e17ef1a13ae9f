"""Train the small net that proposes edited copies, and put it into the package.

    nice -n 10 python -m tools.train_edit_net DATA --minutes 62    # DATA holds imagenette/ and cifar10/

SimCLR at a low temperature with an entropy regulariser (SSCD, Pizzi et al. 2022): the KoLeo term
pushes each embedding away from its nearest other one. An image as it is, nearly, and an edit of it
are the two views: a part, mirrored, turned, squeezed, with a border, on a screen, blurred, in other
colours. Training images of Imagenette but for the last 1200, on which limits are chosen, and 5000
of CIFAR-10, decoded once to squares of 128 pixels. The learning rate falls by the clock, so the
number of steps is that of the machine; docs/results/edit-net.json keeps it. At last the 256 numbers of an image become
the 128 along which features are longest, in the last layer. Stored as float16.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageOps
from pyarrow.dataset import dataset
from safetensors.torch import save_file
from torch import Tensor

from nearfar.losses import SimCLR
from nearfar.networks.edit_net import FILE, NUMBERS, SIDE, EditNet
from tools.house import SOURCE

STORED = 2 * SIDE  # pixels of a side of the images in memory
HELD_OUT = 1200  # last training images of Imagenette, which the net never sees
OF_CIFAR = 5000
PAIRS = 256  # of a step
TEMPERATURE, ENTROPY = 0.05, 5.0
PEAK, DECAY, WARM = 2e-3, 0.05, 0.03  # learning rate, weight decay, share of the time to warm up
LEARNED = 256  # numbers of an image while the net learns
AVERAGED = 0.998  # of the running mean of the weights
SCREENS = 256
RESULT = SOURCE.parents[1] / "docs/results/edit-net.json"


def squares(files: list[Path], column: str, last: int | None, count: int | None = None) -> Tensor:
    """The centres of images as squares, [images, 3, 128, 128], in whole numbers."""
    cells = dataset(sorted(files)).to_table(columns=[column])[column][:last][:count]
    made = torch.empty(len(cells), 3, STORED, STORED, dtype=torch.uint8)
    for row, cell in enumerate(cells):
        image = Image.open(io.BytesIO(cell["bytes"].as_py())).convert("RGB")
        side = ImageOps.fit(image, (STORED, STORED), Image.Resampling.BICUBIC)
        made[row] = torch.from_numpy(np.asarray(side).transpose(2, 0, 1).copy())
    return made


def screens(chance: np.random.Generator) -> Tensor:
    """Drawn grounds: bars, windows, and lines of text, [256, 3, 64, 64], from 0 to 1."""
    made = []
    for _ in range(SCREENS):
        light = bool(chance.random() < 0.7)
        ground = int(chance.integers(225, 256) if light else chance.integers(0, 50))
        canvas = Image.new("RGB", (4 * SIDE, 4 * SIDE), (ground, ground, ground))
        draw = ImageDraw.Draw(canvas)
        for _ in range(int(chance.integers(0, 4))):
            x, y, w, h = chance.integers(0, 4 * SIDE, 4).tolist()
            draw.rectangle((x, y, x + w, y + h), fill=tuple(chance.integers(0, 256, 3).tolist()))
        bar = int(chance.integers(0, 40))
        draw.rectangle((0, 0, 4 * SIDE, bar), fill=tuple(chance.integers(0, 256, 3).tolist()))
        step, left = int(chance.integers(8, 30)), int(chance.integers(0, 60))
        ink = (20, 20, 20) if light else (220, 220, 220)
        for y in range(bar + 5, 4 * SIDE, step):
            text = "".join(chance.choice(list("abcdefgh iklmno rstuvw 0123"), 60))
            draw.text((left, y), text[: int(chance.integers(0, 60))], ink)
        small = canvas.resize((SIDE, SIDE), Image.Resampling.BOX)
        made.append(torch.from_numpy(np.asarray(small).transpose(2, 0, 1).copy()))
    return torch.stack(made) / 255


class Views:
    """Views of stored images, each an affine map of the output into its image."""

    def __init__(self, images: Tensor, grounds: Tensor, generator: torch.Generator) -> None:
        self.images, self.grounds, self.generator = images, grounds, generator

    def uniform(self, count: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=self.generator)

    def some(self, count: int, share: float) -> Tensor:
        """A mask of this share of the views, at random."""
        return torch.rand(count, generator=self.generator) < share

    def nearly(self, rows: Tensor) -> Tensor:
        """Images nearly as they are: a part of 0.85 of the sides at least."""
        count = len(rows)
        share = self.uniform(count, 0.85, 1)[:, None].expand(-1, 2)
        return self.coloured(self.placed(rows, torch.eye(2).expand(count, 2, 2), share), 0.15)

    def edited(self, rows: Tensor) -> Tensor:
        """Images with one or more edits each."""
        count = len(rows)
        share = torch.where(self.some(count, 0.6), self.uniform(count, 0.38, 1), torch.ones(count))
        shares = share[:, None] * torch.stack(
            [self.uniform(count, 0.85, 1.15) for _ in range(2)], 1
        )
        # from a place of the view to that of the part, both from -1 to 1
        angle = torch.where(self.some(count, 0.4), self.uniform(count, -1, 1), torch.zeros(count))
        angle = angle * math.pi
        turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1).view(-1, 2, 2)
        whole = angle.cos().abs() + angle.sin().abs()
        linear = turn * torch.where(self.some(count, 0.5), whole, torch.ones(count))[:, None, None]
        squeezed = torch.where(
            self.some(count, 0.4), self.uniform(count, 0.55, 1), torch.ones(count)
        )
        axis = self.some(count, 0.5)
        ones = torch.ones(count)
        scale = torch.stack(
            [torch.where(axis, squeezed, ones), torch.where(axis, ones, squeezed)], 1
        )
        signs = torch.stack([1 - 2.0 * self.some(count, 0.4), 1 - 2.0 * self.some(count, 0.25)], 1)
        linear = (signs * scale)[:, :, None] * linear
        out = self.some(count, 0.3)
        far = torch.where(
            self.some(count, 0.5), self.uniform(count, 1.1, 1.5), self.uniform(count, 1.4, 3.0)
        )
        out_by = torch.where(out, far, ones)
        offset = (out_by - 1)[:, None] * self.uniform(2 * count, -1, 1).view(-1, 2)
        image = self.placed(
            rows, linear * out_by[:, None, None], shares.clamp(max=1), linear, offset
        )
        return self.blurred(self.coloured(image, 0.5, 0.15), 0.2)

    def placed(
        self,
        rows: Tensor,
        linear: Tensor,
        shares: Tensor,
        before: Tensor | None = None,
        offset: Tensor | None = None,
    ) -> Tensor:
        """Views by the map from their places to those of a part of an image, on a ground."""
        count = len(rows)
        shift = torch.zeros(count, 2, 1) if offset is None else before @ offset[:, :, None]
        places = F.affine_grid(
            torch.cat([linear, shift], 2), [count, 3, SIDE, SIDE], align_corners=False
        )
        inside = (places.abs() <= 1).all(3)[:, None]
        centre = (1 - shares) * self.uniform(2 * count, -1, 1).view(-1, 2)
        places = centre[:, None, None] + shares[:, None, None] * places
        detail = (linear.det().abs() * shares.prod(1)).sqrt()  # source per view, of a side
        view = torch.empty(count, 3, SIDE, SIDE)
        for shrunk, low, high in ((1, 0.0, 0.7), (2, 0.7, 1.4), (4, 1.4, math.inf)):
            at = torch.where((detail >= low) & (detail < high))[0]
            if not len(at):
                continue
            source = F.avg_pool2d(self.images[rows[at]].float() / 255, shrunk)
            view[at] = F.grid_sample(source, places[at], padding_mode="border", align_corners=False)
        return torch.where(inside, view, self.ground(count))

    def ground(self, count: int) -> Tensor:
        """White, black, a colour, or a screen."""
        kind = self.uniform(count)[:, None, None, None]
        colour = torch.rand(count, 3, 1, 1, generator=self.generator)
        plain = torch.where(kind < 0.4, torch.ones(()), torch.where(kind < 0.55, 0.0, colour))
        screen = self.grounds[torch.randint(SCREENS, (count,), generator=self.generator)]
        return torch.where(kind < 0.7, plain, screen)

    def coloured(self, image: Tensor, share: float, gray: float = 0.02) -> Tensor:
        """Some in other brightness, contrast and saturation, and some grayscale."""
        count = len(image)

        def times(low: float, high: float) -> Tensor:
            some = torch.where(
                self.some(count, share), self.uniform(count, low, high), torch.ones(count)
            )
            return some[:, None, None, None]

        image = (image * times(0.65, 1.35)).clamp(0, 1)
        middle = image.mean((1, 2, 3), keepdim=True)
        image = (middle + times(0.65, 1.35) * (image - middle)).clamp(0, 1)
        plane = (image * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
        saturation = times(0.2, 1.8) * (~self.some(count, gray))[:, None, None, None]
        return (plane + saturation * (image - plane)).clamp(0, 1)

    def blurred(self, image: Tensor, share: float) -> Tensor:
        """Some softer, by a filter of 3 x 3 pixels."""
        edge = 0.28 * self.uniform(len(image)).sqrt() * self.some(len(image), share)
        edge = edge[:, None, None, None]
        for axis in (2, 3):
            near = image.roll(1, axis) + image.roll(-1, axis)
            image = (1 - 2 * edge) * image + edge * near
        return image


def entropy_loss(rows: Tensor, pair: Tensor) -> Tensor:
    """KoLeo (Sablayrolles et al. 2019): minus the mean logarithm of the distance to the nearest
    row of another image.
    """
    with torch.no_grad():
        likeness = rows @ rows.T
        likeness[pair[:, None] == pair] = -2
        nearest = likeness.argmax(1)
    return -(rows - rows[nearest]).norm(dim=1).clamp(1e-6).log().mean()


def pace(done: float) -> float:
    """Of the peak learning rate, at a share of the time."""
    if done < WARM:
        return done / WARM
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (done - WARM) / (1 - WARM))))


@torch.no_grad()
def shortened(net: EditNet, images: Tensor) -> EditNet:
    """The net with fewer numbers of an image: along the singular vectors of the features of stored
    images, so that cosines stay nearly what they were.
    """
    features = torch.cat([net(F.avg_pool2d(some / 255, 2)) for some in images.split(PAIRS)])
    directions = torch.linalg.svd(features, full_matrices=False)[2][:NUMBERS]
    short = EditNet().eval()
    short.trunk.load_state_dict(net.trunk.state_dict())
    short.head.weight.copy_(directions @ net.head.weight)
    short.head.bias.copy_(directions @ net.head.bias)
    return short


def saved(net: EditNet, file: Path) -> None:
    """Write the weights as float16; counts of batches are left out."""
    tensors = {
        name: value.half().contiguous()
        for name, value in net.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    save_file(tensors, file)


def trained(images: Tensor, minutes: float, seed: int, out: Path) -> tuple[EditNet, int]:
    """Train a net for so long; return the running mean of its weights, and the number of steps."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    views = Views(images, screens(np.random.default_rng(seed)), generator)
    net = EditNet(LEARNED).to(memory_format=torch.channels_last)
    mean = EditNet(LEARNED).eval()
    mean.load_state_dict(net.state_dict())
    loss_of = SimCLR(temperature=TEMPERATURE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=PEAK, weight_decay=DECAY)
    start, step, reported = time.monotonic(), 0, 0.0
    pair = torch.arange(PAIRS).repeat(2)
    while (done := (time.monotonic() - start) / (60 * minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = PEAK * pace(done)
        rows = torch.randperm(len(images), generator=generator)[:PAIRS]
        both = torch.cat([views.nearly(rows), views.edited(rows)])
        with torch.autocast("cpu", torch.bfloat16):
            made = net(both.contiguous(memory_format=torch.channels_last))
        matched = loss_of(*made.chunk(2))
        spread = entropy_loss(made, pair)
        optimizer.zero_grad()
        (matched + ENTROPY * spread).backward()
        optimizer.step()
        step += 1
        average(mean, net, min(AVERAGED, step / (step + 10)))
        if step == 20 or done - reported > 0.04:
            reported = done
            saved(mean, out)
            nearest = (made[:PAIRS] @ made[PAIRS:].T).argmax(1)
            right = float((nearest == torch.arange(PAIRS)).float().mean())
            print(
                f"{done:.0%} step {step} loss {matched.item():.3f} entropy {spread.item():.3f} "
                f"nearest {right:.3f}",
                flush=True,
            )
    return mean, step


@torch.no_grad()
def average(mean: EditNet, net: EditNet, kept: float) -> None:
    """Move a running mean of weights towards those of a net."""
    for ours, its in zip(mean.state_dict().values(), net.state_dict().values(), strict=True):
        if ours.is_floating_point():
            ours.lerp_(its, 1 - kept)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--minutes", type=float, default=62)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=FILE)
    args = parser.parse_args()
    torch.set_num_threads(1)
    images = torch.cat(
        [
            squares([*args.data.glob("imagenette/train-*.parquet")], "image", -HELD_OUT),
            squares([*args.data.glob("cifar10/train-*.parquet")], "img", None, OF_CIFAR),
        ]
    )
    long, steps = trained(images, args.minutes, args.seed, args.out)
    net = shortened(long, images)
    saved(net, args.out)
    facts = {
        "minutes": args.minutes,
        "seed": args.seed,
        "images": len(images),
        "steps": steps,
        "pairs a step": PAIRS,
        "parameters": sum(value.numel() for value in net.parameters()),
        "bytes": args.out.stat().st_size,
    }
    RESULT.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
