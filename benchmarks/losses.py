"""Exactness, memory and time of every loss beside its peers in one run: `python
benchmarks/losses.py`.

1. Every loss is compared with its plain form in float64, value and gradient.
2. Peak memory of one forward and backward, each in a fresh process, above inputs and gradients.
3. Time in rounds that visit all losses of one size in turn: median and minimum.
The table (markdown), the plot and the raw numbers go to docs/benchmark-losses.*; the targets are
the last lines. Linux only. The peers have an environment of their own (peers.py); if it cannot be
made the run goes on without them.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import peers

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
GIB = 1 << 30
REPEATABLE = (
    6.0  # seconds: what takes longer is not repeated, its one run in the memory pass is shown
)
BRIEF = 1.0  # seconds: what takes less is run once to warm up before it is timed

sys.path.append(str(ROOT))  # for references/


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Every loss and its peers: exactness, memory and time side by side."
    )
    sizes = [128 << k for k in range(10)]
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=sizes, help="batch sizes (default 128 ... 65536)"
    )
    parser.add_argument(
        "--dims", type=int, nargs="+", default=[128, 512], help="embedding dims (default 128 512)"
    )
    parser.add_argument(
        "--queue", type=int, default=65536, help="rows of the queue (default 65536)"
    )
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="threads (default: all cores)"
    )
    parser.add_argument(
        "--budget", type=float, default=20.0, help="seconds of timing rounds per size (default 20)"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=50.0,
        help="seconds one run may take (default 50), a fifth at further dims",
    )
    parser.add_argument("--memory", type=float, default=8.0, help="GiB a loss may use (default 8)")
    parser.add_argument(
        "--only", nargs="+", default=[], help="only losses whose name contains one of these words"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=DOCS,
        help="folder for the table, plot and numbers (default docs/)",
    )
    parser.add_argument(
        "--without-peers", action="store_true", help="do not install or run the peers"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a trial: sizes 128 and 256, dim 128, queue 4096"
    )
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.sizes, chosen.dims, chosen.queue, chosen.budget = [128, 256], [128], 4096, 2.0
    return chosen


def enter_environment(chosen: argparse.Namespace) -> bool:
    """Start again under the peers' interpreter; False if there are no peers."""
    if chosen.without_peers or peers.inside_environment():
        return not chosen.without_peers
    try:
        python = peers.peer_python()
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        print(f"{error}; going on without the peers", flush=True)
        return False
    os.execv(python, [str(python), *sys.argv])


def check(cases: list, chosen: argparse.Namespace, limits: dict[str, Any]) -> list[dict]:
    """Agreement with float64 for each case, the worst of its sizes, each as a line and a
    dictionary.
    """
    from losses_cases import QUEUE_BATCH, Shape
    from losses_measure import agreement, in_fresh_process
    from losses_report import verdict

    results = []
    for case in cases:
        if case.quantity.views:
            shapes = [Shape(QUEUE_BATCH, chosen.dims[0], chosen.queue)]
        else:
            batches = case.check_batches or ((96,) if chosen.quick else (96, 1280))
            batches = [max(batch, case.least_batch) for batch in batches]
            shapes = [Shape(batch, chosen.dims[0]) for batch in batches]
        outcomes = [
            in_fresh_process(agreement, case, shape, seconds=300, **limits) for shape in shapes
        ]
        worst = max(outcomes, key=lambda outcome: outcome.get("gradient_error", float("inf")))
        results.append(
            {"case": case.name, "owner": case.owner, "quantity": case.quantity.name, **worst}
        )
        results[-1]["contrastive"] = case.quantity.contrastive
        results[-1]["verdict"] = verdict(results[-1]) + (f"; {case.note}" if case.note else "")
        print(f"check   {case.name:42} {results[-1]['verdict']}", flush=True)
    return results


def measure_memory(
    cases: list, shapes: list, chosen: argparse.Namespace, limits: dict[str, Any]
) -> list[dict]:
    """One row per case and shape; a case that failed or would take too long at one size is not run
    at larger ones.
    """
    from losses_measure import MIB, in_fresh_process, memory

    rows: list[dict] = []
    last: dict[tuple[str, int], tuple[Any, dict]] = {}
    for shape in shapes:
        for case in cases:
            limit = chosen.limit * case.patience / (1 if shape.dim == chosen.dims[0] else 5)
            if bool(case.quantity.views) != bool(shape.queue) or shape.batch < case.least_batch:
                continue
            smaller, before = last.get((case.name, shape.dim), (None, {}))
            growth = case.quantity.floor(shape) / case.quantity.floor(smaller) if smaller else 1.0
            projected = before.get("seconds", 0.0) * growth
            if "error" in before:
                row = {
                    "error": before["error"]
                    if "not run" in before["error"]
                    else f"not run: failed at {smaller.batch}"
                }
            elif projected > limit:
                row = {"error": f"not run: about {projected:.0f} s, the limit is {limit:.0f} s"}
            else:
                row = in_fresh_process(memory, case, shape, seconds=4 * limit, **limits)
            last[case.name, shape.dim] = shape, row
            rows.append(
                {
                    "case": case.name,
                    "owner": case.owner,
                    "quantity": case.quantity.name,
                    **vars(shape),
                    **row,
                }
            )
            rows[-1]["floor"], rows[-1]["contrastive"] = (
                case.quantity.floor(shape),
                case.quantity.contrastive,
            )
            shown = (
                row.get("error")
                or f"{row['extra_bytes'] / MIB:9.1f} MiB {1000 * row['seconds']:10.1f} ms"
            )
            print(f"memory  {case.name:42} B {shape.batch:<6} d {shape.dim:<4} {shown}", flush=True)
    return rows


