"""How torch gets the memory of large tensors from the operating system."""

from __future__ import annotations

import os

HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""torch's own switch, read once, when a process first allocates a tensor on the CPU."""


def use_huge_pages() -> None:
    """Let torch ask Linux for huge pages (2 MiB) for its large CPU tensors, here and in processes started from here.

    The maps of every layer are allocated anew in each step, and with pages of 4 KiB each step spends a fifth of its
    time in page faults; see docs/step.md. Where the system has no such pages nothing changes. A setting of the user's,
    0 or 1, is kept. It counts only if the process has not yet allocated a tensor.
    """
    os.environ.setdefault(HUGE_PAGES, "1")
