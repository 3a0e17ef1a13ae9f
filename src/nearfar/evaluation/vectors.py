"""Features that were made elsewhere: arrays, files and tables of them, with names and labels where they have some."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet
from jaxtyping import Float, Shaped
from torch import Tensor

from nearfar.data import describe
from nearfar.data.sources import is_array_file, is_table
from nearfar.data.table import as_arrays
from nearfar.evaluation.labelled import features
from nearfar.messages import one_line

FEATURES = ("embedding", "embeddings", "features", "feature", "vector", "vectors")
NAMES = (
    "name",
    "names",
    "file_name",
    "filename",
    "path",
    "image_path",
    "file",
    "image",
    "id",
    "key",
)
LABELS = ("label", "labels", "class", "y")


class Vectors(NamedTuple):
    """Features, and the names and labels (numbers or text) of their rows, where the source has them."""

    source: str
    features: Float[Tensor, "rows dim"]
    names: list[str] | None = None
    labels: Shaped[np.ndarray, " rows"] | None = None


def find_vectors(source: Any) -> Vectors | None:
    """Read features from a source that holds some, else None: it may hold images.

    source: an array or tensor [rows, dim] of floats, or a pair of one and labels; a .npy file of one; a .npz file with
    it under "embedding", "features" or the like; a .parquet file or `datasets.Dataset` with a column of lists of
    floats. Names stand under "name", "path", "file_name" or the like, labels under "label". No pickle is loaded.
    ValueError, one line, for features that are not finite, names that occur twice, and columns of other lengths.
    """
    said = describe(source)
    with one_line(f"cannot use the vectors of {said}", ValueError, OSError, pyarrow.ArrowException):
        columns = _columns(source)
        if columns is None:
            return None
        x = features(np.array(_first(columns, FEATURES), np.float32), "given")
        names, labels = _first(columns, NAMES), _first(columns, LABELS)
        words = None if names is None else [str(name) for name in names.tolist()]
        if words is not None and len(set(words)) < len(words):
            raise ValueError("a name occurs more than once")
        if any(one is not None and len(one) != len(x) for one in (words, labels)):
            raise ValueError(f"{len(x)} rows need as many names and labels")
        return Vectors(said, x, words, labels)


def _columns(source: Any) -> Mapping[str, np.ndarray] | None:
    """The columns of a source, features under a usual name; None for one without features."""
    rows, labels = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
    if isinstance(rows, (np.ndarray, Tensor)):
        return _alone(rows, {} if labels is None else {"label": np.asarray(labels)})
    if is_table(source):
        return None if isinstance(source, dict) else _of_table(source.with_format("arrow")[:])
    if not isinstance(source, (str, os.PathLike)) or not Path(source).is_file():
        return None
    if is_array_file(source):
        content = np.load(source, mmap_mode="r", allow_pickle=False)
        if isinstance(content, np.ndarray):
            return _alone(content, {})
        with content:
            return (
                {name: content[name] for name in content.files}
                if set(content.files) & set(FEATURES)
                else None
            )
    if Path(source).suffix.lower() != ".parquet":
        return None
    schema = pyarrow.parquet.read_schema(source)
    found = _column_of(schema)
    wanted = [name for name in schema.names if name in (found, *NAMES, *LABELS)]
    return None if found is None else _of_table(pyarrow.parquet.read_table(source, columns=wanted))


def _alone(
    rows: np.ndarray | Tensor, others: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray] | None:
    array = np.asarray(rows.detach().cpu() if isinstance(rows, Tensor) else rows)
    return (
        {FEATURES[0]: array, **others}
        if array.ndim == 2 and np.issubdtype(array.dtype, np.floating)
        else None
    )


def _column_of(schema: pyarrow.Schema) -> str | None:
    """The column of lists of floats: one with a usual name, or the only one."""
    kinds = pyarrow.types
    are_lists = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list)
    nested = [one for one in schema if any(is_one(one.type) for is_one in are_lists)]
    lists = [one.name for one in nested if kinds.is_floating(one.type.value_type)]
    return next((name for name in FEATURES if name in lists), lists[0] if len(lists) == 1 else None)


def _of_table(table: pyarrow.Table) -> Mapping[str, np.ndarray] | None:
    name = _column_of(table.schema)
    if name is None:
        return None
    rows = table[name].combine_chunks()
    if rows.null_count or len(set(rows.value_lengths().to_pylist())) > 1:
        raise ValueError(f"the lists in column '{name}' differ in length")
    flat = rows.flatten().to_numpy(zero_copy_only=False)
    others = as_arrays(
        table.select([one for one in table.column_names if one in (*NAMES, *LABELS)])
    )
    return {FEATURES[0]: flat.reshape(len(rows), -1), **others}


def _first(columns: Mapping[str, np.ndarray], names: tuple[str, ...]) -> Any:
    return next((columns[name] for name in names if name in columns), None)
