"""Write embeddings where other programs read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
from jaxtyping import Float, Int

from nearfar.atomic import replacing
from nearfar.data.sources.rows import marked_as_images
from nearfar.data.table import as_arrays

FORMATS = (".parquet", ".csv", ".npz")


def write_table(
    path: Path,
    names: Sequence[str],
    features: Float[np.ndarray, "images dim"],
    labels: Int[np.ndarray, " images"] | None = None,
    columns: pyarrow.Table | None = None,
    added: Mapping[str, pyarrow.Array] | None = None,
    pictures: str | None = None,
) -> None:
    """Write one row for each image: its name, its label if there is one, and its embedding.

    .parquet: columns name, label, embedding (a list); .csv: name, label, e0, e1, ...; .npz: arrays of those names.
    columns: further ones, which come before the embedding, as they are in .parquet, else as `as_arrays` has them. Of a
    name that is taken they are called table_name. added: still more, before those, whose names are taken by them.
    pictures: the one of these, {bytes, path}, that Hugging Face datasets is told to decode. Both in .parquet alone.
    The file appears when it is complete. Raises ValueError for another ending.
    """
    if path.suffix not in FORMATS:
        raise ValueError(f"{path} ends in {path.suffix or 'nothing'}; embeddings are written as {', '.join(FORMATS)}")
    known: dict[str, Any] = {"name": np.array(names)} | ({} if labels is None else {"label": labels})
    known |= added or {}
    if path.suffix == ".csv":
        embedding: dict[str, Any] = {f"e{i}": features[:, i] for i in range(features.shape[1])}
    else:
        embedding = {"embedding": features}
    if columns is not None:
        names_now = [f"table_{name}" if name in {**known, **embedding} else name for name in columns.column_names]
        columns = columns.rename_columns(names_now)
        whole = path.suffix == ".parquet"
        known |= {name: columns[name] for name in names_now} if whole else as_arrays(columns)
    with replacing(path) as file:
        if path.suffix == ".npz":
            np.savez(file, **known, **embedding)
        elif path.suffix == ".csv":
            pyarrow.csv.write_csv(pyarrow.table(known | embedding), file)
        else:
            flat = pyarrow.array(np.ascontiguousarray(features).reshape(-1))
            known["embedding"] = pyarrow.FixedSizeListArray.from_arrays(flat, features.shape[1])
            table = pyarrow.table(known)
            pyarrow.parquet.write_table(table if pictures is None else marked_as_images(table, pictures), file)
