"""kNN and linear accuracy against minutes of training: nearfar, lightly's example, and plain torch with torchvision.

    python benchmarks/time_to_accuracy.py DATA CONTENDER --minutes 1 2 5 10 --out docs/results/time-cifar10.jsonl
    python benchmarks/time_to_accuracy.py docs/results/time-cifar10.jsonl        # table and figure

DATA: Parquet with a train and a test split. Each contender trains on the same training images with the same cores, from
files or, below 64 px, from memory; the time runs from the start of reading to the end of training, without evaluation.
"Mirrored" are features averaged with those of the mirror image, as `nearfar embed --mirrored` writes them.
Contenders: "nearfar[pretrained]" (`pretrain(data, minutes=M)` where these weights are installed, one run for each M);
"frozen" (these weights alone, which see no image of the data: 0 minutes); "nearfar" (what the run learned from nothing, alone; "nearfar-plain": with whiten=False); "lightly"
(its unchanged SimCLR example) and "torch" (the same with torchvision's transforms and a loss of four lines) with
snapshots at each M; "lightly-best" and "torch-best" add options that suit the data: bfloat16, a 3x3 stem below 64 px,
momentum, weight decay and a cosine schedule that ends with M.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2 import RandomHorizontalFlip

from nearfar.allocator import reuse_memory
from nearfar.data import Images, open_images
from nearfar.evaluation import evaluate_features, extract

CONTENDERS = (
    "nearfar[pretrained]",
    "frozen",
    "nearfar",
    "nearfar-plain",
    "lightly",
    "lightly-best",
    "torch",
    "torch-best",
)
NEARFAR: dict[str, dict[str, Any]] = {
    "nearfar[pretrained]": {},
    "nearfar": {"beside": "none"},
    "nearfar-plain": {"beside": "none", "whiten": False},
}
BATCH, WORKERS = 256, 2


class Encoded(Dataset[Any]):
    """The encoded images of a data set as PIL images with a transform; small ones are decoded
    beforehand.
    """

    def __init__(self, images: Images, transform: Any) -> None:
        self.images, self.transform = images, transform
        pixels = images.pixels.permute(0, 2, 3, 1).numpy() if images.image_size < 64 else None
        self.decoded = None if pixels is None else [Image.fromarray(each) for each in pixels]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> list[Tensor]:
        if self.decoded is not None:
            return self.transform(self.decoded[number])
        data = self.images.originals[number]  # type: ignore[index]
        return self.transform(
            Image.open(io.BytesIO(data) if isinstance(data, bytes) else data).convert("RGB")
        )


class TwoViews:
    """SimCLR's views by torchvision."""

    def __init__(self, size: int) -> None:
        from torchvision.transforms import v2

        jitter = v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8)
        parts: list[Any] = [
            v2.RandomResizedCrop(size, (0.08, 1.0)),
            v2.RandomHorizontalFlip(),
            jitter,
        ]
        parts += [v2.RandomGrayscale(0.2)] + (
            [v2.GaussianBlur(size // 10 // 2 * 2 + 1)] if size >= 64 else []
        )
        parts += [
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.25] * 3),
        ]
        self.transform = v2.Compose(parts)

    def __call__(self, image: Image.Image) -> list[Tensor]:
        return [self.transform(image), self.transform(image)]


def nt_xent(z0: Tensor, z1: Tensor, temperature: float = 0.5) -> Tensor:
    """NT-Xent as it is usually written (SimCLR, Eq. 1)."""
    rows = F.normalize(torch.cat([z0, z1]), dim=1)
    logits = (rows @ rows.T / temperature).fill_diagonal_(-math.inf)
    return F.cross_entropy(logits, torch.arange(len(rows)).roll(len(z0)))


def parts_of(contender: str, images: Images, size: int) -> tuple[Encoded, Any, Any]:
    """The data with views, the projector and the loss of a contender."""
    if contender.startswith("torch"):
        head = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128))
        return Encoded(images, TwoViews(size)), head, nt_xent
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.transforms import SimCLRTransform

    views = SimCLRTransform(input_size=size, gaussian_blur=0.0 if size < 64 else 0.5)
    return Encoded(images, views), SimCLRProjectionHead(512, 512, 128), NTXentLoss()


