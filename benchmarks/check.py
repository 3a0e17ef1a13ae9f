"""Planted mistakes, and those of them that `nearfar check` finds: wrong labels, leaks and bad images.

    for NAME in imagenette flowers cifar10; do
        OMP_NUM_THREADS=1 nearfar pretrain DATA/$NAME --split train --limit 4000 --minutes 5 --out RUNS/$NAME; done
    python benchmarks/check.py DATA RUNS --out docs/results/check.json
    python benchmarks/check.py DATA RUNS --untrained --out docs/results/untrained.json

DATA: folders of those names with Parquet files, images in a column "image" or "img" and classes in "label".
All images are training images. What was chosen was chosen with seed 1; the figures are of seeds 2 to 4.
Labels: 5 and 10 % are replaced by another class, drawn
evenly. Cleanlab (`pip install -e .[benchmarks]`) ranks the same images by the probabilities of a cross-validated
logistic regression, as its documentation does, and by ours. `--untrained` compares
features without training with those of the runs: kNN accuracy, copies whose original is the nearest, and planted wrong
labels. Leaks: 50 images of one half of a sample are copied into
the other. Bad images: 20 of each kind among 600.
"""

from __future__ import annotations

import argparse
import io
import json
import platform
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cleanlab.filter import find_label_issues
from PIL import Image, ImageFilter
from pyarrow.dataset import dataset
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.preprocessing import StandardScaler
from torch.nn.functional import normalize

import nearfar
from nearfar.data import Images, open_images
from nearfar.evaluation import colour_histogram, doubtful_labels, extract, hog, raw_pixels
from nearfar.evaluation.knn import vote
from nearfar.neighbours import nearest_rows
from nearfar.neighbours.copies import perturb
from nearfar.networks import Encoder, build_backbone, named_encoder, whiten_stem
from nearfar.tools.check.label_issues import label_probabilities

warnings.simplefilter("ignore", ConvergenceWarning)
NAMES = ("imagenette", "flowers", "cifar10")
ROWS, LEAKED, BAD, BESIDE = 2000, 50, 20, 600
CHOSEN, REPORTED = (1,), (2, 3, 4)


