"""Lightning's Fabric for a run: one process on any device that torch knows, or several on CPUs or
NVIDIA's GPUs.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Literal

import torch
from lightning_fabric import Fabric
from lightning_fabric.accelerators import CPUAccelerator
from lightning_fabric.plugins.precision import MixedPrecision
from lightning_fabric.strategies import DDPStrategy, SingleDeviceStrategy

from nearfar.device import SEVERAL, check_precision, find_device
from nearfar.training.processes import TIMEOUT, by_torchrun
from nearfar.training.settings import Precision

MOST_PROCESSES = 8  # on a CPU with fewer cores: each holds a model and takes seconds to start


class _AnyDevice(CPUAccelerator):
    """One device of any kind: Fabric's own are of fewer kinds than torch's."""

    def setup_device(self, device: torch.device) -> None:
        if device.type != "cpu":
            torch.accelerator.set_device_index(device)


def build_fabric(
    accelerator: str,
    precision: Precision,
    devices: int = 1,
    start: Literal["popen", "spawn"] = "spawn",
) -> Fabric:
    """Build the Fabric of a run on so many processes; raises ValueError for devices that there are
    not.
    """
    device = find_device(accelerator)
    check_precision(device, precision)
    plugin = None
    if precision == "16-mixed" or precision == "bf16-mixed":
        plugin = MixedPrecision(precision, device.type)
    if devices == 1:
        place = torch.device(device.type, 0) if device.type != "cpu" else device
        return Fabric(strategy=SingleDeviceStrategy(place, _AnyDevice()), devices=1, plugins=plugin)
    if device.type not in SEVERAL:
        raise ValueError(
            f"`devices={devices}`: several processes do not train on {device.type}; use "
            "`accelerator='cpu'`"
        )
    here = int(os.environ["LOCAL_WORLD_SIZE"]) if by_torchrun() else devices
    strategy = DDPStrategy(start_method=start, timeout=TIMEOUT)
    return Fabric(
        accelerator=device.type,
        devices=here,
        num_nodes=devices // here,
        strategy=strategy,
        plugins=plugin,
    )


def check_machine(accelerator: str, precision: Precision, devices: int) -> None:
    """Raise ValueError for devices that this machine does not have, and for a precision that they
    do not.
    """
    find_device(accelerator)  # says which devices there are, in our words
    try:
        with without_hints():
            fabric = build_fabric(accelerator, precision, devices)
    except (RuntimeError, ValueError, ImportError) as error:
        raise ValueError(" ".join(str(error).split()).replace("`", "'")) from error
    most = max(MOST_PROCESSES, os.cpu_count() or 1)
    if fabric.device.type == "cpu" and devices > most and not by_torchrun():
        raise ValueError(
            f"`devices={devices}` are too many processes for {os.cpu_count()} cores: at most {most}"
        )


@contextlib.contextmanager
def without_hints() -> Iterator[None]:
    """Keep Fabric's hints about hardware to itself; they are not about the user's data."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning_fabric")
        yield
