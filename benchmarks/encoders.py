"""Views of photographs and others, tried on eleven small sets of training images: kNN, linear, 1 and 5 labels a class.

    OMP_NUM_THREADS=1 python benchmarks/encoders.py ../shared/data --sets flowers --contenders "keep 0" "no colour" \
        --seeds 0 1 --out runs/encoders.jsonl
    python benchmarks/encoders.py ../shared/data --contenders "colours and edges" frozen weights "keep 0.5" ...
    python benchmarks/encoders.py runs/encoders.jsonl                                # the table, means over seeds

Every fifth training image is held out and is what the classifiers are tested on, so no test image influences a choice.
All contenders train the small net with SimCLR for the same epochs; "two pairs" makes four views, for half of them.
"weights" begins from --weights, "frozen" are these as they are, "at once" the features of verbs without a run,
"colours and edges" these without the net, and "pretrained" and "pretrained, edges" the weights of the installed
package alone and beside half of HOG. Each run appends a line to --out; runs that are in it
already are skipped.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from invariance import AugSelf, TwoSpaces
from rich.console import Console
from scipy.stats import spearmanr
from torch import Tensor
from torchvision.transforms.v2.functional import five_crop

import nearfar
from nearfar.data import Images, open_images
from nearfar.evaluation import (
    AtOnce,
    PretrainedAndEdges,
    colour_histogram,
    evaluate_features,
    extract,
    hog,
    linear_accuracy,
)
from nearfar.methods import Method
from nearfar.networks import Encoder, build_backbone, whiten_stem
from nearfar.networks.backbone import own_backbone
from nearfar.networks.starting import find_weights
from nearfar.papers.annotations import open_annotated, read_pixels
from nearfar.run_features import open_featured, run_or_data
from nearfar.training.health import rankme
from nearfar.training.plan import PHOTOGRAPH
from nearfar.views import PRESETS, ViewPlan, fit_views, plan, resize_square

METRICS = {"knn": "kNN", "linear": "linear", "one_label": "1 label", "five_labels": "5 labels"}
MEASURES = {
    "rotation": "rotation",
    "lidar": "LiDAR",
    "rankme": "RankMe",
    "retrieval": "own-view retrieval",
}
HELD_OUT = 5  # every fifth image
FASHION = Path("/usr/share/datasets/fashion-mnist")


@dataclass(frozen=True)
class Kind:
    """A data set, and what a run on it takes: crops of `crop` pixels, epochs."""

    load: Callable[[Path], Images]
    crop: int
    epochs: int


def _images(pixels: Tensor, labels: Sequence[int] | np.ndarray) -> Images:
    names = [f"{number:05d}" for number in range(len(pixels))]
    return Images(pixels, names=names, labels=np.asarray(labels, np.int64))


def flowers(data: Path) -> Images:
    """Return the 1600 training images at 96 px."""
    return open_images(str(data / "flowers"), image_size=96, split="train")


def unbalanced(data: Path) -> Images:
    """Return images of Imagenette at 96 px, each class with 0.75 times the images of the one
    before: 1889.
    """
    images = open_images(str(data / "imagenette"), image_size=96, split="train")
    counts = (500 * 0.75 ** np.arange(10)).astype(int)
    return images.subset(
        np.sort(
            np.concatenate([np.flatnonzero(images.labels == c)[:n] for c, n in enumerate(counts)])
        )
    )


def imagenette(data: Path) -> Images:
    """Return 2000 images of Imagenette at 96 px."""
    return open_images(str(data / "imagenette"), image_size=96, split="train").subset(range(2000))


def cifar10(data: Path) -> Images:
    """Return 5000 images of CIFAR-10."""
    return open_images(str(data / "cifar10"), split="train").subset(range(5000))


def patches(data: Path) -> Images:
    """Return 50 patches of 96 px from each of 40 photographs, resized to 64 px; the photograph is
    the class.
    """
    images = open_images(str(data / "imagenette"), image_size=224, split="train").subset(range(40))
    corners = torch.randint(
        0, 224 - 96, (40, 50, 2), generator=torch.Generator().manual_seed(0)
    ).tolist()
    cut = [
        image[:, y : y + 96, x : x + 96]
        for image, places in zip(images.pixels, corners, strict=True)
        for y, x in places
    ]
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(0))
    return _images(
        resize_square(torch.stack(cut), 64)[order], np.repeat(np.arange(40), 50)[order.numpy()]
    )


def cells(data: Path) -> Images:
    """Return blood cells cut from BCCD's boxes at 64 px: 600 red, all white, all platelets, of the
    training images.
    """
    train, _ = open_annotated(data / "bccd")
    cut, labels = [], []
    for image in train.images:
        pixels = (255 * read_pixels(image, 3)).to(torch.uint8)
        for one in image.objects:
            left, top, width, height = map(round, one["bbox"])
            if min(width, height) >= 8:
                piece = pixels[:, top : top + height, left : left + width]
                cut.append(resize_square(piece[None], 64)[0])
                labels.append(one["category_id"] - 1)
    order = np.random.default_rng(0).permutation(len(labels))
    kept = np.concatenate([order[np.array(labels)[order] == c][:600] for c in np.unique(labels)])
    kept = np.random.default_rng(1).permutation(kept)
    return _images(torch.stack([cut[i] for i in kept]), np.array(labels)[kept])


def fashion(data: Path) -> Images:
    """Return 4000 images of Fashion-MNIST, from Debian's package dataset-fashion-mnist."""
    parts = [
        gzip.decompress((FASHION / f"train-{kind}-ubyte.gz").read_bytes())
        for kind in ("images-idx3", "labels-idx1")
    ]
    pixels = np.frombuffer(parts[0], np.uint8, offset=16).reshape(-1, 1, 28, 28)[:4000]
    return _images(
        torch.from_numpy(pixels.copy()), np.frombuffer(parts[1], np.uint8, offset=8)[:4000]
    )


