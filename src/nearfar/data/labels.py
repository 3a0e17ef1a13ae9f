"""Labels and their numbers: one rule for folders, tables, arrays, tars and objects.

A label is a whole number, a text or a truth value, however it is stored: 3, 3.0, np.array([3]),
tensor(3), "3", one-hot rows. Whole numbers are equal to themselves; "001" and "1" are texts, and
two classes. Missing are None, NaN, "" and, where no other label is negative and the labels are not
-1 and 1 alone, -1.
"""

from __future__ import annotations

import numbers
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import pyarrow
from jaxtyping import Bool, Shaped
from torch import Tensor

from nearfar.data.column_names import LABEL_NAMES, find_columns, normalized_name
from nearfar.data.table import printable
from nearfar.data.text import text_of
from nearfar.messages import if_offered, listed_names, say_once

_WHOLE = re.compile(r"[+-]?(0|[1-9]\d*)([.]0*)?")  # "001" and "1e3" are texts
_TRUTH = {"false": 0, "true": 1}
NO_NUMBER = {"", "nan", "na", "n/a", "#n/a", "<na>", "null", "none"}  # beside numbers
_MOST = 2**63


class OneHot(NamedTuple):
    """The place of the single 1 in a row of zeros, and the length of the row."""

    place: int
    width: int


def label_of(value: Any, where: str) -> str | OneHot | None:
    """A label as text, or None for a missing one.

    where: what holds it, for the message of the ValueError for anything else: measurements, boxes,
    masks, several labels of one image.
    """
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, (np.ndarray, list, tuple)):
        return _of_sequence(value, where)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # of pandas
        return None
    if isinstance(value, bytes):
        if any(byte < 32 and byte not in b"\t\n\r" for byte in value):
            raise _wrong(where, value)
        value = text_of(value)
    if isinstance(value, str):
        text = unicodedata.normalize("NFC", value.strip())
        return None if text.lower() in ("", "nan") else text
    if isinstance(value, bool):
        return str(value)
    if not isinstance(value, numbers.Number) or isinstance(value, complex):
        raise _wrong(where, value)
    if value != value:
        return None
    number: Any = value
    if abs(number) == float("inf") or number != int(number):
        raise _wrong(where, value)
    if abs(number) >= _MOST:
        raise ValueError(f"labels must lie below 2**63, and {where} holds {number}")
    return str(int(number))


