"""The whole thing on scikit-learn's digits: pretrain, evaluate, map, report."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from nearfar.commands import api
from nearfar.commands.run import Run


def demo(*, out: str = "runs/demo", seed: int = 0, console: Console | None = None) -> Run:
    """Pretrain on scikit-learn's digits, evaluate, draw the map and write the report; offline, in two minutes.

    Args:
        out: run folder to write; it must not exist.
        seed: of weights, batches and views.
        console: where progress is shown.

    Returns:
        The run.
    """
    console = console or Console()
    started = time.perf_counter()
    run = api.pretrain("digits", out=out, method="saclr", seed=seed, console=console)
    api.evaluate(run.path, console=console)
    api.map(run.path, console=console)
    if run.verdict is not None:
        console.print(run.verdict.words)
    for name in ("report.html", "map.html", "results.json"):
        console.print(f"  {Path(out) / name}", highlight=False)
    console.print(f"done in {time.perf_counter() - started:.0f} s")
    return run
