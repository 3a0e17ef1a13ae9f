"""What a process may use of a machine: cores, memory, features of the processor, GPUs."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from nearfar.data import building, memory

FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
"""Of x86 and ARM, the widest arithmetic that torch has kernels for, and bfloat16."""


def usable_cores() -> int:
    """Return how many cores this process may use: by its affinity, and by the limit of its container."""
    cores = building.usable_cores()
    with suppress(OSError, ValueError):
        quota, period = (memory.CGROUP / "cpu.max").read_text().split()
        cores = min(cores, max(1, math.ceil(int(quota) / int(period))))  # "max" without a limit: ValueError
    return cores


def processor_features() -> list[str]:
    """Return which of `FEATURES` the processor has; empty where the system does not tell."""
    with suppress(OSError):
        words = set(Path("/proc/cpuinfo").read_text().split())
        return [feature for feature in FEATURES if feature in words]
    return []


def gpus() -> list[dict[str, Any]]:
    """Return name, bytes of memory and whether there is bfloat16, for each GPU that torch can use."""
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [{"name": one.name, "memory": one.total_memory, "bfloat16": one.major >= 8} for one in found]
