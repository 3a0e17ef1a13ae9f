"""Go on with a run from its checkpoint, as if it had never been interrupted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from nearfar.commands.report import write_report
from nearfar.commands.resolve import saved_job
from nearfar.commands.run import Run
from nearfar.methods import Method
from nearfar.training import by_torchrun, check_processes, follow, is_follower, launch, world_size
from nearfar.training.allocator import reuse_memory
from nearfar.views import Views


def resume(
    run: str | Path | Run,
    *,
    data: Any = None,
    method: Method | None = None,
    encoder: nn.Module | None = None,
    views: Views | Any = None,
    devices: int | None = None,
    console: Console | None = None,
) -> Run:
    """Go on with a run from its checkpoint, as if it had never been interrupted.

    Args:
        run: run folder.
        data: the images, where they were an object of your own; so are method, encoder and views.
        devices: processes. Default: as many as the run had, or all that torchrun started.
        console: where progress is shown.

    Returns:
        The run.

    Raises:
        ValueError: where an object is missing, or the folder is not that of a run.
    """
    reuse_memory()
    run = Run.of(run)
    settings = replace(run.settings, out=str(run.path))
    if is_follower():
        return Run(Path(follow(settings.accelerator, settings.precision)))
    if devices is not None or by_torchrun():
        settings = replace(settings, devices=world_size(devices))
    check_processes(settings.devices, settings.batch_size, settings.micro_batch, settings.sync_batch_norm)
    job = saved_job(settings, console or Console(), dict(data=data, method=method, encoder=encoder, views=views))
    launch(job, console or Console(), resume=True)
    write_report(run.path)
    return run
