"""Columns of a Parquet or CSV file, joined to images by their names."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet

from nearfar.data.table_columns import as_arrays
from nearfar.messages import did_you_mean, one_line

NAME_COLUMNS = ("name", "file_name", "filename", "path", "file", "image")
FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # nearfar writes a ' before them into a .csv


def read_table(path: str | os.PathLike[str]) -> pyarrow.Table:
    """Read a .parquet or .csv file that has a column of names; ValueError, one line, for anything else."""
    path = Path(path)
    if path.suffix not in (".parquet", ".csv"):
        raise ValueError(f"--columns {path} must be a .parquet or a .csv file")
    if not path.is_file():
        raise ValueError(f"--columns {path}: there is no such file")
    with one_line(f"cannot read --columns {path}", pyarrow.ArrowException, OSError):
        if path.suffix == ".parquet":
            table = pyarrow.parquet.read_table(path)
        else:
            as_text = dict.fromkeys(NAME_COLUMNS, pyarrow.string())  # names of digits keep their zeros
            table = pyarrow.csv.read_csv(path, convert_options=pyarrow.csv.ConvertOptions(column_types=as_text))
    if twice := next((name for name in table.column_names if table.column_names.count(name) > 1), None):
        raise ValueError(f"--columns {path} has more than one column '{twice}'; rename one of them")
    if not set(table.column_names) & set(NAME_COLUMNS):
        found = ", ".join(table.column_names)
        raise ValueError(f"--columns {path} needs the images' names in a column 'name' (or 'path'); it has {found}")
    return table


def join_columns(table: pyarrow.Table, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the other columns of a table, in the order of `names`; an image without a row has no value.

    Numbers come as float64, NaN where there is none (whole numbers without gaps as they are), all else as text. Lists,
    structs and bytes are left out. Of several rows of one name the first counts, and a line says how many are left out.
    Raises ValueError where no name is in the table.
    """
    key = next(name for name in NAME_COLUMNS if name in table.column_names)
    row_of: dict[str, int] = {}
    wanted, again = set(names), 0
    for row, name in enumerate(map(str, table[key].to_pylist())):
        if name.startswith("'") and name.lstrip("'").startswith(FORMULAS) and name[1:] in wanted:
            name = name[1:]
        if name in wanted:
            again += row_of.setdefault(name, row) != row
    if again:
        logging.getLogger("nearfar").info("--columns: %d rows of names that came before are left out", again)
    if not row_of and len(names):
        first = str(table[key][0]) if len(table) else ""
        near = did_you_mean(first, names[:1000], f"'{names[0]}' is")
        raise ValueError(f"--columns: no name in column '{key}' is that of an image: '{first}' is not, {near}")
    rows = pyarrow.array([row_of.get(name) for name in names], type=pyarrow.int64())
    return as_arrays(table.drop_columns([key]).take(rows))
