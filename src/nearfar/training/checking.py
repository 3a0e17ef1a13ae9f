"""Whether a setting's value has its type and lies in its range, in one clear line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from math import isfinite
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from nearfar.messages import check_range

_KINDS: dict[Any, tuple[Any, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a text"),
}


def check_numbers(kind: type, numbers: Mapping[str, Any]) -> None:
    """Raise ValueError for a number of a method that is not of the type that its class declares."""
    hints = get_type_hints(kind)
    for one in fields(kind):
        if one.name in numbers and hints[one.name] is not Any:
            check_value(one, hints[one.name], numbers[one.name])


def check_value(one: Field[Any], hint: Any, value: Any) -> None:
    """Raise ValueError for a value that is not of the setting's type or out of its range."""
    option = f"--{one.name.replace('_', '-')}"
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    expected = []
    for kind in kinds:
        if kind is type(None) and value is None:
            return
        if get_origin(kind) is Literal:
            expected.append(" or ".join(map(repr, get_args(kind))))
            if value in get_args(kind):
                return
        elif kind is bool:
            expected.append("true or false")
            if isinstance(value, bool):
                return
        elif get_origin(kind) in (list, tuple):
            number, words = _KINDS[get_args(kind)[0]]
            expected.append(words.removeprefix("a ") + "s")
            if isinstance(value, get_origin(kind)) and all(isinstance(one, number) and isfinite(one) for one in value):
                return
        elif kind in _KINDS:
            number, words = _KINDS[kind]
            expected.append(words)
            if isinstance(value, number) and not isinstance(value, bool):
                if "range" in one.metadata and kind is not str:
                    check_range(option, value, *one.metadata["range"])
                if value == value:  # a method may take infinity, nothing takes nan
                    return
    raise ValueError(f"{option} must be {' or '.join(expected)}, not {value!r}")
