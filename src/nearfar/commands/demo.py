"""The command that does the whole job on an example.

nearfar demo
nearfar demo photos/ --minutes 8 --out runs/photos
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfar.isolation import isolated
from nearfar.progress import log

if TYPE_CHECKING:
    from nearfar.run import Run

EPOCHS = 75
MINUTES = 8.0  # of training; the rest is for evaluation and map


@isolated()
def run_demo(
    data: Any = "digits",
    *,
    out: str = "runs/demo",
    minutes: float | None = None,
    seed: int = 0,
) -> Run:
    """Do the whole job on scikit-learn's digits, offline in about a minute, or on a folder of
    photographs in ten.

    That is to pretrain, to evaluate, to draw the map and to write the report.

    Args:
        data: images, as `pretrain` takes them; those with labels are evaluated. Default:
            scikit-learn's digits.
        out: run folder to write; it must not exist.
        minutes: time for the pretraining. Default: 75 epochs for digits, 8 minutes for anything
            else.
        seed: random seed.

    Returns:
        The run.

    Raises:
        ValueError: for data that cannot be read, or where `out` exists.

    >>> nearfar.run_demo("photos", out="runs/demo", minutes=0.1).path.name
    'demo'
    """
    import nearfar
    from nearfar.data.table import load_table
    from nearfar.training.run_folder import TABLE

    started = time.perf_counter()
    if minutes is None and data == "digits":  # the same numbers on every machine
        run = nearfar.pretrain(data, out=out, seed=seed, epochs=EPOCHS, precision="32-true")
    else:
        length = MINUTES if minutes is None else minutes
        run = nearfar.pretrain(data, out=out, seed=seed, minutes=length)
    table = load_table(run.path / TABLE)
    if "label" in table.column_names and table["label"].null_count < len(table):
        run.evaluate()
    run.map()
    for name in ("report.html", "map.html", "results.json"):
        if (run.path / name).is_file():
            log.info("  %s", Path(out) / name)
    log.info("done in %.0f s", time.perf_counter() - started)
    return run
