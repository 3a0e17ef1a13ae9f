"""The tables of a file that benchmarks/encoders.py wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from nearfar.training.view_choice import PHOTOGRAPH
from nearfar.views import PRESETS

METRICS = {"knn": "kNN", "linear": "linear", "one_label": "1 label", "five_labels": "5 labels"}
BALANCED = {"knn_balanced": "kNN, balanced", "linear_balanced": "linear, balanced"}
MEASURES = {
    "rotation": "rotation",
    "lidar": "LiDAR",
    "rankme": "RankMe",
    "retrieval": "own-view retrieval",
}
BASELINES = ("raw pixels", "histogram", "hog", "pretrained", "at once")
LOSES = " **loses**"
POINT = 0.01  # by more than this a default loses to a baseline

Line = dict[str, Any]


def read(path: Path) -> list[Line]:
    """Return the lines of a file, none where there is no file; lines from before `--on` were of
    held-out images.
    """
    texts = path.read_text().splitlines() if path.is_file() else []
    return [{"on": "held-out"} | json.loads(text) for text in texts]


def measured(lines: Iterable[Line]) -> list[Line]:
    """Return the lines without the failures."""
    return [line for line in lines if "error" not in line]


def _header(left: str, alignment: str, columns: Iterable[str]) -> list[str]:
    """Return the two lines above a table whose columns of numbers follow those on the left."""
    names = list(columns)
    return [f"{left} | {' | '.join(names)} |", alignment + "|---:" * len(names) + "|"]


def _means(lines: Sequence[Line], columns: Iterable[str]) -> dict[str, float]:
    """Return the means over the seeds of those columns that every line has."""
    return {
        key: float(np.mean([line[key] for line in lines]))
        for key in columns
        if lines and all(key in line for line in lines)
    }


def table(lines: list[Line]) -> str:
    """Return means over seeds in Markdown, a section for each set and the images it was evaluated
    on; a contender that failed has the error in its row.
    """
    out = []
    for name, on in dict.fromkeys((line["set"], line["on"]) for line in lines):
        out += [f"\n## {name}, {on} images\n", *_header("| | seeds", "|---|---:", METRICS.values())]
        of_set = [line for line in lines if (line["set"], line["on"]) == (name, on)]
        for contender in dict.fromkeys(line["contender"] for line in of_set):
            of_contender = [line for line in of_set if line["contender"] == contender]
            of_seeds = measured(of_contender)
            means = _means(of_seeds, METRICS)
            cells = [f"{100 * mean:.1f}" for mean in means.values()]
            out += [f"| {contender} | {len(of_seeds)} | {' | '.join(cells)} |"] if of_seeds else []
            out += [
                f"| {contender}, seed {line['seed']} | 0 | {line['error']} |"
                for line in of_contender
                if "error" in line
            ]
    return "\n".join(out)


def baselines(lines: list[Line], on: str) -> str:
    """Return kNN accuracy and that with five labels a class of each baseline, means over seeds,
    with the numbers of images and the share of the largest class.

    A baseline that failed or has not been measured has no number.
    """
    of_images = [line for line in measured(lines) if line["on"] == on and "largest" in line]
    out = _header("| | images | evaluated | largest class", "|---|---:|---:|---:", BASELINES)
    for name in dict.fromkeys(line["set"] for line in of_images):
        of_set = [line for line in of_images if line["set"] == name]
        cells = []
        for contender in BASELINES:
            own_lines = [line for line in of_set if line["contender"] == contender]
            means = _means(own_lines, ("knn", "five_labels"))
            cells.append(" / ".join(f"{100 * mean:.1f}" for mean in means.values()))
        sizes = f"{of_set[0]['images']} | {of_set[0]['tested']} | {100 * of_set[0]['largest']:.1f}"
        out.append(f"| {name} | {sizes} | {' | '.join(cells)} |")
    return "\n".join(out)


def against(lines: list[Line], default: str) -> str:
    """Return, for each set and column, the mean of the default and the best of the baselines; the
    last row counts the sets where the default is within a point of the best, or above.

    **loses** marks the cells where the default is more than a point below. Sets without the
    default or without a baseline are left out. A line below the table names each failure of the
    default.
    """
    columns = METRICS | BALANCED
    out = _header("| | evaluated on", "|---|---", columns.values())
    failures = [
        f"\n{default} failed on {line['set']} ({line['on']}, seed {line['seed']}): {line['error']}"
        for line in lines
        if line["contender"] == default and "error" in line
    ]
    lines = measured(lines)
    rows: list[list[str]] = []
    for name, on in dict.fromkeys((line["set"], line["on"]) for line in lines):
        means = {
            contender: _means(
                [
                    line
                    for line in lines
                    if (line["set"], line["on"], line["contender"]) == (name, on, contender)
                ],
                columns,
            )
            for contender in (default, *BASELINES)
        }
        ours = means.pop(default)
        if ours and any(means.values()):
            rows.append([_beside(ours, means, key) for key in columns])
            out.append(f"| {name} | {on} | {' | '.join(rows[-1])} |")
    counts = [_not_lost([cell for cell in column if cell]) for column in zip(*rows, strict=True)]
    out.append(f"| **within a point of the best, or above** | | {' | '.join(counts)} |")
    return "\n".join(out + failures)


def _not_lost(cells: Sequence[str]) -> str:
    """Return how many cells are not marked as lost, of how many."""
    return f"{sum(not cell.endswith(LOSES) for cell in cells)} of {len(cells)}"


def _beside(ours: dict[str, float], baselines: dict[str, dict[str, float]], key: str) -> str:
    """Return a cell: our mean, the best baseline's and its name, and the mark of a loss."""
    measured = {name: means[key] for name, means in baselines.items() if key in means}
    if key not in ours or not measured:
        return ""
    best = max(measured, key=lambda name: measured[name])
    cell = f"{100 * ours[key]:.1f} / {100 * measured[best]:.1f} {best}"
    return cell + LOSES * (round(measured[best] - ours[key], 9) > POINT)


