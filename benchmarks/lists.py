"""Quality of `duplicates` and `select` on photographs with known answers: planted copies, and labels.

    python benchmarks/lists.py DATA plant photos            # a folder of photographs with planted copies
    nearfar pretrain photos --out run --minutes 3
    python benchmarks/lists.py DATA copies run photos --out docs/results/duplicates.json
    python benchmarks/lists.py DATA select run --out docs/results/select.json
    python benchmarks/lists.py DATA pixels --out docs/results/copies-pixels.json    # pixel differences of copies

DATA: Parquet files with JPEG photographs in a column "image" and classes in "label", in splits train and test. Planted
from random photographs: the same file, the same pixels as PNG, half to one and a half times the size, JPEG of quality
30 to 80; and images that are not copies: a crop to 85 %, the mirror image, and a brighter one.
`select`: each algorithm, and random selection, chooses images from five random pools of the training photographs; a
linear probe is trained on the labels of those alone and tested on the test photographs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from pyarrow.dataset import dataset
from rich.console import Console

import nearfar
from nearfar.data import open_images
from nearfar.evaluation import extract, knn_accuracy, linear_accuracy
from nearfar.neighbours import (
    diverse_rows,
    nearest_rows,
    pixel_difference,
    remote_rows,
    typical_rows,
)
from nearfar.neighbours.copies import altered, small_images

COPIES = ("same file", "same pixels", "resized", "recompressed")
OTHERS = ("cropped", "mirrored", "brighter")
SEEDS, POOL, ASKED = 5, 2000, 1000
STRENGTH = 1.0  # of the probe's penalty: there are too few labels to choose it by


def plant(data: str, folder: Path, count: int, each: int) -> None:
    """Write photographs as they are, and altered ones named KIND-NUMBER."""
    folder.mkdir(parents=True)
    cells = (
        dataset(sorted(Path(data).glob("train*.parquet")))
        .head(count, columns=["image"])["image"]
        .to_pylist()
    )
    chance = np.random.default_rng(0)
    picked = chance.permutation(count)
    for number, cell in enumerate(cells):
        (folder / f"{number:05d}.jpg").write_bytes(cell["bytes"])
    for place, kind in enumerate(COPIES + OTHERS):
        for number in picked[place * each : (place + 1) * each]:
            path = folder / f"{number:05d}.jpg"
            image, target = Image.open(path).convert("RGB"), folder / f"{kind}-{number:05d}.jpg"
            if kind == "same file":
                target.write_bytes(path.read_bytes())
            elif kind == "same pixels":
                image.save(target.with_suffix(".png"))
            elif kind == "resized":
                side = int(224 * chance.uniform(0.5, 1.5))
                image.resize((side, side), Image.Resampling.LANCZOS).save(target, quality=90)
            elif kind == "recompressed":
                image.save(target, quality=int(chance.integers(30, 81)))
            elif kind == "cropped":
                image.crop((0, 0, 190, 190)).save(target, quality=90)
            elif kind == "mirrored":
                ImageOps.mirror(image).save(target, quality=90)
            else:
                ImageEnhance.Brightness(image).enhance(1.4).save(target, quality=90)


def copies(run: str, photos: str, each: int, distance: float | None) -> dict[str, Any]:
    """Recall by kind, precision of what is listed, and what became of the altered images that are
    no copies.
    """
    found = nearfar.find_duplicates(run, photos, distance=distance, console=Console())
    groups: dict[int, list[str]] = {}
    of_copies: set[int] = set()
    for group, kind, name in zip(found["group"], found["kind"], found["name"], strict=True):
        groups.setdefault(group, []).append(name)
        of_copies |= set() if kind == "alike" else {group}
    files = [path.name for path in Path(photos).iterdir()]

    def original(name: str) -> str:
        return name.rpartition("-")[2].rpartition(".")[0] + ".jpg"

    def source(name: str) -> str:
        """What an image is a copy of: itself, where it is none."""
        return original(name) if name.startswith(COPIES) else name

    def together(kind: str, copies: bool) -> float:
        names = [name for name in files if name.startswith(kind)]
        joined = [set(group) for number, group in groups.items() if (number in of_copies) == copies]
        return sum(
            any({name, original(name)} <= group for group in joined) for name in names
        ) / len(names)

    listed = [
        (source(name), source(groups[number][0]))
        for number in of_copies
        for name in groups[number][1:]
    ]
    return {
        "images": len(files),
        "planted_of_each_kind": each,
        "recall": {kind: together(kind, True) for kind in COPIES},
        "precision": sum(one == other for one, other in listed) / len(listed),
        "listed": len(listed),
        "wrong": sorted(pair for pair in listed if pair[0] != pair[1]),
        "no_copies_listed": {kind: together(kind, True) for kind in OTHERS},
        "no_copies_alike": {kind: together(kind, False) for kind in OTHERS},
        "alike_groups": len(groups) - len(of_copies),
    }


def pixels(data: str, count: int) -> dict[str, list[float]]:
    """Quantiles (0, 0.5, 0.99, 1) of the difference that confirms a copy, for copies and for the
    nearest others.
    """
    images = open_images(data, split="test", image_size=224)
    images = images.subset(range(count))
    small = small_images(images, torch.arange(count))
    half, jpeg = zip(
        *(altered(images.gather(rows)) for rows in torch.arange(count).split(64)), strict=True
    )
    apart = {
        name: pixel_difference(
            small, small_images(open_images(torch.cat(some)), torch.arange(count))
        )
        for name, some in (("half the size", half), ("JPEG of quality 50", jpeg))
    }
    others = []
    for row in range(count):
        difference = pixel_difference(small[row].expand_as(small), small)
        difference[row] = torch.inf
        others.append(difference.min())
    apart["the nearest other image"] = torch.stack(others)
    places = torch.tensor([0, 0.5, 0.99, 1])
    return {
        name: [round(one, 4) for one in some.quantile(places).tolist()]
        for name, some in apart.items()
    }


def select(run: str, data: str, counts: list[int]) -> dict[str, Any]:
    """Accuracy of a linear probe on the labels of chosen images, for random pools of the training
    photographs.
    """
    encoder = nearfar.load(run)
    features, labels = {}, {}
    for split in ("train", "test"):
        images = open_images(
            data, split=split, image_size=encoder.image_size, channels=encoder.channels
        )
        order = np.random.default_rng(0).permutation(len(images))[
            : POOL * 2 if split == "train" else ASKED
        ]
        images = images.subset(np.sort(order))
        features[split], labels[split] = extract(encoder, images), images.labels
    unit = {name: torch.nn.functional.normalize(rows, dim=1) for name, rows in features.items()}
    results: dict[str, Any] = {"pool": POOL, "asked": ASKED, "seeds": SEEDS, "accuracy": {}}
    results["knn_accuracy"] = knn_accuracy(
        unit["train"], labels["train"], unit["test"], labels["test"]
    )
    near = nearest_rows(unit["train"], k=10).index
    results["knn_purity_10"] = float(
        (labels["train"][near.numpy()] == labels["train"][:, None]).mean()
    )
    results["linear_of_pool"] = linear_accuracy(
        unit["train"], labels["train"], unit["test"], labels["test"], STRENGTH
    )
    for count in counts:
        accuracy: dict[str, list[float]] = {}
        for seed in range(SEEDS):
            pool = torch.from_numpy(np.random.default_rng(seed).permutation(2 * POOL)[:POOL])
            rows, truth = unit["train"][pool], labels["train"][pool.numpy()]
            chosen = {
                "random": torch.arange(count),
                "diverse": diverse_rows(rows, count)[0],
                "typical": typical_rows(rows, count, seed)[0],
                "outlier": remote_rows(nearest_rows(rows, k=10).distance, count)[0],
            }
            for name, some in chosen.items():
                got = linear_accuracy(
                    rows[some], truth[some.numpy()], unit["test"], labels["test"], STRENGTH
                )
                accuracy.setdefault(name, []).append(got)
        results["accuracy"][count] = {
            name: {"mean": float(np.mean(got)), "std": float(np.std(got, ddof=1))}
            for name, got in accuracy.items()
        }
        print(count, json.dumps(results["accuracy"][count]), flush=True)
    return results


def main() -> None:
    """Plant, or measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("what", choices=["plant", "copies", "select", "pixels"])
    parser.add_argument("places", nargs="*", help="folder to write; run and folder; run; nothing")
    parser.add_argument("--count", type=int, default=3000, help="photographs")
    parser.add_argument("--each", type=int, default=100, help="planted copies of each kind")
    parser.add_argument("--distance", type=float)
    parser.add_argument("--labels", type=int, nargs="+", default=[10, 20, 50, 100, 200, 500])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.what == "plant":
        plant(args.data, Path(args.places[0]), args.count, args.each)
        return
    if args.what == "copies":
        result = copies(args.places[0], args.places[1], args.each, args.distance)
    elif args.what == "select":
        result = select(args.places[0], args.data, args.labels)
    else:
        result = pixels(args.data, args.count)
    print(json.dumps(result, indent=2))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
