"""The whole job on scikit-learn's digits, offline in about a minute, or on a folder of photographs in ten.

nearfar demo
nearfar demo photos/ --minutes 8 --out runs/photos
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from nearfar.run import Run

EPOCHS = 75
MINUTES = 8.0  # of training; the rest is for evaluation and map


def run_demo(
    data: Any = "digits",
    *,
    out: str = "runs/demo",
    minutes: float | None = None,
    seed: int = 0,
    console: Console | None = None,
) -> Run:
    """The whole job on scikit-learn's digits, offline in about a minute, or on a folder of photographs in ten.

    That is to pretrain, to evaluate, to draw the map and to write the report.

    Args:
        data: images, as `pretrain` takes them; those with labels are evaluated. Default: scikit-learn's digits.
        out: run folder to write; it must not exist.
        minutes: time for the pretraining. Default: 75 epochs for digits, 8 minutes for anything else.
        seed: random seed.
        console: shows the progress.

    Returns:
        The run.

    Raises:
        ValueError: for data that cannot be read, or where `out` exists.
    """
    from rich.console import Console
    from rich.text import Text

    import nearfar
    from nearfar.training.plan import open_data

    console = console or Console()
    started = time.perf_counter()
    same: dict[str, Any] = dict(epochs=EPOCHS, precision="32-true")  # the same numbers on every machine
    timed = minutes is not None or data != "digits"
    length = dict(minutes=MINUTES if minutes is None else minutes) if timed else same
    run = nearfar.pretrain(data, out=out, seed=seed, console=console, **length)
    if getattr(open_data(run.settings, console), "labels", None) is not None:  # a stream has none
        run.evaluate(console=console)
    run.map(console=console)
    if run.verdict is not None:
        console.print(Text(run.verdict.words))
    for name in ("report.html", "map.html", "results.json"):
        if (run.path / name).is_file():
            console.print(Text(f"  {Path(out) / name}"))
    console.print(f"done in {time.perf_counter() - started:.0f} s")
    return run
