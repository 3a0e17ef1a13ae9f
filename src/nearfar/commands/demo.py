"""Pretrain on scikit-learn's digits, evaluate, draw the map and write the report; offline, in about a minute."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from nearfar.commands.evaluate import evaluate
from nearfar.commands.map import map_images
from nearfar.commands.pretrain import pretrain
from nearfar.commands.run import Run


def run_demo(*, out: str = "runs/demo", seed: int = 0, console: Console | None = None) -> Run:
    """Pretrain on scikit-learn's digits, evaluate, draw the map and write the report; offline, in about a minute.

    Args:
        out: run folder to write; it must not exist.
        seed: of weights, batches and views.
        console: where progress is shown.

    Returns:
        The run.
    """
    console = console or Console()
    started = time.perf_counter()
    run = pretrain("digits", out=out, method="saclr", seed=seed, console=console)
    evaluate(run, console=console)
    map_images(run, console=console)
    if run.verdict is not None:
        console.print(run.verdict.words)
    for name in ("report.html", "map.html", "results.json"):
        console.print(f"  {Path(out) / name}", highlight=False, markup=False)
    console.print(f"done in {time.perf_counter() - started:.0f} s")
    return run
