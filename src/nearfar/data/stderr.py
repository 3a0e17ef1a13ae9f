"""Silence for libraries in C that write to standard error by themselves, such as libtiff on every odd image.

contextlib.redirect_stderr redirects what Python writes, and the libraries write to the file descriptor.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def only_python_writes() -> Iterator[None]:
    """While entered, what Python writes to stderr appears, and what is written past it is dropped."""
    try:
        kept = os.dup(2)
    except OSError:  # it is closed: nothing can appear
        yield
        return
    before = sys.stderr
    with open(kept, "w", encoding="utf-8", errors="backslashreplace", buffering=1) as shown:
        if before is not None and _number(before) == 2:
            before.flush()
            sys.stderr = shown
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            sys.stderr = before


def _number(file: object) -> int | None:
    try:
        return file.fileno()  # type: ignore[attr-defined]
    except (OSError, ValueError, AttributeError):
        return None