def train_other(
    contender: str, images: Images, size: int, minutes: list[float], seed: int
) -> Iterator[Any]:
    """Yield (minutes, encoder, {}) at each mark of a loop in the way of lightly's example; the
    clock then waits.
    """
    from torchvision.models import resnet18

    best = contender.endswith("-best")
    own = contender.startswith("lightly")  # whose transform normalises by ImageNet's
    moments = (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD) if own else ((0.5,) * 3, (0.25,) * 3)
    torch.manual_seed(seed)
    began = time.perf_counter()
    data, head, criterion = parts_of(contender, images, size)
    backbone: Any = resnet18()
    backbone.fc = nn.Identity()
    if best and size < 64:
        backbone.conv1, backbone.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    model = nn.Sequential(backbone, head)
    if best:
        model.to(memory_format=torch.channels_last)
    loader: DataLoader[Any] = DataLoader(
        data, BATCH, shuffle=True, drop_last=True, num_workers=WORKERS, persistent_workers=True
    )
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.06, **(dict(momentum=0.9, weight_decay=5e-4) if best else {})
    )
    marks, outside = list(minutes), 0.0
    while marks:
        for views in loader:
            spent = (time.perf_counter() - began - outside) / 60
            while marks and spent >= marks[0]:
                stopped = time.perf_counter()
                yield marks.pop(0), Seen(backbone, size, *moments), {}
                model.train()
                outside += time.perf_counter() - stopped
            if not marks:
                return
            if best:
                optimizer.param_groups[0]["lr"] = 0.03 * (
                    1 + math.cos(math.pi * min(1.0, spent / minutes[-1]))
                )
            with torch.autocast("cpu", torch.bfloat16, enabled=best):
                z0, z1 = (model(view) for view in views[:2])
            loss = criterion(z0.float(), z1.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


class Seen(nn.Module):
    """A backbone on uint8 images."""

    def __init__(
        self, backbone: nn.Module, size: int, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__()
        self.backbone, self.size = backbone, size
        self.mean, self.std = (torch.tensor(each).view(3, 1, 1) for each in (mean, std))

    def forward(self, images: Tensor) -> Tensor:
        """Return the features."""
        pixels = images.float() / 255
        if images.shape[-1] != self.size:
            pixels = F.interpolate(
                pixels, size=(self.size, self.size), mode="bilinear", antialias=True
            )
        return self.backbone((pixels - self.mean) / self.std)


def train_nearfar(
    data: str, minutes: list[float], keep: Path | None, **settings: Any
) -> Iterator[Any]:
    """Yield (minutes, encoder, what ran) of a whole run for each time; `keep`: where its folder
    stays.

    Each begins with an empty cache.
    """
    import nearfar

    for each in minutes:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = folder
            out = (keep or Path(folder)) / f"{each:g}-{settings['seed']}"
            run = nearfar.pretrain(data, minutes=each, out=out, **settings)
            yield each, nearfar.load(run), what_ran(run)


def frozen(images: Images) -> Iterator[Any]:
    """Yield (0, the network of nearfar[pretrained], {})."""
    import nearfar

    yield 0.0, nearfar.join(["pretrained"], channels=images.channels), {}


def what_ran(run: Any) -> dict[str, Any]:
    """Return the choices of nearfar for a run, the epochs that it trained, and its positive-pair retrieval
    accuracy.
    """
    chosen = {
        name: getattr(run.settings, name)
        for name in ("encoder", "image_size", "crop_size", "views", "epochs")
    }
    health = [line["health"] for line in run.metrics if "health" in line]
    return chosen | {"view_retrieval": health[-1]["view_retrieval"]}


def main() -> None:
    """Train one contender and append a line for each mark; or print the table of a file and draw
    its figure.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("contender", nargs="?", choices=CONTENDERS)
    parser.add_argument("--minutes", type=float, nargs="+", default=[1.0, 2.0, 5.0, 10.0])
    parser.add_argument(
        "--crop",
        type=int,
        help="pixels of the others' views; default: 32 for images of 32 px, else 128",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--mirrored",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also measure features averaged with those of the mirror image",
    )
    parser.add_argument("--keep", type=Path, help="keep nearfar's run folders in this folder")
    parser.add_argument("--out", type=Path, default=Path("runs/time.jsonl"))
    args = parser.parse_args()
    if args.data.endswith(".jsonl"):
        report(Path(args.data))
        return
    reuse_memory()
    whole = open_images(args.data, split="train")
    size = args.crop or (whole.image_size if whole.image_size < 64 else 128)
    if args.contender in NEARFAR:
        settings = NEARFAR[args.contender] | {"seed": args.seed}
        marks = train_nearfar(args.data, args.minutes, args.keep, **settings)
    elif args.contender == "frozen":
        marks = frozen(whole)
    else:
        marks = train_other(args.contender, whole, size, sorted(args.minutes), args.seed)
    for minutes, encoder, facts in marks:
        seen = getattr(encoder, "image_size", size)
        train, test = (
            open_images(args.data, split=split, image_size=max(seen, 32))
            for split in ("train", "test")
        )
        plain = [extract(encoder, images) for images in (train, test)]
        features = {"": plain}
        if args.mirrored:
            mirror = nn.Sequential(RandomHorizontalFlip(1.0), encoder)
            turned = [extract(mirror, images) for images in (train, test)]
            features["mirrored_"] = [(plain[i] + turned[i]) / 2 for i in (0, 1)]
        accuracies = {}
        for prefix, (x, y) in features.items():
            both = evaluate_features(x, train.labels, y, test.labels, protocols=("knn", "linear"))
            accuracies |= {f"{prefix}{key}": value for key, value in both.items()}
        where = {"cores": os.cpu_count(), "threads": torch.get_num_threads()}
        where["capability"] = torch.backends.cpu.get_cpu_capability()
        line = dict(
            contender=args.contender,
            minutes=minutes,
            seed=args.seed,
            **where,
            **accuracies,
            **facts,
        )
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with args.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)


def report(path: Path) -> None:
    """Print a table of accuracies, means over seeds, and draw them against minutes beside the
    file.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullLocator

    by_budget: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for line in map(json.loads, path.read_text().splitlines()):
        by_budget.setdefault((line["contender"], line["minutes"]), []).append(line)
    print(
        "| | minutes | seeds | epochs | kNN | linear | mirrored: kNN | linear |\n"
        + "|---" * 8
        + "|"
    )
    figure, axes = plt.subplots(figsize=(6, 4))
    for contender in CONTENDERS:
        points = []
        for minutes in sorted(m for c, m in by_budget if c == contender):
            lines = by_budget[contender, minutes]
            kinds = {
                "epochs": 1,
                "knn": 100,
                "linear": 100,
                "mirrored_knn": 100,
                "mirrored_linear": 100,
            }
            values = {
                key: [unit * line[key] for line in lines if key in line]
                for key, unit in kinds.items()
            }
            means = {key: sum(each) / len(each) for key, each in values.items() if each}
            cells = [f"{means[key]:.1f}" if key in means else "" for key in kinds]
            print(f"| {' | '.join([contender, f'{minutes:g}', str(len(lines)), *cells])} |")
            points.append((minutes, means["knn"]))
        if contender == "frozen" and points:
            axes.axhline(points[0][1], linestyle="dotted", label=contender)
        elif points:
            axes.plot(*zip(*points, strict=True), marker="o", label=contender)
    axes.set(xscale="log", xlabel="minutes on two cores", ylabel="kNN accuracy, percent")
    axes.set_xticks(
        ticks := sorted({minutes for _, minutes in by_budget if minutes}),
        [f"{minutes:g}" for minutes in ticks],
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.legend()
    figure.savefig(path.with_suffix(".png"), dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
