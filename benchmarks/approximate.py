"""The approximate search for neighbours: CPU seconds, seconds, and the share that it finds.

    python benchmarks/approximate.py FEATURES --rows 50000 200000 --out docs/results/approximate.json

FEATURES: a folder of the features that `nearfar explore` keeps, or one such file. The 30 nearest of
each of the first so many rows are found among them, each number in a process of its own. With
--before, another checkout of nearfar does the same, each run before that of this one. With --new,
the last hundredth of the rows then counts as new, and the neighbours of all are brought up to date:
with new rows compared with all, and with their lists alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors import safe_open

from nearfar.neighbours import approximate_rows, nearest_rows

NEIGHBOURS = 30


def read_features(place: Path, rows: int) -> torch.Tensor:
    """Return the first rows of the features in a file or a folder."""
    files = sorted(place.glob("[0-9]*.safetensors")) if place.is_dir() else [place]
    parts: list[torch.Tensor] = []
    while files and sum(map(len, parts)) < rows:
        with safe_open(files.pop(0), "pt") as opened:
            parts.append(opened.get_tensor("features"))
    return torch.cat(parts)[:rows]


def measured(place: Path, rows: int) -> dict[str, float]:
    """Search, and return what it took."""
    features = read_features(place, rows)
    cpu, began = time.process_time(), time.perf_counter()
    _, share = approximate_rows(features, k=NEIGHBOURS)
    return {
        "cpu_seconds": time.process_time() - cpu,
        "seconds": time.perf_counter() - began,
        "share_found": share,
    }


def updated(place: Path, rows: int) -> dict[str, dict[str, float]]:
    """Bring neighbours up to date after a hundredth of the rows has come, and return what it took."""
    from nearfar.neighbours.approximate import learn_lists
    from nearfar.neighbours.updating import update_nearest

    features = read_features(place, rows)
    earlier = features[: -(rows // 100)]
    lists = learn_lists(earlier)
    before, _ = approximate_rows(earlier, k=NEIGHBOURS, lists=lists)
    given = torch.arange(rows).where(torch.arange(rows) < len(earlier), -1)
    true = nearest_rows(
        features, features[len(earlier) :], NEIGHBOURS, own=torch.arange(len(earlier), rows)
    ).index
    results = {}
    for name in ("compared with all", "by lists"):
        cpu, began = time.process_time(), time.perf_counter()
        own = lists.extended(features, given) if name == "by lists" else None
        near = update_nearest(features, before, given, NEIGHBOURS, own)
        assert near is not None
        same = near.index[len(earlier) :, :, None] == true[:, None]
        results[f"a hundredth new, {name}"] = {
            "cpu_seconds": time.process_time() - cpu,
            "seconds": time.perf_counter() - began,
            "share_found": float(same.any(1).float().mean()),
        }
    return results


def main() -> None:
    """Measure each number of rows in a process of its own, and write the numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("features", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", required=True)
    parser.add_argument("--before", type=Path, help="another checkout, to be run as well")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--new", action="store_true", help="a hundredth new, as well")
    parser.add_argument("--here", action="store_true", help="measure in this process")
    args = parser.parse_args()
    if args.here:
        work = updated if args.new else measured
        print(json.dumps(work(args.features, args.rows[0])))
        return
    checkouts = {"now": Path(__file__).parents[1]}
    if args.before is not None:
        checkouts = {"before": args.before, **checkouts}
    results: dict[str, dict[str, dict[str, float]]] = {}
    for rows in args.rows:
        for version, checkout in checkouts.items():
            command = [sys.executable, __file__, str(args.features), "--rows", str(rows), "--here"]
            own = os.environ | {"PYTHONPATH": str(checkout / "src")}
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=own)
            results.setdefault(str(rows), {})[version] = json.loads(done.stdout)
        if args.new:
            done = subprocess.run([*command, "--new"], stdout=subprocess.PIPE, check=True, env=own)
            results[str(rows)] |= json.loads(done.stdout)
    print(json.dumps(results, indent=2))
    if args.out is not None:
        known = json.loads(args.out.read_text()) if args.out.exists() else {}
        args.out.write_text(json.dumps(known | results, indent=2) + "\n")


if __name__ == "__main__":
    main()
