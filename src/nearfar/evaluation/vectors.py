"""Features that were made elsewhere: arrays, files and tables of them, with names and labels where
they have some.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet
from jaxtyping import Float
from numpy.lib.npyio import NpzFile
from torch import Tensor

from nearfar.data import describe
from nearfar.data.column_names import (
    LABEL_NAMES,
    PATH_NAMES,
    VECTOR_NAMES,
    find_column,
    find_columns,
)
from nearfar.data.labels import label_columns, labels_of, say_label_column
from nearfar.data.layouts import unmasked
from nearfar.data.sources import is_array_file, is_table
from nearfar.data.sources.arrays import facts_in
from nearfar.data.sources.files import TEXT_TABLES, read_table
from nearfar.data.sources.rows import images_in
from nearfar.data.text import text_of
from nearfar.evaluation.labelled import features
from nearfar.messages import first_line, raise_as_value_error, say_once

_WIDE = re.compile(r"(?!.*pixel)(.*?)[ _.-]?(\d+)", re.IGNORECASE | re.DOTALL)
_FEWEST = 8  # columns of numbers that are vectors
_BOXES = {"bbox", "bboxes", "box", "boxes", "landmark", "landmarks", "keypoint", "keypoints"}
_BOXES |= {"point", "points", "polygon", "segmentation", "corner", "corners"}
_BOXES |= {"coordinate", "coordinates", "coords", "position"}


class Vectors(NamedTuple):
    """Features, and the names and labels (texts, None: missing) of their rows, where the source has
    them.

    texts: columns that may hold names, where none of a usual name does. columns: all that may hold
    labels.
    """

    source: str
    features: Float[Tensor, "rows dim"]
    names: list[str] | None = None
    labels: list[str | None] | None = None
    texts: Sequence[str] = ()
    columns: Sequence[str] = ()


class _Columns(NamedTuple):
    """The columns of a source that are read, those that may hold names, and all that may hold
    labels.
    """

    features: np.ndarray
    column: str
    names: Any = None
    labels: Any = None
    texts: Sequence[str] = ()
    columns: Sequence[str] = ()


def find_vectors(source: Any, label_column: str | None = None) -> Vectors | None:
    """Read features from a source that holds some, else None: it may hold images.

    source: an array or tensor [rows, dim] of floats, or a pair of one and labels; a .npy file of
    one; a .npz file with it under "embedding", "features" or the like; a .parquet file or
    `datasets.Dataset` with a column of lists of floats and none of images, which are used in its
    place; a .csv, .tsv or .parquet file with a column of floats for each number, such as e0, e1,
    ..., as `nearfar embed` writes them. Names stand under "name", "path", "file_name" or another
    usual name (`nearfar.data.column_names`), labels in `label_column`, else under "label" or the
    like. No pickle is loaded.
    ValueError, one line, for features that are not finite, names that occur twice, and columns of
    other lengths.
    """
    source_name = describe(source)
    with raise_as_value_error(f"cannot use the vectors of {source_name}"):
        columns = _columns(source, source_name, label_column)
        if columns is None:
            return None
        x = np.array(columns.features, np.float32)
        if bad := np.flatnonzero(~np.isfinite(x).all(1)).tolist() if x.ndim == 2 else []:
            raise ValueError(
                f"they are not finite (NaN, infinite or beyond float32) in {len(bad)} of "
                f"{len(x)} rows, first row "
                f"{bad[0]} counted from 0: leave these rows out"
            )
        checked = features(x, "given")
        if zeros := int((x == 0).all(1).sum()):
            say_once(
                f"{zeros} of {len(x)} vectors of '{source_name}' are all zero, and like no other"
            )
        names, labels = columns.names, columns.labels
        words = None if names is None else [_name(name) for name in np.atleast_1d(names).tolist()]
        if words is not None and "" in words:
            row = words.index("")
            raise ValueError(
                f"{words.count('')} of {len(words)} rows have no name, first row {row} counted "
                f"from 0: leave these rows out"
            )
        if words is not None and len(set(words)) < len(words):
            raise ValueError("a name occurs more than once")
        known = None if labels is None else _labels_of(labels)
        if any(values is not None and len(values) != len(x) for values in (words, known)):
            raise ValueError(f"{len(x)} rows need as many names and labels")
        return Vectors(source_name, checked, words, known, columns.texts, columns.columns)


def _name(value: Any) -> str:
    """A name as text; "" for none."""
    if isinstance(value, bytes):
        return text_of(value)
    return "" if value is None or value != value else str(value)


def _labels_of(labels: Any) -> list[str | None] | None:
    """Labels, or None with a line for what is none."""
    try:
        return labels_of(np.atleast_1d(labels) if isinstance(labels, np.ndarray) else labels, "it")
    except ValueError as error:
        say_once(f"no labels of the vectors are used: {first_line(error)}")
        return None


def _columns(source: Any, source_name: str, label_column: str | None) -> _Columns | None:
    """The columns of a source with features; None for one without."""
    rows, labels = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
    if isinstance(rows, (np.ndarray, Tensor)):
        return _alone(rows, labels)
    if is_table(source):
        return None if isinstance(source, dict) else _of_dataset(source, source_name, label_column)
    if not isinstance(source, (str, os.PathLike)) or not Path(source).is_file():
        return None
    if is_array_file(source):
        if os.path.getsize(source) == 0:
            raise ValueError("the file is empty")
        content = np.load(source, mmap_mode="r", allow_pickle=False)
        if isinstance(content, np.ndarray):
            return _alone(content)
        with content:
            return _of_archive(content, source_name, label_column)
    ending = Path(source).suffix.lower()
    if ending in TEXT_TABLES:
        with contextlib.suppress(ValueError):  # of no table, which its source says
            return _of_wide(
                lambda: read_table(Path(source), label_column), source_name, label_column
            )
        return None
    if ending != ".parquet":
        return None
    schema = pyarrow.parquet.read_schema(source)
    chosen = _chosen(schema, source_name, label_column)
    if chosen is None:
        if images_in(schema) is not None:
            return None
        return _of_wide(
            lambda: pyarrow.parquet.read_table(source), source_name, label_column, schema
        )
    wanted = [name for name in chosen[:3] if name is not None]
    return _of_table(pyarrow.parquet.read_table(source, columns=wanted), chosen, schema.names)


def _alone(rows: np.ndarray | Tensor, labels: Any = None) -> _Columns | None:
    array = np.asarray(rows.detach().cpu()) if isinstance(rows, Tensor) else unmasked(rows)
    is_one = array.ndim == 2 and np.issubdtype(array.dtype, np.floating)
    return _Columns(array, "array", None, labels) if is_one else None


def _of_wide(
    read: Callable[[], pyarrow.Table],
    source_name: str,
    label_column: str | None,
    schema: pyarrow.Schema | None = None,
) -> _Columns | None:
    """The vectors of a table with a column of floats for each of their numbers; None without."""
    if schema is not None and not _numbered_columns(schema):
        return None
    table = read()
    wide = _numbered_columns(table.schema)
    if not wide:
        return None
    flat = [table[name].to_numpy().astype(np.float32) for name in wide]
    rest = table.drop_columns(wide)
    labels = label_column if label_column in rest.column_names else None
    labels = labels or _usual_labels(source_name, label_columns(rest.schema), label_column)
    others = [name for name in rest.column_names if name != labels]
    texts = [name for name in others if _is_text(rest.schema.field(name).type)]
    names = find_column(texts, PATH_NAMES) or find_column(others, PATH_NAMES)
    named = f", named by '{names}'" if names else ""
    say_once(f"vectors of '{source_name}': {len(wide)} columns, '{wide[0]}' to '{wide[-1]}'{named}")
    return _Columns(
        np.stack(flat, 1),
        wide[0],
        None if names is None else np.array(rest[names].to_pylist(), dtype=object),
        None if labels is None else rest[labels].to_pylist(),
        texts if names is None else (),
        rest.column_names,
    )


def _numbered_columns(schema: pyarrow.Schema) -> list[str]:
    """Columns of numbers whose names are one word and the numbers from 0 or 1 on, at least eight.

    Some may hold whole numbers alone, as CSV has the zeros of a feature that is never active; all
    only under the names that we write and usual ones, since pixels are whole numbers too.
    """
    kinds = pyarrow.types
    groups: dict[str, dict[int, str]] = {}
    for field in schema:
        matched = _WIDE.fullmatch(field.name)
        if matched and (kinds.is_floating(field.type) or kinds.is_integer(field.type)):
            groups.setdefault(matched[1], {})[int(matched[2])] = field.name
    for word, group in sorted(groups.items(), key=lambda item: len(item[1]), reverse=True):
        places = sorted(group)
        follow = places == list(range(places[0], places[0] + len(places)))
        real = any(kinds.is_floating(schema.field(name).type) for name in group.values())
        known = word == "e" or find_column([word], VECTOR_NAMES) is not None
        if follow and places[0] in (0, 1) and len(places) >= _FEWEST and (real or known):
            return [group[place] for place in places]
    return []


def _of_archive(content: NpzFile, source_name: str, label_column: str | None) -> _Columns | None:
    """The arrays of a .npz file that are asked for; the others are not read."""
    column = find_column(content.files, VECTOR_NAMES)
    if column is None:
        return None
    kinds = {name: facts_in(content, name).dtype for name in content.files}
    texts = [name for name, kind in kinds.items() if kind.kind in "UST" and name != column]
    names = find_column([*texts, *content.files], PATH_NAMES)
    labels = label_column if label_column in content.files else None
    others = [name for name in content.files if name not in (names, column)]
    usual = find_columns(others, LABEL_NAMES)
    labels = labels or _usual_labels(source_name, usual, label_column)
    for name in {column, names, labels} - {None}:
        if kinds[str(name)].hasobject:
            raise ValueError(f"'{name}' holds Python objects: save it with .astype(str)")
    read = [None if name is None else content[name] for name in (column, names, labels)]
    assert read[0] is not None
    unused = [name for name in texts if name != labels] if names is None else []
    return _Columns(read[0], column, read[1], read[2], unused, others)


def _chosen(
    schema: pyarrow.Schema, source_name: str, label_column: str | None
) -> tuple[str, str | None, str | None, list[str]] | None:
    """The columns of features, names and labels, and others that may hold names; None without
    features, and beside images.

    An index that pandas saved says that rows were sorted or left out: it may name them.
    """
    column = _column_of(schema)
    if column is None:
        return None
    if (images := images_in(schema)) is not None:
        say_once(
            f"'{source_name}' holds images in column '{images}': these are used, and not the "
            f"lists of floats in '{column}'"
        )
        return None
    texts = [field.name for field in schema if _is_text(field.type)]
    names = find_column(texts, PATH_NAMES) or find_column(schema.names, PATH_NAMES)
    labels = label_column if label_column in schema.names else None
    usual = [
        column_name for column_name in label_columns(schema) if column_name not in (column, names)
    ]
    labels = labels or _usual_labels(source_name, usual, label_column)
    say_once(
        f"vectors of '{source_name}': column '{column}'"
        + (f", named by '{names}'" if names else "")
    )
    texts += [column_name for column_name in _pandas_index(schema) if column_name not in texts]
    others = (
        [column_name for column_name in texts if column_name != labels] if names is None else []
    )
    return column, names, labels, others


def _usual_labels(source_name: str, usual: Sequence[str], wanted: str | None) -> str | None:
    """The first of the columns of a usual name for labels; a line says so where there are others
    and none is named.
    """
    if usual and wanted is None:
        say_label_column(source_name, usual[0], usual)
    return next(iter(usual), None)


def _pandas_index(schema: pyarrow.Schema) -> list[str]:
    """The index that pandas saved, unless it counts the rows from 0."""
    saved = (schema.pandas_metadata or {}).get("index_columns", [])
    counted = [index for index in saved if isinstance(index, dict)]
    if any((index.get("start"), index.get("step")) != (0, 1) for index in counted):
        return ["the index of pandas"]
    return [index for index in saved if index in schema.names]


def _is_text(kind: pyarrow.DataType) -> bool:
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    return pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)


def _column_of(schema: pyarrow.Schema) -> str | None:
    """The column of lists of floats: one with a usual name, or the only one, unless it is named for
    boxes.
    """
    kinds = pyarrow.types
    are_lists = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list)
    nested = [field for field in schema if any(is_one(field.type) for is_one in are_lists)]
    lists = [field.name for field in nested if kinds.is_floating(field.type.value_type)]
    likely = [
        column_name
        for column_name in lists
        if not _BOXES & set(re.split(r"[\W_]+", column_name.lower()))
    ]
    return find_column(lists, VECTOR_NAMES) or (likely[0] if len(likely) == 1 else None)


def _of_dataset(table: Any, source_name: str, label_column: str | None) -> _Columns | None:
    chosen = _chosen(table.features.arrow_schema, source_name, label_column)
    if chosen is None:
        return None
    wanted = [name for name in chosen[:3] if name is not None]
    read = table.select_columns(wanted).with_format("arrow")[:]
    columns = _of_table(read, chosen, table.column_names)
    names = getattr(table.features.get(chosen[2] or ""), "names", None)
    if names is None:
        return columns
    return columns._replace(
        labels=[
            None if number is None or number < 0 else names[number] for number in columns.labels
        ]
    )


def _of_table(
    table: pyarrow.Table,
    chosen: tuple[str, str | None, str | None, list[str]],
    every: Sequence[str],
) -> _Columns:
    column, names, labels, texts = chosen
    rows = table[column].combine_chunks()
    if rows.null_count or len(set(rows.value_lengths().to_pylist())) > 1:
        raise ValueError(f"the lists in column '{column}' differ in length")
    flat = rows.flatten().to_numpy(zero_copy_only=False)
    return _Columns(
        flat.reshape(len(rows), -1),
        column,
        None if names is None else np.array(table[names].to_pylist(), dtype=object),
        None if labels is None else table[labels].to_pylist(),
        texts,
        [name for name in every if name not in (column, names)],
    )