def of_kind(name: str, size: int) -> Callable[[Path], Images]:
    """Return a function that reads the training images of a set of `kinds`, in a random order."""

    def load(data: Path) -> Images:
        images = open_images(data / "kinds" / f"{name}.parquet", image_size=size, split="train")
        return images.subset(np.random.default_rng(0).permutation(len(images)))

    return load


def digits(data: Path) -> Images:
    """Return scikit-learn's digits."""
    return open_images("digits")


SETS = {
    "flowers": Kind(flowers, 64, 40),
    "unbalanced": Kind(unbalanced, 64, 40),
    "imagenette": Kind(imagenette, 64, 40),
    "cells": Kind(cells, 48, 40),
    "patches": Kind(patches, 48, 40),
    "cifar10": Kind(cifar10, 24, 40),
    "fashion-mnist": Kind(fashion, 20, 40),
    "digits": Kind(digits, 8, 40),
    "scans": Kind(of_kind("scans", 96), 64, 60),
    "letters": Kind(of_kind("letters", 64), 48, 40),
    "bees": Kind(of_kind("bees", 80), 54, 60),
}


def default_plan(images: Images, crop: int) -> ViewPlan:
    """Return the views that `pretrain` chooses for SimCLR at that size, with --keep-colour 0."""
    preset = "photographs" if crop >= PHOTOGRAPH and images.channels == 3 else None
    names = fit_views(("strong", "strong"), crop, images.channels, preset)
    return plan("+".join(names), crop, images.channels)


@dataclass(frozen=True)
class Contender:
    """What differs from SimCLR with the default views: a change of them or a preset's name, the
    method, the epochs.

    With minutes, nothing else but the decay is set: views, size and optimiser are what `pretrain`
    chooses.
    """

    change: dict[str, Any] | str = field(
        default_factory=dict
    )  # fields of each view, "keep_colour", or a preset
    method: str | Method = "simclr"
    epochs: float = 1.0  # as a share of the set's
    minutes: float | None = None
    weight_decay: float = 0.01  # the default when most were run

    def views(self, images: Images, crop: int) -> ViewPlan:
        """Return the plan for crops of this side."""
        if isinstance(self.change, str):
            return plan(f"{self.change}+{self.change}", crop, images.channels)
        change = dict(self.change)
        keep = change.pop("keep_colour", 0.0)
        views = default_plan(images, crop).views
        if isinstance(self.method, TwoSpaces) and self.method.pairs == 2:
            views += tuple(replace(view, **PLAIN) for view in views)
        return ViewPlan("", tuple(replace(view, **change) for view in views), keep_colour=keep)


