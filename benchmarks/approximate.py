"""Cost of an approximate search against comparing all pairs: seconds, recall and memory.

    OMP_NUM_THREADS=2 python benchmarks/approximate.py RUN/features.safetensors --rows 50000 200000 1000000 \
        --out docs/results/approximate.json

The rows are the features of a run's images, saved by `nearfar search`. Beyond their number they are repeated, each time
with noise of a tenth of their standard deviation, so that neighbours are neither copies nor random. All pairs are timed
on 4096 queries and extrapolated to all rows, as every query takes the same work.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from nearfar.neighbours import approximate_rows, nearest_rows

QUERIES = 4096


def repeated(features: Tensor, count: int) -> Tensor:
    """The features over and over, up to `count` rows; repetitions with noise."""
    generator = torch.Generator().manual_seed(0)
    rows = features[torch.arange(count) % len(features)]
    noise = 0.1 * features.std(0) * torch.randn(rows.shape, generator=generator)
    noise[: len(features)] = 0
    return rows + noise


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("features", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000, 200_000, 1_000_000])
    parser.add_argument("--k", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    features = load_file(args.features)["features"]
    lines = []
    for count in args.rows:
        rows = repeated(features, count)
        began = time.perf_counter()
        nearest_rows(rows, rows[:QUERIES], args.k, own=torch.arange(QUERIES))
        exact = (time.perf_counter() - began) * count / QUERIES
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        _, share = approximate_rows(rows, k=args.k)
        line = {
            "rows": count,
            "dim": rows.shape[1],
            "k": args.k,
            "threads": torch.get_num_threads(),
            "all_pairs_s": round(exact, 1),
            "approximate_s": round(time.perf_counter() - began, 1),
            "share": round(share, 4),
            "peak_mb_before": round(before / 1024),
            "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        }
        print(json.dumps(line), flush=True)
        lines.append(line)
    if args.out is not None:
        args.out.write_text(json.dumps(lines, indent=2) + "\n")


if __name__ == "__main__":
    main()
