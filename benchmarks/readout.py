"""Readouts that a run could save: one trained net, read out and joined in several ways, on sets of many kinds (kinds.py).

    OMP_NUM_THREADS=1 python benchmarks/readout.py ../shared/data --sets flowers scans --seeds 0 --out docs/results/readout.jsonl
    OMP_NUM_THREADS=1 python benchmarks/readout.py ../shared/data --weights --sets stamps emoji \
        --out docs/results/readout-weights.jsonl
    python benchmarks/readout.py docs/results/readout.jsonl      # the table, means over seeds
    python benchmarks/readout.py docs/results/readout-weights.jsonl

The small net is trained once on each set and seed, with SimCLR and the default views; with --teacher also once by SCE from
the pretrained weights. Its features are the mean over the last map, and with a grid of 3 x 3 cells beside it; then rows
of unit length are put beside those of the frozen pretrained net (weight 1), of edges and of colours. All is measured on
every fifth training image (--on held-out), so that no test image influences a choice; --on test is for reports.
With --weights the trained net has several weights beside the pretrained one, and the lines hold the Inception score of 256
of the training images; linear accuracy, for which features are standardised, does not depend on a weight.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from encoders import default_plan
from kinds import ON, SETS, parts
from torch import Tensor

import nearfar
from nearfar.data import Images
from nearfar.device import hardware
from nearfar.evaluation import (
    colour_histogram,
    evaluate_features,
    extract,
    few_shot_accuracy,
    hog,
    knn_accuracy,
    raw_pixels,
)
from nearfar.networks import Encoder, load_encoder
from nearfar.networks.backbone import with_grid
from nearfar.networks.inception_score import class_probabilities, inception_score

SHOWN = (
    "raw pixels",
    "histogram",
    "hog",
    "pretrained",
    "trained",
    "trained on a grid",
    "pretrained, edges .5, trained .7",
    "pretrained, edges .5, colours .5, trained 1",
    "start",
    "adapted",
    "start, edges .5, adapted .7",
)
"""Rows of the table in the documentation."""
COLUMNS = {"knn": "kNN", "linear": "linear", "one_label": "1 label", "five_labels": "5 labels"}
GRID, KEEP_COLOUR = 3, 0.5
ALONE = ("raw pixels", "histogram", "hog", "pretrained")
PAIR = {"pretrained": 1.0, "hog": 0.5}
READOUTS: dict[str, Mapping[str, float]] = {
    "pretrained, edges .5": PAIR,
    "trained": {"trained": 1},
    "trained on a grid": {"grid": 1},
    "trained, edges .5": {"trained": 1, "hog": 0.5},
    "pretrained, edges .5, trained .7": {**PAIR, "trained": 0.7},
    "pretrained, edges .5, trained 1": {**PAIR, "trained": 1},
    "pretrained, edges .5, colours .5, trained .7": {**PAIR, "histogram": 0.5, "trained": 0.7},
    "pretrained, edges .5, colours .5, trained 1": {**PAIR, "histogram": 0.5, "trained": 1},
}
TAUGHT: dict[str, Mapping[str, float]] = {
    "taught": {"taught": 1},
    "pretrained, edges .5, taught .7": {"pretrained": 1, "hog": 0.5, "taught": 0.7},
}


WEIGHTS: dict[str, Mapping[str, float]] = {
    "pretrained": {"pretrained": 1},
    "pretrained, edges .5": PAIR,
    **{f"and trained {weight:g}": {**PAIR, "trained": weight} for weight in (0.35, 0.5, 0.7)},
}
SCORED = 256  # images of the Inception score


ADAPTED: dict[str, Mapping[str, float]] = {
    "start": {"start": 1},
    "adapted": {"adapted": 1},
    "start, edges .5, adapted .7": {"start": 1, "hog": 0.5, "adapted": 0.7},
}


def adapted_encoders(images: Images, seed: int, epochs: float) -> dict[str, Encoder]:
    """Adapt the pretrained net with the defaults of --adapt; return it with its start."""
    with tempfile.TemporaryDirectory() as folder:
        run = nearfar.pretrain(
            images,
            out=str(Path(folder) / "run"),
            init="pretrained",
            adapt=True,
            epochs=epochs,
            batch_size=128,
            micro_batch=32,
            precision="32-true",
            beside="none",
            seed=seed,
        )
        start = load_encoder(run.path / "starting")
        return {"start": start, "adapted": load_encoder(run.path)}


def trained_encoder(images: Images, name: str, seed: int, **options: Any) -> Encoder:
    """Train the small net on a set for its epochs, and return it with the mean over its last map."""
    kind = SETS[name]
    views = default_plan(images, kind.crop)
    keep = KEEP_COLOUR if views.name.startswith("photographs") else 0.0
    with tempfile.TemporaryDirectory() as folder:
        run = nearfar.pretrain(
            images,
            out=str(Path(folder) / "run"),
            encoder="small",
            views=replace(views, keep_colour=keep),
            crop_size=kind.crop,
            epochs=kind.epochs,
            precision="32-true",
            grid=1,
            beside="none",
            seed=seed,
            **options,
        )
        return load_encoder(run.path)


def all_encoders(train: Images, name: str, seed: int, teacher: bool) -> dict[str, Any]:
    """Return the encoders by the names in `READOUTS` and `ALONE`, and with a teacher in `TAUGHT`."""
    encoders: dict[str, Any] = {"raw pixels": raw_pixels, "histogram": colour_histogram, "hog": hog}
    encoders["pretrained"] = nearfar.join(["pretrained"], channels=train.channels)
    encoders["trained"] = own = trained_encoder(train, name, seed)
    on_grid = Encoder(
        with_grid(own.backbone, GRID),
        own.image_size,
        own.channels,
        own.mean.flatten().tolist(),
        own.std.flatten().tolist(),
        own.value_range,
    )
    encoders["grid"] = on_grid
    if teacher:
        encoders["taught"] = trained_encoder(train, name, seed, method="sce", teacher="pretrained")
    return encoders


def joined(features: Mapping[str, list[Tensor]], weights: Mapping[str, float]) -> list[Tensor]:
    """Put features side by side, as rows of the length of their weights; alone they stay as they are."""
    if len(weights) == 1:
        return features[next(iter(weights))]
    sides = (
        [w * F.normalize(features[key][i], dim=1) for key, w in weights.items()] for i in (0, 1)
    )
    return [torch.cat(parts, 1) for parts in sides]


def measure(
    data: Path, name: str, seed: int, on: str, teacher: bool, adapt: float | None
) -> list[dict[str, Any]]:
    """Return a line for each baseline and readout; those of an adapted net alone with `adapt`."""
    train, held = parts(SETS[name], data, on)
    readouts: dict[str, Mapping[str, float]]
    if adapt is not None:
        encoders = {"hog": hog, **adapted_encoders(train, seed, adapt)}
        readouts = ADAPTED
    else:
        encoders = all_encoders(train, name, seed, teacher)
        readouts = {part: {part: 1.0} for part in ALONE} | READOUTS | (TAUGHT if teacher else {})
    features = {
        key: [extract(encoder, part) for part in (train, held)] for key, encoder in encoders.items()
    }
    lines = []
    for readout, weights in readouts.items():
        fit, tested = joined(features, weights)
        accuracies = evaluate_features(fit, train.labels, tested, held.labels, seed=0)
        numbers = {key: float(accuracies[key]) for key in COLUMNS if key in accuracies}
        lines.append({"set": name, "readout": readout, "seed": seed, "on": on, **numbers})
    return lines


def measure_weights(data: Path, name: str, seed: int, on: str) -> list[dict[str, Any]]:
    """Return a line for each weight of the trained net, with the Inception score of the images."""
    train, held = parts(SETS[name], data, on)
    rows = torch.linspace(0, len(train) - 1, min(SCORED, len(train))).long()
    score = inception_score(class_probabilities(train.gather(rows)))
    encoders = {
        "pretrained": nearfar.join(["pretrained"], channels=train.channels),
        "hog": hog,
        "trained": trained_encoder(train, name, seed),
    }
    features = {
        key: [extract(encoder, part) for part in (train, held)] for key, encoder in encoders.items()
    }
    lines = []
    for readout, weights in WEIGHTS.items():
        fit, tested = joined(features, weights)
        labelled = (fit, train.labels, tested, held.labels)
        few = few_shot_accuracy(*labelled)
        numbers = {
            "knn": knn_accuracy(*labelled),
            "one_label": few[1].mean,
            "five_labels": few[5].mean,
        }
        about = {"set": name, "readout": readout, "seed": seed, "on": on}
        lines.append({**about, "inception_score": score, **numbers})
    return lines


def weights_table(lines: list[dict[str, Any]]) -> str:
    """Return a row for each set, the largest Inception score first: kNN / 1 label / 5 labels."""
    names = list(dict.fromkeys(line["readout"] for line in lines))
    out = [f"| | Inception score | {' | '.join(names)} |", f"|---|{'---:|' * (len(names) + 1)}"]
    scores = {line["set"]: line["inception_score"] for line in lines}
    for name in sorted(scores, key=lambda name: -scores[name]):
        cells = []
        for readout in names:
            same = [line for line in lines if (line["set"], line["readout"]) == (name, readout)]
            numbers = [
                100 * float(np.mean([line[key] for line in same]))
                for key in ("knn", "one_label", "five_labels")
            ]
            cells.append(" / ".join(f"{number:.1f}" for number in numbers))
        out.append(f"| {name} | {scores[name]:.1f} | {' | '.join(cells)} |")
    return "\n".join(out)


def table(lines: list[dict[str, Any]]) -> str:
    """Return means over the seeds in %, and marks: where a readout with the trained net is more than a point
    below the best of the rows that need no training, in a column.
    """
    out = [
        "| | | kNN | linear | 1 label a class | 5 labels a class |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name in dict.fromkeys(line["set"] for line in lines):
        of_set = [line for line in lines if line["set"] == name]
        means = {
            readout: {
                key: 100
                * float(np.mean([line[key] for line in of_set if line["readout"] == readout]))
                for key in COLUMNS
            }
            for readout in dict.fromkeys(line["readout"] for line in of_set)
        }
        rivals = [rival for rival in (*ALONE, "start") if rival in means]
        best = {key: max(means[rival][key] for rival in rivals) for key in COLUMNS}
        for readout, numbers in means.items():
            marked = [
                f"{value:.1f}{' (-)' if readout not in rivals and value < best[key] - 1 else ''}"
                for key, value in numbers.items()
            ]
            out.append(f"| {name} | {readout} | {' | '.join(marked)} |")
    return "\n".join(out)


def main() -> None:
    """Measure, or print the table of a file of results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "data", type=Path, help="folder of data sets, or a .jsonl of results to print"
    )
    parser.add_argument(
        "--sets", nargs="+", default=["flowers", "scans", "letters", "bees"], choices=list(SETS)
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--on", choices=ON, default="held-out")
    parser.add_argument(
        "--teacher", action="store_true", help="also train by SCE from the pretrained weights"
    )
    parser.add_argument(
        "--adapt", type=float, metavar="EPOCHS", help="adapt the pretrained net instead"
    )
    parser.add_argument(
        "--weights", action="store_true", help="the trained net by several weights instead"
    )
    parser.add_argument("--shown", action="store_true", help="print the documentation's rows alone")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.data.suffix == ".jsonl":
        lines = [json.loads(line) for line in given.data.read_text().splitlines()]
        if "inception_score" in lines[0]:
            print(weights_table(lines))
            return
        shown = [line for line in lines if not given.shown or line["readout"] in SHOWN]
        print(table(shown))
        return
    for name in given.sets:
        for seed in given.seeds:
            if given.weights:
                lines = measure_weights(given.data, name, seed, given.on)
            else:
                lines = measure(given.data, name, seed, given.on, given.teacher, given.adapt)
            cpu = hardware()["processor"]
            for line in lines:
                line["cpu"] = cpu
            text = "".join(json.dumps(line) + "\n" for line in lines)
            print(text, end="", flush=True)
            if given.out is not None:
                with given.out.open("a") as file:
                    file.write(text)


if __name__ == "__main__":
    main()