def measure_time(
    cases: list, shapes: list, rows: list[dict], chosen: argparse.Namespace, limits: dict[str, Any]
) -> None:
    """Add samples, median, minimum and the GEMM rate of the same rounds to the rows of
    measure_memory.
    """
    from losses_measure import in_fresh_process, times

    for shape in shapes:
        here = {
            row["case"]: row for row in rows if {**row, **vars(shape)} == row and "error" not in row
        }
        chosen_cases = [
            case for case in cases if case.name in here and here[case.name]["seconds"] < REPEATABLE
        ]
        warm = {case.name for case in chosen_cases if here[case.name]["seconds"] < BRIEF}
        # rounds longer than the budget are still done three times
        outcome = in_fresh_process(
            times, chosen_cases, shape, warm, chosen.budget, (3, 50), seconds=900, **limits
        )
        if "error" in outcome:
            print(
                f"time    B {shape.batch} d {shape.dim}: {outcome['error']}; single runs are shown",
                flush=True,
            )
        for name, row in here.items():
            samples = [round(sample, 7) for sample in outcome.get("samples", {}).get(name, [])]
            row["samples"], row["rounds"] = samples, len(samples)
            row["median"] = statistics.median(samples) if samples else row["seconds"]
            row["minimum"] = min(samples, default=row["seconds"])
            row["gemm"] = statistics.median(outcome.get("gemm", [0.0]))
            print(
                f"time    {name:42} B {shape.batch:<6} d {shape.dim:<4} "
                f"{1000 * row['median']:10.2f} ms"
                f" (min {1000 * row['minimum']:.2f}, {row['rounds']} rounds)",
                flush=True,
            )


def machine(chosen: argparse.Namespace) -> dict[str, Any]:
    with open("/proc/cpuinfo") as cpu:
        model = next(
            (line.split(":")[1].strip() for line in cpu if line.startswith("model name")),
            platform.machine(),
        )
    packages = ["torch", "lightly", "pytorch-metric-learning", "open_clip_torch", "libauc"]
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "cpu": model,
        "threads": chosen.threads,
        "versions": versions,
        "date": f"{datetime.date.today()}",
    }


def available_memory() -> int:
    with open("/proc/meminfo") as memory:
        return 1024 * int(
            next(line for line in memory if line.startswith("MemAvailable")).split()[1]
        )


def main() -> None:
    chosen = options(sys.argv[1:])
    with_peers = enter_environment(chosen)
    import losses_report
    from losses_cases import NEARFAR, PEERS, PLAIN, QUEUE_BATCH, Shape
    from losses_measure import in_fresh_process, on_gpu

    began = time.perf_counter()
    limits = {
        "threads": chosen.threads,
        "memory": int(min(chosen.memory * GIB, 0.7 * available_memory())),
    }
    cases = [*NEARFAR, *PLAIN, *(PEERS if with_peers else [])]
    cases = [
        case for case in cases if not chosen.only or any(word in case.name for word in chosen.only)
    ]
    shapes = [Shape(batch, dim) for dim in chosen.dims for batch in sorted(chosen.sizes)]
    shapes += [Shape(QUEUE_BATCH, dim, chosen.queue) for dim in chosen.dims]

    run: dict[str, Any] = {
        "machine": machine(chosen),
        "limits": {**limits, "seconds": chosen.limit},
    }
    run["checks"] = check(cases, chosen, limits)
    run["rows"] = measure_memory(cases, shapes, chosen, limits)
    measure_time(cases, shapes, run["rows"], chosen, limits)
    run["gpu"] = in_fresh_process(on_gpu, threads=chosen.threads, memory=64 * GIB, seconds=300)
    run["seconds"] = time.perf_counter() - began

    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "benchmark-losses.json").write_text(
        json.dumps(run).replace('{"case"', '\n{"case"') + "\n"
    )
    losses_report.plot(run, chosen.out / "benchmark-losses.png")
    text = losses_report.markdown(run)
    (chosen.out / "benchmark-losses.md").write_text(text)
    print("\n" + text)


if __name__ == "__main__":
    main()
