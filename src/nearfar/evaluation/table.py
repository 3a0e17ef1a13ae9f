"""Write embeddings where other programs read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
from jaxtyping import Float, Int

from nearfar.atomic import replacing

FORMATS = (".parquet", ".csv", ".npz")


def write_table(
    path: Path,
    names: Sequence[str],
    features: Float[np.ndarray, "images dim"],
    labels: Int[np.ndarray, " images"] | None = None,
) -> None:
    """Write one row for each image: its name, its label if there is one, and its embedding.

    .parquet: columns name, label, embedding (a list); .csv: name, label, e0, e1, ...; .npz: arrays of those names.
    The file appears when it is complete. Raises ValueError for another ending.
    """
    if path.suffix not in FORMATS:
        raise ValueError(f"{path} ends in {path.suffix or 'nothing'}; embeddings are written as {', '.join(FORMATS)}")
    with replacing(path) as file:
        if path.suffix == ".npz":
            arrays = {"name": np.array(names), "embedding": features} | ({} if labels is None else {"label": labels})
            np.savez(file, **arrays)  # type: ignore[arg-type]
            return
        columns: dict[str, pyarrow.Array] = {"name": pyarrow.array(names)}
        if labels is not None:
            columns["label"] = pyarrow.array(labels)
        if path.suffix == ".parquet":
            flat = pyarrow.array(np.ascontiguousarray(features).reshape(-1))
            columns["embedding"] = pyarrow.FixedSizeListArray.from_arrays(flat, features.shape[1])
            pyarrow.parquet.write_table(pyarrow.table(columns), file)
        else:
            columns |= {f"e{i}": pyarrow.array(features[:, i]) for i in range(features.shape[1])}
            pyarrow.csv.write_csv(pyarrow.table(columns), file)
