"""Cost of exact nearest neighbours: seconds for all pairs, or for some queries of a larger matrix, and memory.

    OMP_NUM_THREADS=2 python benchmarks/neighbours.py --out docs/results/neighbours-speed.json

Rows are random unit vectors, the hardest case for any index. If all pairs would take long, some thousand queries are
timed and extrapolated to all rows, as every query takes the same work. The contenders are a plain loop over tiles with
`topk`, as the kNN classifier had, and scikit-learn's brute force; the three take turns.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from nearfar.neighbours import nearest_rows


def plain(rows: Tensor, queries: Tensor, k: int, chunk: int = 2048) -> Tensor:
    """Distances by a loop over tiles that keeps the k best."""
    out = []
    for some in F.normalize(queries, dim=1).split(chunk):
        best = torch.empty(len(some), 0)
        for tile in F.normalize(rows, dim=1).split(chunk):
            best = torch.cat([best, (some @ tile.T).topk(min(k, len(tile)), dim=1).values], 1)
            best = best.topk(min(k, best.shape[1]), dim=1).values
        out.append(1 - best)
    return torch.cat(out)


def scikit_learn(rows: Tensor, queries: Tensor, k: int) -> Tensor:
    """Distances by scikit-learn's brute force: unit rows, half the squared Euclidean distance."""
    unit = F.normalize(rows, dim=1).numpy()
    found = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(unit)
    return torch.from_numpy(found.kneighbors(F.normalize(queries, dim=1).numpy())[0]).square() / 2


def seconds(function: Callable[[], Tensor]) -> tuple[float, Tensor]:
    """Time and result of one call."""
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--queries", type=int, default=4096)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--others-up-to", type=int, default=100_000, help="rows for the loop and scikit-learn"
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    lines = []
    for count in args.rows:
        rows = F.normalize(
            torch.randn(count, args.dim, generator=torch.Generator().manual_seed(0)), dim=1
        )
        queries = rows[: args.queries].clone()
        ways: dict[str, Callable[[], Tensor]] = {
            "ours": lambda: nearest_rows(rows, queries, args.k).distance  # noqa: B023
        }
        if count <= args.others_up_to:
            ways["plain loop"] = lambda: plain(rows, queries, args.k)  # noqa: B023
            ways["scikit-learn"] = lambda: scikit_learn(rows, queries, args.k)  # noqa: B023
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(args.rounds):
            results = {}
            for name, way in ways.items():
                took, results[name] = seconds(way)
                taken[name].append(took)
        build, _ = seconds(lambda: F.normalize(rows, dim=1))  # noqa: B023
        best = {name: min(times) for name, times in taken.items()}
        worst = {
            name: float((found - results["ours"]).abs().max()) for name, found in results.items()
        }
        line = {
            "rows": count,
            "dim": args.dim,
            "k": args.k,
            "queries": len(queries),
            "threads": torch.get_num_threads(),
            "unit_rows_s": round(build, 3),
            "seconds": {name: round(one, 3) for name, one in best.items()},
            "all_rows_s": {
                name: round((one - build) * count / len(queries) + build, 1)
                for name, one in best.items()
            },
            "largest_difference": worst,
            "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        }
        print(json.dumps(line), flush=True)
        lines.append(line)
    if args.out is not None:
        args.out.write_text(json.dumps(lines, indent=2) + "\n")


if __name__ == "__main__":
    main()
