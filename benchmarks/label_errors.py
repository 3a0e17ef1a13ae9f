"""Which planted wrong labels `nearfar check` lists, beside the rule of three times as probable.

    OMP_NUM_THREADS=1 python benchmarks/label_errors.py ../shared/data
    python benchmarks/label_errors.py docs/results/label-errors.jsonl       # the table of docs/check.md

Training images of six sets, at most 2000 of each, with features of colours and edges and with those
of the weights of the package. A share of the labels is replaced by another class, drawn evenly. The
rule was chosen on these sets with other seeds. Each case appends a line to --out; cases that are in
it already are skipped.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path

import numpy as np
from encoders import SETS
from torch import Tensor

import nearfar
from nearfar.data import Images
from nearfar.evaluation import extract
from nearfar.evaluation.label_errors import label_probabilities, likely_wrong
from nearfar.networks import named_encoder
from nearfar.run_features import COPIES

NAMES = ("scans", "letters", "bees", "flowers", "cifar10", "imagenette")
FEATURES = ("colours and edges", "weights of the package")
SHARES, SEEDS, MOST = (0.0, 0.05, 0.1, 0.2), (11, 12), 2000
FACTOR = 3.0  # of the rule before


def features_of(images: Images, kind: str) -> Tensor:
    """Return features of one of the kinds, [images, dim]."""
    size, channels = images.image_size, images.channels
    if kind == "colours and edges":
        encoder = nearfar.join(COPIES, image_size=size, channels=channels)
    else:
        encoder = named_encoder("nearfar", size, channels)
    return extract(encoder, images)


def planted(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return labels of which a share is replaced by another class, and which of them are wrong."""
    chance, wrong = np.random.default_rng(seed), np.zeros(len(labels), bool)
    wrong[chance.permutation(len(labels))[: round(share * len(labels))]] = True
    classes = int(labels.max()) + 1
    other = (labels + chance.integers(1, classes, len(labels))) % classes
    return np.where(wrong, other, labels), wrong


def scores(listed: np.ndarray, wrong: np.ndarray) -> dict[str, float | None]:
    """Return the share that is listed, and precision and recall, None where there are none."""
    right = int(wrong[listed].sum())
    return {
        "listed": len(listed) / len(wrong),
        "precision": right / len(listed) if len(listed) and wrong.any() else None,
        "recall": right / int(wrong.sum()) if wrong.any() else None,
    }


def measure(x: Tensor, labels: np.ndarray, share: float, seed: int) -> dict[str, object]:
    """Return the scores of both rules on one case, and how well the labels are predicted."""
    given, wrong = planted(labels, share, seed)
    _, number = np.unique(given, return_inverse=True)
    chance = label_probabilities(x, number, seed)
    found = likely_wrong(chance, number)
    own, others = chance[np.arange(len(x)), number], chance.copy()
    others[np.arange(len(x)), number] = -1
    before = np.flatnonzero(others.max(1) > FACTOR * own)
    assert found.predicted is not None
    return {
        "accuracy": found.predicted.accuracy,
        "now": scores(found.row, wrong),
        "before": scores(before, wrong),
    }


def table(path: Path) -> str:
    """Return means over the cases of each share in Markdown, in %."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    head = "| wrong | cases | listed | precision | recall | before: listed | precision | recall |"
    out = [head, "|---" * 8 + "|"]
    for share in sorted({line["share"] for line in lines}):
        some = [line for line in lines if line["share"] == share]
        cells = []
        for rule, key in product(("now", "before"), ("listed", "precision", "recall")):
            known = [line[rule][key] for line in some if line[rule][key] is not None]
            cells.append(f"{100 * np.mean(known):.1f}" if known else "-")
        out.append(f"| {100 * share:g} | {len(some)} | {' | '.join(cells)} |")
    accuracies = [line["accuracy"] for line in lines if line["share"] == 0]
    empty = sum(not line["now"]["listed"] for line in lines if line["share"] > 0)
    planted_cases = sum(line["share"] > 0 for line in lines)
    said = f"Labels are predicted in {100 * min(accuracies):.0f} to {100 * max(accuracies):.0f} %"
    return "\n".join([*out, "", f"{said}; nothing is listed in {empty} of {planted_cases} cases."])


def main() -> None:
    """Run the cases that are not in the file yet, or print the table of a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="the folder of data sets, or a file of lines")
    parser.add_argument("--sets", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--out", type=Path, default=Path("docs/results/label-errors.jsonl"))
    given = parser.parse_args()
    if given.data.is_file():
        print(table(given.data))
        return
    done = given.out.read_text().splitlines() if given.out.is_file() else []
    known = [json.loads(line) for line in done]
    for name in given.sets:
        images = SETS[name].load(given.data)
        images = images.subset(range(min(MOST, len(images))))
        for kind in FEATURES:
            x = features_of(images, kind)
            for share, seed in product(SHARES, SEEDS):
                case = {"set": name, "features": kind, "share": share, "seed": seed}
                if any(case.items() <= line.items() for line in known):
                    continue
                line = case | measure(x, images.labels, share, seed)
                with given.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(case, line["now"], flush=True)


if __name__ == "__main__":
    main()