def _of_sequence(value: Any, where: str) -> str | OneHot | None:
    """The label in a sequence of one element, or that of a one-hot row."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists in it differ in length
        raise _wrong(where, value) from None
    if array.size == 1:
        return label_of(array.reshape(-1)[0], where)
    if array.size == max(array.shape, default=0) and array.dtype.kind in "iufb":
        row = array.reshape(-1)
        if np.count_nonzero(row) == 1 and row.max() == 1:
            return OneHot(int(row.argmax()), len(row))
    raise _wrong(where, value)


def _wrong(where: str, value: Any) -> ValueError:
    shape = getattr(value, "shape", ())
    described = f"an array of shape {list(shape)}" if shape else f"{value!r:.80}"
    return ValueError(f"labels must be whole numbers or texts; {where} holds {described}")


def texts_of(labels: Sequence[str | OneHot | None], where: str) -> list[str | None]:
    """Labels as of `label_of` with one-hot rows as numbers; ValueError where these are not all of
    one length.
    """
    widths = {label.width for label in labels if isinstance(label, OneHot)}
    if len(widths) > 1 or (widths and any(isinstance(label, str) for label in labels)):
        raise ValueError(f"labels must be one for each image; {where} holds lists of several kinds")
    return [str(label.place) if isinstance(label, OneHot) else label for label in labels]


def labels_of(values: Iterable[Any], where: str) -> list[str | None]:
    """Values of any kind as labels: text, or None for a missing one; ValueError for what is
    none.
    """
    if isinstance(values, str | bytes | Set | Mapping) or not isinstance(values, Iterable):
        raise ValueError(
            f"labels must be one for each image, in their order; {where} is a "
            f"{type(values).__name__}"
        )
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    if isinstance(array, np.ma.MaskedArray):  # what is masked is missing
        array = array.tolist()
    if isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind in "iufb":
        each, place = np.unique(array, return_inverse=True)
        known = texts_of([label_of(value, where) for value in each.tolist()], where)
        return [known[number] for number in place.reshape(-1).tolist()]
    return texts_of([label_of(value, where) for value in array], where)


def whole_number(label: str) -> int | None:
    """The number that a text is, such as 3 for "3", "+3" and "3.0"; None for other texts, "003"
    among them.
    """
    if not _WHOLE.fullmatch(label):
        return None
    number = int(label.partition(".")[0])
    return number if abs(number) < _MOST else None


def negative_is_class(values: Iterable[int]) -> bool:
    """Return whether -1 among these labels is a class: beside other negative ones, and where they
    are -1 and 1 alone.
    """
    present = set(values)
    return min(present, default=0) < -1 or present == {-1, 1}


def numbered(
    labels: Sequence[str | None], class_names: Sequence[str] | None = None
) -> tuple[pyarrow.Array, list[str] | None]:
    """Labels as numbers from 0, null for a missing one, and the names of the classes.

    class_names: those that are known, in their order; others come after them. Without: whole
    numbers stay what they are, and have no names unless some are negative; texts are numbered in
    alphabetical order.
    """
    present = {label for label in labels if label is not None}
    names: list[str] | None
    if class_names is not None:
        number, names = _by_names(present, list(class_names))
    elif present and {label.lower() for label in present} <= _TRUTH.keys():
        number = {label: _TRUTH[label.lower()] for label in present}
        names = ["False", "True"]
    else:
        number, names = _by_value(present)
    _say_alike(names or [])
    numbers = [None if label is None else number.get(label) for label in labels]
    return pyarrow.array(numbers, pyarrow.int64()), names and [printable(name) for name in names]


def _say_alike(names: Sequence[str]) -> None:
    """Say which classes differ in upper and lower case alone."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.casefold(), name)) != name:
            say_once(f"{other!r} and {name!r} are two classes: they differ in case alone")


def _by_names(present: set[str], names: list[str]) -> tuple[dict[str, int], list[str]]:
    number = {name: place for place, name in enumerate(names)}
    others = sorted(present - number.keys())
    whole = [whole_number(label) for label in others]
    if others and all(number is not None and 0 <= number < len(names) for number in whole):
        return number | dict(zip(others, map(int, others), strict=True)), names
    if any(number is not None for number in whole) and not all(map(str.isdecimal, names)):
        raise ValueError(
            f"labels are numbers in one place and names of classes in another: {others[0]} beside "
            f"{names[0]!r}; write them alike"
        )
    return number | {name: len(names) + n for n, name in enumerate(others)}, [*names, *others]


def _by_value(present: set[str]) -> tuple[dict[str, int], list[str] | None]:
    number = {label: value for label in present if (value := whole_number(label)) is not None}
    if number and all(label.lower() in NO_NUMBER for label in present - number.keys()):
        if negative_is_class(number.values()):
            classes = sorted(set(number.values()))
            place = {value: n for n, value in enumerate(classes)}
            return {label: place[value] for label, value in number.items()}, list(map(str, classes))
        return {label: value for label, value in number.items() if value >= 0}, None
    names = sorted(present)
    return {name: place for place, name in enumerate(names)}, names or None


def check_alike(parts: Mapping[str, Sequence[str | None]], source: object) -> None:
    """Raise ValueError where one part of a source has numbers as labels and another one texts."""
    numbers, texts = None, None
    for part, labels in parts.items():
        present = sorted(
            {label for label in labels if label is not None and label.lower() not in NO_NUMBER}
        )
        whole = [whole_number(label) is not None for label in present]
        if present and all(whole):
            numbers = part, present[0]
        elif present and not any(whole):
            texts = part, present[0]
    if numbers is not None and texts is not None:
        raise ValueError(
            f"the labels of '{source}' are numbers in {numbers[0]}, such as {numbers[1]}, "
            f"and texts in {texts[0]}, "
            f"such as {texts[1]!r}: write them alike, or name another column for labels"
        )


