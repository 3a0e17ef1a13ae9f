"""Run many methods on the same images and write one table: `python -m tools.compare TABLE --data DATA`.

Every run is a process of its own with the command line's verbs, so what the table says can be had again by hand; its
folder keeps all files. Accuracies are those of the last epoch on the test split.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nearfar.methods import method_names
from nearfar.training import Settings, read_metrics

CIFAR = ["--limit", "10000", "--precision", "bf16-mixed"]
SACLR = {
    f"SACLR-{m} {scale}": f"saclr --negatives {m} --scale {scale}" for scale in ("matrix", "row") for m in ("1", "all")
}
PAPERS = {"SimCLR": "simclr", "DCL": "dcl", "SogCLR": "sogclr", "iSogCLR": "isogclr", "SigCLR": "sigclr"}
PAPERS |= {"MoCo v2": "moco-v2", "ReSSL": "ressl", "SCE": "sce", "MoCo-M": "moco-m", "LORAC": "lorac"}
TABLES: dict[str, dict[str, Any]] = {
    "cifar10-20": dict(
        runs={"SACLR": "saclr", "SimCLR": "simclr", "SigCLR": "sigclr"}, options=[*CIFAR, "--epochs", "20"]
    ),
    "cifar10-10": dict(runs=SACLR | PAPERS, options=[*CIFAR, "--epochs", "10"]),
    "digits": dict(runs={name: name for name in method_names()}, options=["--epochs", "20"], seeds=3),
}


def run_one(data: str, folder: Path, method: str, options: list[str], baselines: bool) -> None:
    """Pretrain and evaluate one method in processes of their own, unless the folder is finished already."""
    if (folder / "results.json").is_file():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    pretrain = ["pretrain", data, "--method", *method.split(), *options, "--out", str(folder)]
    started = time.perf_counter()
    with folder.with_suffix(".log").open("w") as log:
        child = subprocess.Popen([sys.executable, "-m", "nearfar", *pretrain], stdout=log, stderr=log)
        _, status, usage = os.wait4(child.pid, 0)
        if status:
            raise RuntimeError(f"{folder.name} failed, see {folder.with_suffix('.log')}")
        cost = {
            "seconds": time.perf_counter() - started,
            "peak_mib": usage.ru_maxrss / 1024,
            "command": " ".join(pretrain),
        }
        (folder / "cost.json").write_text(json.dumps(cost))
        evaluate = ["evaluate", str(folder), "--baselines", str(baselines).lower()]
        subprocess.run([sys.executable, "-m", "nearfar", *evaluate], stdout=log, stderr=log, check=True)


def run_table(name: str, data: str, out: Path, jobs: int, only: Container[str] = ()) -> None:
    """Run a table, or `only` some rows, `jobs` runs at a time; a run that fails is told and the others go on."""
    table = TABLES[name]
    waiting, lock = [], threading.Lock()
    for seed in range(table.get("seeds", 1)):
        for number, (label, method) in enumerate(table["runs"].items()):
            if only and label not in only:
                continue
            folder = out / name / f"{label.replace(' ', '-').lower()}-{seed}"
            waiting.append((data, folder, method, [*table["options"], "--seed", str(seed)], number == 0))

    def work(job: tuple[str, Path, str, list[str], bool]) -> None:
        try:
            run_one(*job)
            line = f"{job[1].name}: {json.loads((job[1] / 'results.json').read_text())['trained']}"
        except (RuntimeError, subprocess.CalledProcessError) as error:
            line = str(error)
        with lock:
            print(line, flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, waiting))


def summary(name: str, out: Path) -> list[dict[str, Any]]:
    """Collect a table's rows from its run folders: mean and deviation over seeds of each accuracy, time and memory."""
    table = TABLES[name]
    rows: list[dict[str, Any]] = []
    for number, label in enumerate(table["runs"]):
        stem = label.replace(" ", "-").lower()
        folders = [out / name / f"{stem}-{seed}" for seed in range(table.get("seeds", 1))]
        done = [folder for folder in folders if (folder / "results.json").is_file()]
        results = [json.loads((folder / "results.json").read_text()) for folder in done]
        if number == 0 and results:
            for key in [row for row in results[0] if row != "trained"]:
                rows.append({"name": key.replace("_", " "), **_spread([result[key] for result in results])})
        if not done:
            rows.append({"name": label, "failed": True})
            continue
        costs = [json.loads((folder / "cost.json").read_text()) for folder in done]
        epochs = Settings.load(done[0] / "config.yaml").epochs
        rates = [line["images_per_second"] for line in read_metrics(done[0]) if "images_per_second" in line]
        rows.append(
            {
                "name": label,
                "runs": len(done),
                **_spread([result["trained"] for result in results]),
                "seconds_per_epoch": statistics.mean(cost["seconds"] for cost in costs) / epochs,
                "images_per_second": statistics.median(rates),
                "peak_mib": max(cost["peak_mib"] for cost in costs),
                "command": f"nearfar {costs[0]['command']}",
            }
        )
    return rows


def _spread(results: list[dict[str, float]]) -> dict[str, Any]:
    return {
        key: (
            statistics.mean(r[key] for r in results),
            statistics.stdev(r[key] for r in results) if results[1:] else None,
        )
        for key in ("knn", "linear", "one_label", "five_labels")
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    """Lay rows out as a Markdown table, accuracies in per cent."""
    lines = ["| | kNN | linear | 1 label | 5 labels | s / epoch | peak MiB |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        if row.get("failed"):
            lines.append(f"| {row['name']} | failed | | | | | |")
            continue
        cells = [f"{100 * m:.1f}" + ("" if s is None else f" ± {100 * s:.1f}") for m, s in _accuracies(row)]
        cost = [f"{row['seconds_per_epoch']:.1f}", f"{row['peak_mib']:.0f}"] if "peak_mib" in row else ["", ""]
        lines.append("| " + " | ".join([row["name"], *cells, *cost]) + " |")
    return "\n".join(lines) + "\n"


def _accuracies(row: dict[str, Any]) -> list[tuple[float, float | None]]:
    return [row[key] for key in ("knn", "linear", "one_label", "five_labels")]


def main() -> None:
    """Run a table and write docs/results/TABLE.json and TABLE.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--docs", type=Path, default=Path("docs/results"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--only", nargs="+", default=[], help="rows to run again; the others stay as the table has them"
    )
    chosen = parser.parse_args()
    if unknown := set(chosen.only) - set(TABLES[chosen.table]["runs"]):
        parser.error(f"{chosen.table} has no row {', '.join(sorted(unknown))}")
    run_table(chosen.table, chosen.data, chosen.out, chosen.jobs, chosen.only)
    rows = summary(chosen.table, chosen.out)
    if chosen.only:
        again = {row["name"]: row for row in rows if row["name"] in chosen.only}
        rows = [again.get(row["name"], row) for row in json.loads((chosen.docs / f"{chosen.table}.json").read_text())]
    chosen.docs.mkdir(parents=True, exist_ok=True)
    (chosen.docs / f"{chosen.table}.json").write_text(json.dumps(rows, indent=1) + "\n")
    (chosen.docs / f"{chosen.table}.md").write_text(markdown(rows))
    print(markdown(rows))


if __name__ == "__main__":
    main()
