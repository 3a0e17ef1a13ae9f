"""What a verb returns as one JSON object, for other programs."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from os import PathLike, fspath
from typing import Any


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send to stderr what is written to stdout meanwhile, by C++ and by processes that are started as well."""
    sys.stdout.flush()
    try:
        kept: int | None = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # one of them is closed
        kept = None
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


def as_json(result: Any) -> str:
    """Return a JSON object in one line: of names with values those, of a path {"path": ...}, else {"result": ...}.

    Numbers that are not finite, which JSON does not have, are null.
    """
    value = plain(result)
    if not isinstance(value, dict):
        value = {"path" if isinstance(result, PathLike) else "result": value}
    return json.dumps(value, allow_nan=False)


def plain(value: Any) -> Any:
    """Return a value in lists, dictionaries, strings, numbers, booleans and None; what is a `Run` tells its summary."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if hasattr(value, "summary"):
        return plain(value.summary())
    if hasattr(value, "tolist"):  # of NumPy or torch
        return plain(value.tolist())
    return [plain(one) for one in value]