def joined_labels(
    labels: Sequence[np.ndarray], names: Sequence[list[str] | None]
) -> tuple[np.ndarray, list[str] | None] | None:
    """Labels of several sources with the names of their classes as those of one, in which classes
    of one name are one.

    Numbers without names are names where every other name is a whole number. None for numbers
    beside other names.
    """
    if all(own is None for own in names):
        return np.concatenate(labels), None
    named = []
    for part, own in zip(labels, names, strict=True):
        named.append(sorted(set(part[part >= 0].tolist())) if own is None else own)
    every = dict.fromkeys(str(name) for own in named for name in own)
    if None in names and any(whole_number(name) is None for name in every):
        return None
    number = {name: place for place, name in enumerate(every)}
    parts = []
    for part, own, known in zip(labels, names, named, strict=True):
        old = np.arange(len(known)) if own is not None else np.array(known, np.int64)
        new = np.array([*(number[str(name)] for name in known), -1], np.int64)
        parts.append(np.where(part < 0, -1, new[np.searchsorted(old, part)]))
    return np.concatenate(parts), list(every)


def label_columns(schema: pyarrow.Schema, classes: Sequence[str] = ()) -> list[str]:
    """Columns of a usual name that may hold labels, the likeliest first; those in `classes` name
    their classes. A column "y" beside numbers "x" is a place.
    """
    kinds = {field.name: field.type for field in schema}
    places = any(normalized_name(name) == "x" and _is_number(kinds[name]) for name in kinds)
    usual_names = [name for name in LABEL_NAMES if not (name == "y" and places)]
    named = find_columns(kinds, usual_names)
    usual = [name for name in named if name in classes or _may_be(kinds[name])]
    if named and not usual:
        kind = f"{kinds[named[0]]!s:.80}"
        say_once(f"no labels are taken from column '{named[0]}', which holds {kind}")
    columns = [*(name for name in usual if name in classes), *usual]
    return list(dict.fromkeys(columns)) or (list(classes) if len(classes) == 1 else [])


def say_label_column(source: object, column: str, usual: Sequence[str]) -> None:
    """Say which of several columns of a usual name has the labels that are used."""
    if others := [name for name in usual if name != column]:
        names = listed_names(others)
        offered = if_offered("label_column", f"; `label_column` takes another one: {names}")
        rest = offered or f", and not of {names}"
        say_once(f"labels of '{source}' are those of column '{column}'{rest}")


def _may_be(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    if types.is_dictionary(kind):
        return _may_be(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return types.is_integer(kind.value_type) or types.is_floating(kind.value_type)
    of_texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return _is_number(kind) or any(test(kind) for test in (types.is_boolean, *of_texts))


def _is_number(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    return any(test(kind) for test in (types.is_integer, types.is_floating, types.is_decimal))


def plain_labels(
    given: Any, where: str
) -> tuple[Shaped[np.ndarray, " images"], Bool[np.ndarray, " images"]]:
    """Labels of any kind as an array of numbers, texts or truth values, and which of them are
    known.

    A negative number may be a missing label or a class, see `negative_is_class`.
    """
    array = given.detach().cpu().numpy() if isinstance(given, Tensor) else given
    if isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind in "iub":
        return array, np.ones(len(array), bool)
    texts = labels_of(array, where)
    known = np.array([text is not None for text in texts], bool)
    whole = [None if text is None else whole_number(text) for text in texts]
    if all((number is None) == (text is None) for number, text in zip(whole, texts, strict=True)):
        return np.array([number or 0 for number in whole], np.int64), known
    return np.array([text or "" for text in texts], str), known