def presets(lines: list[Line], crops: dict[str, int]) -> str:
    """Return kNN accuracy and that with five labels a class of each preset and the defaults, with
    seed 0.

    crops: the side of the crops of each set, which decides what the default is.
    """
    crops = {
        name: crop for name, crop in crops.items() if any(line["set"] == name for line in lines)
    }
    by_run = {
        (line["set"], line["contender"]): line
        for line in measured(lines)
        if line["seed"] == 0 and line["on"] == "held-out"
    }
    for name, crop in crops.items():
        default = "keep 0.5" if crop >= PHOTOGRAPH else "keep 0"
        by_run[name, "default"] = by_run.get((name, default), {})
    out = [f"| | {' | '.join(crops)} |", "|---" * (1 + len(crops)) + "|"]
    for contender in ("default", *PRESETS):
        of_sets = [by_run.get((name, contender)) for name in crops]
        if any(of_sets):
            cells = [
                f"{100 * line['knn']:.1f} / {100 * line['five_labels']:.1f}" if line else ""
                for line in of_sets
            ]
            out.append(f"| {contender} | {' | '.join(cells)} |")
    return "\n".join(out)


def correlations(lines: list[Line]) -> str:
    """Return Spearman's rank correlation of each measure without labels with kNN accuracy, over a
    set's presets, seed 0 and held-out images.
    """
    of_presets = [
        line
        for line in measured(lines)
        if line["contender"] in PRESETS and line["seed"] == 0 and line["on"] == "held-out"
    ]
    out = _header("| | presets", "|---|---:", MEASURES.values())
    for name in dict.fromkeys(line["set"] for line in of_presets):
        own_lines = [line for line in of_presets if line["set"] == name]
        if len(own_lines) >= 4:
            ranks = [
                spearmanr([line["knn"] for line in own_lines], [line[key] for line in own_lines])[0]
                for key in MEASURES
            ]
            out.append(
                f"| {name} | {len(own_lines)} | {' | '.join(f'{rank:.2f}' for rank in ranks)} |"
            )
    return "\n".join(out)


def averaged(lines: list[Line], changes: Iterable[str]) -> str:
    """Return what averaging with changed images gains, as means over the trained encoders of a
    set.
    """
    out = _header("| | averaged | encoders", "|---|---|---:", METRICS.values())
    trained = [line for line in measured(lines) if line.get("epochs")]
    for name, change in product(dict.fromkeys(line["set"] for line in trained), changes):
        own_lines = [line for line in trained if line["set"] == name and f"{change}_knn" in line]
        if own_lines:
            gains = [
                f"{100 * np.mean([line[f'{change}_{key}'] - line[key] for line in own_lines]):+.1f}"
                for key in METRICS
            ]
            out.append(f"| {name} | {change} | {len(own_lines)} | {' | '.join(gains)} |")
    return "\n".join(out)
