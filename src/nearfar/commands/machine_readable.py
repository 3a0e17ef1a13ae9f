"""What a verb returns as one JSON object, for other programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from numbers import Integral, Real
from os import PathLike, fspath
from typing import Any


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