def planted(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels of which a share is replaced by another class, and which of them are wrong."""
    chance, wrong = np.random.default_rng(seed), np.zeros(len(labels), bool)
    wrong[chance.permutation(len(labels))[: round(share * len(labels))]] = True
    classes = int(labels.max()) + 1
    return np.where(
        wrong, (labels + chance.integers(1, classes, len(labels))) % classes, labels
    ), wrong


def logistic(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Probabilities as the documentation of cleanlab computes them."""
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    scaled = StandardScaler().fit_transform(rows)
    return cross_val_predict(
        LogisticRegression(max_iter=400), scaled, labels, cv=folds, method="predict_proba"
    )


def scores(order: np.ndarray, wrong: np.ndarray, flagged: int) -> dict[str, float]:
    """Of a ranking: precision among the first n and n / 2 for n errors, and of what is listed."""
    n, right = int(wrong.sum()), wrong[order]
    listed = right[:flagged]
    return {
        "precision_first_half": right[: n // 2].mean(),
        "precision_first_n": right[:n].mean(),
        "listed": flagged,
        "precision": listed.mean() if flagged else 0.0,
        "recall": listed.sum() / n,
    }


def labels_of(run: nearfar.Run, data: Path, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Planted wrong labels: ours beside cleanlab's."""
    by_share: dict[str, dict[str, list[dict[str, float]]]] = {}
    for seed in seeds:
        images = open_images(data, split="train", **run.settings.reading).sampled(ROWS, seed)
        features = extract(run.encoder, images)
        assert images.labels is not None
        for share in (0.05, 0.1):
            labels, wrong = planted(images.labels, share, seed)
            ours, every = doubtful_labels(features, labels), np.arange(len(labels))
            own = label_probabilities(features, labels).toarray()
            ratio = own[every, labels] / (
                np.where(np.eye(own.shape[1], dtype=bool)[labels], 0, own).max(1) + 1e-9
            )
            rest = np.argsort(ratio, kind="stable")
            order = np.concatenate([ours.row, rest[~np.isin(rest, ours.row)]])
            cases = {"nearfar": (order, len(ours.row))}
            for name, chance in (
                ("cleanlab, logistic", logistic(features.numpy(), labels)),
                ("cleanlab, ours", own),
            ):
                listed = find_label_issues(
                    labels, chance, return_indices_ranked_by="self_confidence"
                )
                cases[name] = (
                    np.concatenate([listed, np.setdiff1d(rest, listed, True)]),
                    len(listed),
                )
            for name, (ranking, flagged) in cases.items():
                part = by_share.setdefault(f"{share:.0%}", {})
                part.setdefault(name, []).append(scores(ranking, wrong, flagged))
    return {
        share: {name: averaged(each) for name, each in part.items()}
        for share, part in by_share.items()
    }


def averaged(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(float(np.mean([run[key] for run in runs])), 3) for key in runs[0]}


def untrained(run: nearfar.Run, data: Path) -> dict[str, Any]:
    """Features without training, on 2000 images of seed 1: accuracy of 20-NN, copies found, wrong
    labels found.
    """
    images = open_images(data, split="train", image_size=run.settings.image_size).sampled(
        ROWS, CHOSEN[0]
    )
    assert images.labels is not None
    copies = torch.arange(0, len(images), 10)
    changed = torch.cat(perturb(images.gather(copies)))
    labels, wrong = planted(images.labels, 0.1, CHOSEN[0])
    measured = {}
    for name, encoder in untrained_encoders(run, images).items():
        rows = extract(encoder, images)
        near = nearest_rows(rows, extract(encoder, changed), 1).index[:, 0] == copies.repeat(2)
        around = nearest_rows(rows, k=20)
        votes = vote(
            1 - around.distance,
            torch.from_numpy(images.labels)[around.index],
            int(images.labels.max()) + 1,
        )
        order = doubtful_labels(rows, labels).row
        measured[name] = {
            "knn": round(float(np.mean(votes.numpy() == images.labels)), 3),
            "copies": round(float(near.float().mean()), 3),
            "precision_first_n": round(float(wrong[order[: wrong.sum()]].mean()), 3),
        }
        print(name, measured[name], flush=True)
    return measured


def untrained_encoders(
    run: nearfar.Run, images: Images
) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Untrained features, and the encoder of the run."""

    def net(whiten: bool) -> Encoder:
        torch.manual_seed(0)
        backbone = build_backbone("small", image_size=images.image_size, channels=3)
        made = Encoder(backbone, images.image_size, 3, images.mean, images.std)
        if whiten:
            whiten_stem(
                backbone.net, made.preprocess(images.gather(torch.arange(0, len(images), 10)))
            )
        return made.eval()

    def both(weight: float) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda pixels: torch.cat(
            [colour_histogram(pixels), weight * normalize(hog(pixels), dim=1)], 1
        )

    size = images.image_size
    shipped = named_encoder("nearfar", size, 3)
    beside = nearfar.join({"colours": 1.0, "edges": 1.5}, image_size=size)
    return {
        "raw pixels": raw_pixels,
        "colour histogram": colour_histogram,
        "HOG": hog,
        **{f"colour histogram + {weight} HOG": both(weight) for weight in (0.5, 1, 1.5, 2)},
        "small, untrained": net(False),
        "small, whitened stem": net(True),
        "small, weights of the package": shipped,
        "colour histogram + 1.5 HOG, with these": nearfar.join([beside, shipped]),
        "five minutes of training": run.encoder,
    }


def photographs(data: Path, count: int, seed: int) -> list[Image.Image]:
    """Training images at random."""
    files = sorted(data.glob("train*.parquet"))
    table = dataset(files)
    [column] = {"image", "img"} & set(table.schema.names)
    rows = np.sort(np.random.default_rng(seed).permutation(table.count_rows())[:count])
    cells = table.take(rows, columns=[column])[column].to_pylist()
    return [Image.open(io.BytesIO(cell["bytes"])).convert("RGB") for cell in cells]


COPIES: dict[str, Callable[[Image.Image], tuple[Image.Image, dict[str, Any]]]] = {
    "same pixels": lambda image: (image, {"format": "PNG"}),
    "JPEG 90": lambda image: (image, {"format": "JPEG", "quality": 90}),
    "JPEG 60": lambda image: (image, {"format": "JPEG", "quality": 60}),
    "JPEG 40": lambda image: (image, {"format": "JPEG", "quality": 40}),
    "half": lambda image: (scaled(image, 0.5), {"format": "PNG"}),
    "two thirds": lambda image: (scaled(image, 0.67), {"format": "JPEG", "quality": 85}),
    "larger": lambda image: (scaled(image, 1.5), {"format": "JPEG", "quality": 85}),
}


def scaled(image: Image.Image, share: float) -> Image.Image:
    return image.resize(
        (round(image.width * share), round(image.height * share)), Image.Resampling.LANCZOS
    )


def leaks(run: nearfar.Run, data: Path, seed: int) -> dict[str, Any]:
    """Plant 50 copies of training images among test images, a seventh of each kind and the rest as
    the same file.
    """
    with tempfile.TemporaryDirectory() as scratch:
        root, kinds = Path(scratch) / "images", [*COPIES, "same file"]
        (root / "train").mkdir(parents=True)
        (root / "test").mkdir()
        images, truth = photographs(data, 1200, seed), {}
        for number, image in enumerate(images):
            image.save(root / ("train" if number < 800 else "test") / f"{number:04d}.png")
        for number in range(LEAKED):
            kind = kinds[number % len(kinds)]
            target = root / "test" / f"leak-{number:02d}"
            if kind == "same file":
                target.with_suffix(".png").write_bytes(
                    (root / "train" / f"{number:04d}.png").read_bytes()
                )
            else:
                image, encoding = COPIES[kind](images[number])
                image.save(target.with_suffix(f".{encoding['format'].lower()}"), **encoding)
            truth[target.name] = (kind, f"train/{number:04d}.png")
        started = time.perf_counter()
        problems = run.check(root, out=Path(scratch) / "page.html")
        seconds = time.perf_counter() - started
    caught = {kind: 0 for kind in kinds}
    near, wrong = dict(caught), 0
    for problem, name, other in zip(
        problems["problem"], problems["name"], problems["other"], strict=True
    ):
        kind, of = truth.get(Path(name).stem, ("", ""))
        if problem == "leak":
            wrong += not kind or other != of
            caught |= {kind: caught[kind] + 1} if kind else {}
        elif problem == "near leak" and kind:
            near[kind] += 1
    planted_of = {kind: sum(planted == kind for planted, _ in truth.values()) for kind in kinds}
    return {
        "planted": planted_of,
        "leak": caught,
        "near leak": near,
        "wrong": wrong,
        "seconds": round(seconds, 1),
    }


BLURS = {"imagenette": 0.02, "flowers": 0.03, "cifar10": 0.06}  # radius, of the shorter side
SPOILED: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "blurred": lambda image, blur: image.filter(ImageFilter.GaussianBlur(blur * min(image.size))),
    "dark": lambda image, _: image.point([value * 15 // 100 for value in range(256)] * 3),
    "overexposed": lambda image, _: image.point([min(255, 4 * value) for value in range(256)] * 3),
    "nearly uniform": lambda image, _: image.point(
        [120 + (value - 128) * 3 // 100 for value in range(256)] * 3
    ),
    "odd size": lambda image, _: scaled(image, 1 / 6),
    "odd proportions": lambda image, _: image.crop((0, 0, image.width, max(1, image.height // 4))),
}


def defects(run: nearfar.Run, data: Path, name: str, seed: int) -> dict[str, Any]:
    """Plant 20 bad images of each kind among 600: how many are found, and how many others are
    listed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "images"
        root.mkdir()
        for number, image in enumerate(photographs(data, BESIDE + BAD * len(SPOILED), seed)):
            kind = [*SPOILED][number // BAD] if number < BAD * len(SPOILED) else "other"
            image = image if kind == "other" else SPOILED[kind](image, BLURS[name])
            image.save(root / f"{kind}-{number:04d}.png")
        problems = run.check(root, out=Path(scratch) / "page.html")
    caught = {kind: {"found": 0, "others": 0} for kind in SPOILED}
    for problem, image_name in zip(problems["problem"], problems["name"], strict=True):
        if problem in caught:
            kind = image_name.partition("-")[0]
            caught[problem]["found"] += kind == problem
            caught[problem]["others"] += kind == "other"
    return caught


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--untrained", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    results: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "nearfar": nearfar.__version__,
    }
    for name in NAMES:
        run, data = nearfar.Run(given.runs / name), given.data / name
        if given.untrained:
            results[name] = untrained(run, data)
            continue
        results[name] = {
            "labels": labels_of(run, data, REPORTED),
            "leaks": leaks(run, data, REPORTED[0]),
            "defects": defects(run, data, name, REPORTED[0]),
        }
        print(name, json.dumps(results[name]), flush=True)
    given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
