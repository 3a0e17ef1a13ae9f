"""Memory of large tensors for torch: another allocator would have to be preloaded before
Python starts.
"""

from __future__ import annotations

import ctypes
import os
import platform

MIB = 1 << 20
SETTINGS = {
    "THP_MEM_ALLOC_ENABLE": "1",
    "MALLOC_MMAP_THRESHOLD_": f"{32 * MIB}",  # the largest that glibc takes
    "MALLOC_TRIM_THRESHOLD_": f"{64 * MIB}",
}
"""torch's switch for huge pages, read when a process first allocates a tensor on the CPU, and
glibc's own settings.
"""
_MALLOPT = {
    "MALLOC_TRIM_THRESHOLD_": -1,
    "MALLOC_MMAP_THRESHOLD_": -3,
}  # their numbers in <malloc.h>


def reuse_memory() -> None:
    """Have large CPU tensors made from memory in use before, and else of huge pages (2 MiB), here
    and in new processes.

    The feature maps of every layer are allocated again in each step. By default a process returns
    their memory and gets it back, zeroed, in pages of 4 KiB: up to a fourth of a step; see
    docs/step.md. The user's own settings in the environment stay. Huge pages are used only if the
    process has not yet allocated a tensor, and glibc's on Linux.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        for name, number in _MALLOPT.items():
            if os.environ[name].isdigit():
                mallopt(number, int(os.environ[name]))


def return_memory() -> None:
    """Give memory that is free back to the system, which glibc and Arrow keep otherwise."""
    import pyarrow

    pyarrow.default_memory_pool().release_unused()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