PLAIN = dict(jitter=0.0, grayscale=0.0)
MILDER = {"no shear": dict(shear=0.0), "no noise": dict(noise=0.0), "half warped": dict(affine=0.4)}
CONTENDERS = {
    "little colour": Contender(
        dict(brightness=0.2, contrast=0.2, saturation=0.1, hue=0.02, grayscale=0.0)
    ),
    "no colour": Contender(PLAIN),
    **{f"keep {share}": Contender(dict(keep_colour=share)) for share in (0, 0.25, 0.5, 0.75, 1.0)},
    **{
        f"keep {share}, decay 0.1": Contender(dict(keep_colour=share), weight_decay=0.1)
        for share in (0, 0.5)
    },
    **{
        f"crops from {least}": Contender(dict(scale=(least, 1.0)))
        for least in (0.25, 0.4, 0.55, 0.7)
    },
    **{
        f"crops from 0.55, {name}": Contender(dict(scale=(0.55, 1.0)) | change)
        for name, change in MILDER.items()
    },
    "augself": Contender(method=AugSelf()),
    "augself, keep 0.5": Contender(dict(keep_colour=0.5), AugSelf()),
    "two spaces": Contender(dict(keep_colour=0.5), TwoSpaces()),
    "two pairs": Contender(method=TwoSpaces(pairs=2), epochs=0.5),
    **{preset: Contender(preset) for preset in PRESETS},
    "ten minutes": Contender(minutes=10),
    "weights, ten minutes": Contender(minutes=10),
    "weights": Contender(),
    "weights, keep 0.5": Contender(dict(keep_colour=0.5)),
}


def measure(
    contender: str, kind: Kind, images: Images, seed: int, weights: str
) -> dict[str, float]:
    """Train one contender, or take a baseline; return its accuracies on the images that were held
    out.
    """
    rows = np.arange(len(images))
    train, held = (
        images.subset(rows[rows % HELD_OUT != 0]),
        images.subset(rows[rows % HELD_OUT == 0]),
    )
    found: dict[str, float] = {}
    if contender == "histogram":
        encoder: Any = colour_histogram
    elif contender == "untrained":
        torch.manual_seed(seed)
        backbone = build_backbone("small", image_size=images.image_size, channels=images.channels)
        encoder = Encoder(backbone, images.image_size, images.channels, train.mean, train.std)
        if images.channels == 3:
            whiten_stem(backbone.net, encoder.preprocess(train.pixels[:256]))
    elif contender == "colours and edges":
        shape = images.image_size, images.channels
        encoder = Encoder(
            own_backbone(AtOnce(), *shape), *shape, [0.0] * shape[1], [1.0] * shape[1]
        )
    elif contender == "at once":
        encoder = open_featured(run_or_data(train), None, None, None, Console(quiet=True)).encoder
    elif contender == "hog":
        encoder = hog
    elif contender.startswith("pretrained"):
        frozen = _pretrained(images.channels)
        shape = images.image_size, images.channels
        module = PretrainedAndEdges(frozen) if contender.endswith("edges") else frozen
        encoder = Encoder(own_backbone(module, *shape), *shape, [0.0] * shape[1], [1.0] * shape[1])
    elif contender == "frozen":
        backbone = build_backbone(
            "small", image_size=kind.crop, channels=images.channels, init=weights
        )
        moments = find_weights(weights, "small").moments(images.channels) or (train.mean, train.std)
        encoder = Encoder(backbone, images.image_size, images.channels, *moments)
    else:
        chosen = CONTENDERS[contender]
        with tempfile.TemporaryDirectory() as folder:
            same: dict[str, Any] = dict(
                out=str(Path(folder) / "run"),
                init=weights if contender.startswith("weights") else None,
                seed=seed,
                weight_decay=chosen.weight_decay,
                console=Console(quiet=True),
            )
            if chosen.minutes:
                run = nearfar.pretrain(train, minutes=chosen.minutes, **same)
            else:
                run = nearfar.pretrain(
                    train,
                    encoder="small",
                    method=chosen.method,
                    views=chosen.views(images, kind.crop),
                    crop_size=kind.crop,
                    epochs=kind.epochs * chosen.epochs,
                    **same,
                )
            encoder = nearfar.load(run)
            health = [line["health"] for line in run.metrics if "health" in line][-1]
            found = {
                "lidar": health["lidar"],
                "retrieval": health["own_view"],
                "epochs": run.settings.epochs,
            }
    fit, tested = extract(encoder, train), extract(encoder, held)
    found |= evaluate_features(fit, train.labels, tested, held.labels, seed=0)
    found |= {"rankme": rankme(fit), "rotation": rotation_accuracy(encoder, train, held)}
    for name, change in AVERAGED.items() if "epochs" in found else ():  # of trained encoders
        x, y = (
            torch.stack(
                [plain, *(extract(encoder, pixels) for pixels in change(images.pixels))]
            ).mean(0)
            for plain, images in ((fit, train), (tested, held))
        )
        gained = evaluate_features(x, train.labels, y, held.labels, seed=0)
        found |= {f"{name}_{key}": value for key, value in gained.items()}
    return found


