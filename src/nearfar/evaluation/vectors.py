"""Features that were made elsewhere: arrays, files and tables of them, with names and labels where
they have some.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet
from jaxtyping import Float
from numpy.lib.npyio import NpzFile
from torch import Tensor

from nearfar.data import describe
from nearfar.data.column_names import LABEL_NAMES, PATH_NAMES, VECTOR_NAMES, usual_column
from nearfar.data.labels import label_columns, labels_of
from nearfar.data.sources import is_array_file, is_table
from nearfar.data.sources.rows import images_in
from nearfar.evaluation.labelled import features
from nearfar.messages import first_line, one_line, say_once

_BOXES = {"bbox", "bboxes", "box", "boxes", "landmark", "landmarks", "keypoint", "keypoints"}
_BOXES |= {"point", "points", "polygon", "segmentation", "corner", "corners"}
_BOXES |= {"coordinate", "coordinates", "coords", "position"}


class Vectors(NamedTuple):
    """Features, and the names and labels (texts, None: missing) of their rows, where the source has
    them.

    texts: columns of text that may hold names, where none of a usual name does.
    """

    source: str
    features: Float[Tensor, "rows dim"]
    names: list[str] | None = None
    labels: list[str | None] | None = None
    texts: Sequence[str] = ()


class _Columns(NamedTuple):
    """The columns of a source that are read, and those of text that are not."""

    features: np.ndarray
    column: str
    names: Any = None
    labels: Any = None
    texts: Sequence[str] = ()


def find_vectors(source: Any) -> Vectors | None:
    """Read features from a source that holds some, else None: it may hold images.

    source: an array or tensor [rows, dim] of floats, or a pair of one and labels; a .npy file of
    one; a .npz file with it under "embedding", "features" or the like; a .parquet file or
    `datasets.Dataset` with a column of lists of floats and none of images, which are used in its
    place. Names stand under "name", "path", "file_name" or another usual name
    (`nearfar.data.column_names`), labels under "label" or the like. No pickle is loaded.
    ValueError, one line, for features that are not finite, names that occur twice, and columns of
    other lengths.
    """
    said = describe(source)
    with one_line(f"cannot use the vectors of {said}"):
        columns = _columns(source, said)
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
        names, labels = columns.names, columns.labels
        words = None if names is None else [str(name) for name in np.atleast_1d(names).tolist()]
        if words is not None and len(set(words)) < len(words):
            raise ValueError("a name occurs more than once")
        known = None if labels is None else _labels_of(labels)
        if any(one is not None and len(one) != len(x) for one in (words, known)):
            raise ValueError(f"{len(x)} rows need as many names and labels")
        return Vectors(said, checked, words, known, columns.texts)


def _labels_of(labels: Any) -> list[str | None] | None:
    """Labels, or None with a line for what is none."""
    try:
        return labels_of(np.atleast_1d(labels) if isinstance(labels, np.ndarray) else labels, "it")
    except ValueError as error:
        say_once(f"no labels of the vectors are used: {first_line(error)}")
        return None


def _columns(source: Any, said: str) -> _Columns | None:
    """The columns of a source with features; None for one without."""
    rows, labels = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
    if isinstance(rows, (np.ndarray, Tensor)):
        return _alone(rows, labels)
    if is_table(source):
        return None if isinstance(source, dict) else _of_dataset(source, said)
    if not isinstance(source, (str, os.PathLike)) or not Path(source).is_file():
        return None
    if is_array_file(source):
        if os.path.getsize(source) == 0:
            raise ValueError("the file is empty")
        content = np.load(source, mmap_mode="r", allow_pickle=False)
        if isinstance(content, np.ndarray):
            return _alone(content)
        with content:
            return _of_archive(content)
    if Path(source).suffix.lower() != ".parquet":
        return None
    schema = pyarrow.parquet.read_schema(source)
    chosen = _chosen(schema, said)
    if chosen is None:
        return None
    wanted = [name for name in chosen[:3] if name is not None]
    return _of_table(pyarrow.parquet.read_table(source, columns=wanted), chosen)


def _alone(rows: np.ndarray | Tensor, labels: Any = None) -> _Columns | None:
    array = np.asarray(rows.detach().cpu() if isinstance(rows, Tensor) else rows)
    is_one = array.ndim == 2 and np.issubdtype(array.dtype, np.floating)
    return _Columns(array, "array", None, labels) if is_one else None


def _of_archive(content: NpzFile) -> _Columns | None:
    """The arrays of a .npz file that are asked for; the others are not read."""
    column = usual_column(content.files, VECTOR_NAMES)
    if column is None:
        return None
    kinds = {name: _header(content, name) for name in content.files}
    texts = [name for name, (_, kind) in kinds.items() if kind.kind in "UST" and name != column]
    names = usual_column([*texts, *content.files], PATH_NAMES)
    labels = usual_column([name for name in content.files if name != names], LABEL_NAMES)
    for name in {column, names, labels} - {None}:
        shape, kind = kinds[str(name)]
        if kind.hasobject:
            raise ValueError(f"'{name}' holds Python objects: save it with .astype(str)")
        held = content.zip.getinfo(f"{name}.npy").file_size
        if (needed := int(np.prod(shape, dtype=object)) * kind.itemsize) > held:
            raise ValueError(f"'{name}' claims {needed:,} bytes and holds {held:,}: it is damaged")
    read = [None if name is None else content[name] for name in (column, names, labels)]
    assert read[0] is not None
    others = [name for name in texts if name not in (names, labels)]
    return _Columns(read[0], column, read[1], read[2], others if names is None else ())


def _header(content: NpzFile, name: str) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of an array in a .npz file, from its header."""
    with content.zip.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, kind = read(file)
    return shape, kind


