"""Embeddings as a file: a table with a row for each image, perhaps with their places on a map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
from jaxtyping import Float
from torch import Tensor

from nearfar.atomic import check_output, check_text, replacing
from nearfar.data import Images
from nearfar.data.exif import LONGEST
from nearfar.data.sources.rows import marked_as_images
from nearfar.data.table import as_arrays, cut
from nearfar.progress import log

FORMATS = (".parquet", ".csv", ".npz")
_LONGEST_LABEL = 1000  # characters


def check_format(out: str | Path, formats: Sequence[str] = FORMATS) -> None:
    """Raise ValueError for a file that exists or has another ending.

    Also for a .parquet or .csv file whose name is not text in UTF-8.
    """
    check_output(Path(out), formats)
    if Path(out).suffix != ".npz":
        check_text(out)


def save_embeddings(
    path: Path,
    images: Images,
    features: Float[Tensor, "images dim"],
    added: Mapping[str, pyarrow.Array] | None = None,
    pictures: str | None = None,
) -> Path:
    """Write one row for each image; added, pictures: as in `write_embeddings`."""
    labels: Any = images.labels
    if labels is not None and (classes := images.class_names) is not None:
        labels = [classes[label] if label >= 0 else None for label in labels]
    write_embeddings(path, images.names, features.numpy(), labels, images.columns, added, pictures)
    log.info("%d embeddings of %d numbers -> %s", len(images), features.shape[1], path)
    return path


def write_embeddings(
    path: Path,
    names: Sequence[str],
    features: np.ndarray,
    labels: Sequence[Any] | np.ndarray | None = None,
    columns: pyarrow.Table | None = None,
    added: Mapping[str, pyarrow.Array] | None = None,
    pictures: str | None = None,
) -> None:
    """Write one row for each image: its name, its label (the class by name, if it has one), and its
    embedding.

    .parquet: columns name, label, embedding (a list); .csv: name, label, e0, e1, ...; .npz: arrays
    of those names. columns: further ones, which come before the embedding, as they are in .parquet,
    else as `as_arrays` has them. Of a name that is taken they are called table_name. added: still
    more, before those, whose names are taken by them. pictures: the one of these, {bytes, path},
    that Hugging Face datasets is told to decode. Both in .parquet alone. The file appears when it
    is complete.
    """
    known: dict[str, Any] = {"name": np.array(names)}
    if labels is not None:
        own = pyarrow.table({"label": labels})
        known |= {"label": own["label"]} if path.suffix == ".parquet" else as_arrays(own)
    known |= added or {}
    embedding: dict[str, Any] = {"embedding": features}
    if path.suffix == ".csv":
        embedding = {f"e{i}": features[:, i] for i in range(features.shape[1])}
    if columns is not None:
        taken = {
            *known,
            *embedding,
            *(("file", "allow_pickle") if path.suffix == ".npz" else ()),
        }  # of np.savez
        names_now = [f"table_{name}" if name in taken else name for name in columns.column_names]
        columns = columns.rename_columns(names_now)
        whole = path.suffix == ".parquet"
        known |= {name: columns[name] for name in names_now} if whole else as_arrays(columns)
    with replacing(path) as file:
        if path.suffix == ".npz":  # whose texts have one width, and objects would be pickled
            known = {name: _of_one_width(name, values) for name, values in known.items()}
            np.savez(file, **known, **embedding)
        elif path.suffix == ".csv":
            pyarrow.csv.write_csv(pyarrow.table(known | embedding), file)
        else:
            flat = pyarrow.array(np.ascontiguousarray(features).reshape(-1))
            known["embedding"] = pyarrow.FixedSizeListArray.from_arrays(flat, features.shape[1])
            table = pyarrow.table(known)
            pyarrow.parquet.write_table(
                table if pictures is None else marked_as_images(table, pictures), file
            )


def _of_one_width(name: str, values: Any) -> Any:
    """Texts as an array of them, cut; of labels a thousand characters, as two classes may begin
    alike. Others as they are.
    """
    if not isinstance(values, np.ndarray) or values.dtype.kind != "O":
        return values
    if name == "label":
        return np.array([str(text)[:_LONGEST_LABEL] for text in values], dtype=str)
    return np.array([cut(str(text), LONGEST) for text in values], dtype=str)