def _pretrained(channels: int) -> Encoder:
    """Return the net of the installed package of weights, at 128 px."""
    start = find_weights("pretrained")
    backbone = build_backbone(
        str(start.encoder), image_size=128, channels=channels, init="pretrained"
    )
    return Encoder(backbone, 128, channels, *(start.moments(channels) or ())).eval()


def shifted(pixels: Tensor) -> list[Tensor]:
    """Return the images moved by a sixteenth of their side up, down, left and right; their border
    is repeated.
    """
    side = pixels.shape[-1]
    by = max(1, side // 16)
    padded = F.pad(pixels.float(), [by] * 4, mode="replicate").to(torch.uint8)
    return [
        padded[..., y : y + side, x : x + side]
        for y, x in ((2 * by, by), (0, by), (by, 2 * by), (by, 0))
    ]


def cropped(pixels: Tensor) -> list[Tensor]:
    """Return the four corners and the centre, of 7/8 of the side."""
    return list(five_crop(pixels, [pixels.shape[-1] * 7 // 8] * 2))


AVERAGED: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "flips": lambda pixels: [pixels.flip(-1)],
    "shifts": shifted,
    "crops": cropped,
}


def rotation_accuracy(encoder: Any, train: Images, held: Images) -> float:
    """Return the accuracy of a linear classifier that tells by how many quarter turns an image was
    turned.

    Each image is turned once. Source: SelfAugment (Reed et al., CVPR 2021).
    """
    turned = []
    for images in (train, held):
        quarters = np.arange(len(images)) % 4
        pixels = torch.stack(
            [image.rot90(int(q), (1, 2)) for image, q in zip(images.pixels, quarters, strict=True)]
        )
        turned += [extract(encoder, pixels), quarters]
    return linear_accuracy(*turned)


def table(path: Path) -> str:
    """Return means over seeds in Markdown, a section for each set."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    out = []
    for name in dict.fromkeys(line["set"] for line in lines):
        out += [
            f"\n## {name}\n",
            f"| | seeds | {' | '.join(METRICS.values())} |",
            "|---|---:" + "|---:" * len(METRICS) + "|",
        ]
        of_set = [line for line in lines if line["set"] == name]
        for contender in dict.fromkeys(line["contender"] for line in of_set):
            found = [line for line in of_set if line["contender"] == contender]
            cells = [f"{100 * np.mean([line[key] for line in found]):.1f}" for key in METRICS]
            out.append(f"| {contender} | {len(found)} | {' | '.join(cells)} |")
    return "\n".join(out)


def presets(path: Path) -> str:
    """Return kNN accuracy and that with five labels a class of each preset and the defaults, with
    seed 0.
    """
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = {(line["set"], line["contender"]): line for line in lines if line["seed"] == 0}
    defaults = {
        name: "keep 0.5" if kind.crop >= PHOTOGRAPH else "keep 0" for name, kind in SETS.items()
    }
    for name, contender in defaults.items():
        found[name, "default"] = found.get((name, contender), {})
    out = [f"| | {' | '.join(SETS)} |", "|---" * (1 + len(SETS)) + "|"]
    for contender in ("default", *PRESETS):
        of_sets = [found.get((name, contender)) for name in SETS]
        if any(of_sets):
            cells = [
                f"{100 * line['knn']:.1f} / {100 * line['five_labels']:.1f}" if line else ""
                for line in of_sets
            ]
            out.append(f"| {contender} | {' | '.join(cells)} |")
    return "\n".join(out)


def correlations(path: Path) -> str:
    """Return Spearman's rank correlation of each measure without labels with kNN accuracy, over a
    set's presets.
    """
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    out = [
        f"| | presets | {' | '.join(MEASURES.values())} |",
        "|---|---:" + "|---:" * len(MEASURES) + "|",
    ]
    for name in dict.fromkeys(line["set"] for line in lines):
        found = [
            line
            for line in lines
            if line["set"] == name and line["contender"] in PRESETS and line["seed"] == 0
        ]
        if len(found) >= 4:
            ranks = [
                spearmanr([line["knn"] for line in found], [line[key] for line in found])[0]
                for key in MEASURES
            ]
            out.append(f"| {name} | {len(found)} | {' | '.join(f'{rank:.2f}' for rank in ranks)} |")
    return "\n".join(out)


def averaged(path: Path) -> str:
    """Return what averaging with changed images gains, as means over the trained encoders of a
    set.
    """
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    out = [
        f"| | averaged | encoders | {' | '.join(METRICS.values())} |",
        "|---|---|---:" + "|---:" * len(METRICS) + "|",
    ]
    for name, change in product(dict.fromkeys(line["set"] for line in lines), AVERAGED):
        found = [
            line
            for line in lines
            if line["set"] == name and "epochs" in line and f"{change}_knn" in line
        ]
        gains = [
            f"{100 * np.mean([line[f'{change}_{key}'] - line[key] for line in found]):+.1f}"
            for key in METRICS
        ]
        out += [f"| {name} | {change} | {len(found)} | {' | '.join(gains)} |"] if found else []
    return "\n".join(out)


def main() -> None:
    """Run what is asked and not in the file yet, or print the table of a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "data", type=Path, help="the folder of data sets, or a file of lines, to print its table"
    )
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument(
        "--contenders",
        nargs="+",
        default=["histogram", "untrained", "keep 0", "no colour", "keep 0.5"],
    )
    parser.add_argument(
        "--weights",
        default="nearfar",
        help="starting weights, for the contenders frozen and weights",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("runs/encoders.jsonl"))
    given = parser.parse_args()
    if given.data.is_file():
        print(table(given.data), "\n## Presets, kNN / 5 labels\n", presets(given.data), sep="\n")
        print("\n## Rank correlation with kNN accuracy\n", correlations(given.data), sep="\n")
        print(
            "\n## Gain of features averaged with those of changed images\n",
            averaged(given.data),
            sep="\n",
        )
        return
    given.out.parent.mkdir(parents=True, exist_ok=True)
    done = (
        [json.loads(line) for line in given.out.read_text().splitlines()]
        if given.out.is_file()
        else []
    )
    for seed, name in product(given.seeds, given.sets):
        images = SETS[name].load(given.data)
        for contender in given.contenders:
            case = {"set": name, "contender": contender, "seed": seed}
            if any(case.items() <= line.items() for line in done):
                continue
            line = case | measure(contender, SETS[name], images, seed, given.weights)
            with given.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(case, *(f"{100 * line[key]:.1f}" for key in METRICS), flush=True)


if __name__ == "__main__":
    main()
