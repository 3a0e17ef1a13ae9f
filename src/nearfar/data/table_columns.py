"""Columns that come with images: several tables as one, and columns as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow
import pyarrow.compute


def stacked(tables: Sequence[pyarrow.Table | None], lengths: Sequence[int]) -> pyarrow.Table | None:
    """The rows of all tables, without a value where a table lacks a column; None stands for a table without columns.

    Columns of types that do not go together become text. None if all are.
    """
    names = dict.fromkeys(name for table in tables if table is not None for name in table.column_names)
    columns = {}
    for name in names:
        parts = [
            pyarrow.nulls(length) if table is None or name not in table.column_names else table[name]
            for table, length in zip(tables, lengths, strict=True)
        ]
        try:
            whole = pyarrow.concat_tables([pyarrow.table({name: one}) for one in parts], promote_options="permissive")
            columns[name] = whole[name]
        except pyarrow.ArrowException:
            texts = [None if value is None else str(value) for one in parts for value in one.to_pylist()]
            columns[name] = pyarrow.chunked_array([pyarrow.array(texts, pyarrow.string())])
    return pyarrow.table(columns) if columns else None


def as_arrays(table: pyarrow.Table) -> dict[str, np.ndarray]:
    """The columns as arrays: numbers as float64, NaN where there is none (whole numbers without gaps as they are).

    All else as text, "" where there is none. Lists, structs and bytes are left out.
    """
    found = {name: _values(table[name]) for name in table.column_names}
    return {name: values for name, values in found.items() if values is not None}


def _values(column: pyarrow.ChunkedArray) -> np.ndarray | None:
    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pyarrow.types.is_floating(kind) or (pyarrow.types.is_integer(kind) and column.null_count):
        return pyarrow.compute.cast(column, pyarrow.float64()).to_numpy()
    if pyarrow.types.is_integer(kind):
        return column.to_numpy()
    if pyarrow.types.is_nested(kind) or pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind):
        return None
    if pyarrow.types.is_boolean(kind):
        return np.array([{True: "yes", False: "no", None: ""}[one] for one in column.to_pylist()])
    return np.array(["" if one is None else str(one) for one in column.to_pylist()])


def told_as_pictures(table: pyarrow.Table, column: str) -> pyarrow.Table:
    """The table with a note for Hugging Face datasets that a column of {bytes, path} holds pictures."""
    from datasets import Features, Image  # here: it takes seconds to import

    features = Features.from_arrow_schema(table.schema)
    features[column] = Image()
    return table.replace_schema_metadata(features.arrow_schema.metadata)