def _chosen(
    schema: pyarrow.Schema, said: str
) -> tuple[str, str | None, str | None, list[str]] | None:
    """The columns of features, names and labels, and of further texts; None without features, and
    beside images.
    """
    column = _column_of(schema)
    if column is None:
        return None
    if (images := images_in(schema)) is not None:
        say_once(
            f"'{said}' holds images in column '{images}': these are used, and not the "
            f"lists of floats in '{column}'"
        )
        return None
    texts = [one.name for one in schema if _is_text(one.type)]
    names = usual_column(texts, PATH_NAMES) or usual_column(schema.names, PATH_NAMES)
    labels = next((one for one in label_columns(schema) if one not in (column, names)), None)
    say_once(f"vectors of '{said}': column '{column}'" + (f", named by '{names}'" if names else ""))
    others = [one for one in texts if one != labels] if names is None else []
    return column, names, labels, others


def _is_text(kind: pyarrow.DataType) -> bool:
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    return pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)


def _column_of(schema: pyarrow.Schema) -> str | None:
    """The column of lists of floats: one with a usual name, or the only one, unless it is named for
    boxes.
    """
    kinds = pyarrow.types
    are_lists = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list)
    nested = [one for one in schema if any(is_one(one.type) for is_one in are_lists)]
    lists = [one.name for one in nested if kinds.is_floating(one.type.value_type)]
    likely = [one for one in lists if not _BOXES & set(re.split(r"[\W_]+", one.lower()))]
    return usual_column(lists, VECTOR_NAMES) or (likely[0] if len(likely) == 1 else None)


def _of_dataset(table: Any, said: str) -> _Columns | None:
    chosen = _chosen(table.features.arrow_schema, said)
    if chosen is None:
        return None
    wanted = [name for name in chosen[:3] if name is not None]
    read = table.select_columns(wanted).with_format("arrow")[:]
    found = _of_table(read, chosen)
    names = getattr(table.features.get(chosen[2] or ""), "names", None)
    if names is None:
        return found
    return found._replace(
        labels=[None if one is None or one < 0 else names[one] for one in found.labels]
    )


def _of_table(
    table: pyarrow.Table, chosen: tuple[str, str | None, str | None, list[str]]
) -> _Columns:
    column, names, labels, texts = chosen
    rows = table[column].combine_chunks()
    if rows.null_count or len(set(rows.value_lengths().to_pylist())) > 1:
        raise ValueError(f"the lists in column '{column}' differ in length")
    flat = rows.flatten().to_numpy(zero_copy_only=False)
    return _Columns(
        flat.reshape(len(rows), -1),
        column,
        None if names is None else np.array([str(one) for one in table[names].to_pylist()], str),
        None if labels is None else table[labels].to_pylist(),
        texts,
    )
