"""Clusters compared with the labels: k-means on the plane, as in `nearfar cluster`, and on the features.

    python benchmarks/clusters.py digits runs/photos=../shared/data/imagenette runs/small=../shared/data/cifar10 \
        --out docs/results/clusters.json

Each argument is RUN=DATA; the split "test" is clustered, at most 4000 random images; `digits` are scikit-learn's.
For both methods, with the number of clusters that the largest silhouette chooses and with as many clusters as classes:
the normalised mutual information with the labels and the adjusted Rand index, over 3 seeds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from rich.console import Console
from sklearn.cluster import MiniBatchKMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, silhouette_score
from torch import Tensor

from nearfar.maps.clusters import BATCH, COUNTS, JUDGED, STARTS, clusters_of
from nearfar.run import Run
from nearfar.run_features import open_featured

MOST, SEEDS = 4000, 3


def opened(words: str) -> tuple[str, Tensor, np.ndarray]:
    """Name, unit features and labels."""
    if words == "digits":
        digits = load_digits()
        return (
            words,
            torch.nn.functional.normalize(torch.from_numpy(digits.data).float(), dim=1),
            digits.target,
        )
    run, _, data = words.partition("=")
    known = open_featured(Run.of(run), data, "test", None, Console(quiet=True))
    chosen = torch.randperm(len(known.images), generator=torch.Generator().manual_seed(0))[:MOST]
    assert known.images.labels is not None
    labels = np.asarray(known.images.labels)[chosen.numpy()]
    return (
        Path(data).name,
        torch.nn.functional.normalize(known.features[chosen].float(), dim=1),
        labels,
    )


def in_features(rows: Tensor, count: int | None, seed: int) -> np.ndarray:
    """k-means of the features themselves, the number chosen in the same way."""
    best = (-np.inf, np.zeros(len(rows)))
    for tried in COUNTS if count is None else [count]:
        settings = dict(batch_size=BATCH, n_init=STARTS, random_state=seed)
        labels = MiniBatchKMeans(tried, **settings).fit(rows.numpy()).labels_
        best = max(
            best, (silhouette_score(rows[:JUDGED], labels[:JUDGED]), labels), key=lambda one: one[0]
        )
    return best[1]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    lines = []
    for words in given.sets:
        name, rows, labels = opened(words)
        classes = len(np.unique(labels))
        for way, group in (
            ("plane", lambda *a: clusters_of(*a).number.numpy()),
            ("features", in_features),
        ):
            for count in (None, classes):
                found = [group(rows, count, seed) for seed in range(SEEDS)]
                line = {
                    "data": name,
                    "images": len(rows),
                    "classes": classes,
                    "way": way,
                    "chosen": count is None,
                    "groups": [len(np.unique(one)) for one in found],
                    "nmi": round(
                        mean(normalized_mutual_info_score(labels, one) for one in found), 3
                    ),
                    "ari": round(mean(adjusted_rand_score(labels, one) for one in found), 3),
                }
                print(json.dumps(line))
                lines.append(line)
    given.out.write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
