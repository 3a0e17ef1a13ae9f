"""What a process may use of a machine: cores, memory, features of the processor, GPUs."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from nearfar.data import building

FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
"""Of x86 and ARM, the widest arithmetic that torch has kernels for, and bfloat16."""
CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Return how many cores this process may use: by its affinity, and by the limit of its container."""
    cores = building.usable_cores()
    with suppress(OSError, ValueError):
        quota, period = (CGROUP / "cpu.max").read_text().split()
        cores = min(cores, max(1, math.ceil(int(quota) / int(period))))  # "max" without a limit: ValueError
    return cores


def memory() -> dict[str, int | None]:
    """Return the bytes of memory in "total", and those "available" to new work; None where that is not known."""
    total = available = None
    with suppress(OSError, ValueError, AttributeError):
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    with suppress(OSError, ValueError):
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
        total = min(limit, total or limit)
        available = min(max(0, limit - used), limit if available is None else available)
    return {"total": total, "available": available}


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
