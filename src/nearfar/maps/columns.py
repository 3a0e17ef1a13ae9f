"""Columns to colour a map by, one value for each image: from files and nearest neighbours, with
their colours.
"""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.compute as pc
import torch
from jaxtyping import Int64, Shaped
from numpy.typing import ArrayLike

from nearfar.data import Images
from nearfar.data.column_names import PATH_NAMES, find_column
from nearfar.data.names import match
from nearfar.data.sources import files
from nearfar.data.table import as_arrays
from nearfar.evaluation import extract_view
from nearfar.messages import did_you_mean, listed_names, raise_as_value_error
from nearfar.neighbours import Nearest
from nearfar.networks import Encoder
from nearfar.progress import log
from nearfar.training.seeding import stream
from nearfar.views import Views

# Chosen by farthest-point search in OKLab within a band of lightness and chroma, for light and dark
# backgrounds; the first ones are farthest apart.
PALETTE = (
    *(
        "#3b83d6",
        "#ecaf07",
        "#9d3629",
        "#147c11",
        "#fd6fa2",
        "#15c8ce",
        "#873cb2",
        "#6bcb51",
        "#967216",
        "#f47205",
    ),
    *(
        "#d9464c",
        "#cfb0c0",
        "#bd6be0",
        "#1355c2",
        "#3e656a",
        "#7da3ff",
        "#a3a16b",
        "#916989",
        "#54a105",
        "#439183",
    ),
)
GREY = "#8a8f98"
FEW = 20  # integers with at most so many different values are classes
MOST_CLASSES = 500
NONE, OTHERS, NO_LABEL = "none", "all others", "no label"
FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # nearfar writes a ' before them into a .csv
NEAREST = 15
LEAST = 1e-6  # cosine distance below which rows of float32 are the same


class Coloured(NamedTuple):
    """A class on a map."""

    name: str
    colour: str


class Column(NamedTuple):
    """A column with its colours.

    Classes: `values` are their numbers and `classes` their names and colours. A scale: `classes` is
    None, `values` are floats with NaN for a missing value, and colours run from `low` to `high`,
    the 1st and the 99th percentile.
    """

    name: str
    values: Shaped[np.ndarray, " images"]
    classes: list[Coloured] | None = None
    low: float = 0.0
    high: float = 1.0

    def description(self) -> dict[str, Any]:
        """All but the values, for JSON."""
        classes = None if self.classes is None else [entry._asdict() for entry in self.classes]
        return {"name": self.name, "classes": classes, "low": self.low, "high": self.high}


def label_column(labels: Int64[np.ndarray, " images"], class_names: Sequence[str] | None) -> Column:
    """Return labels as the column "label": the classes that occur, in the order of their numbers;
    -1 (none) is last. Of more classes than a map numbers, the 500 most frequent ones, and the rest
    together.
    """
    present, of_image = np.unique(labels, return_inverse=True)
    names = class_names or []
    words = [
        str(names[label]) if label < len(names) else str(label) for label in present[present >= 0]
    ]
    if len(present) > np.iinfo(np.uint16).max:
        return _classes("label", np.array([""] * (len(present) - len(words)) + words)[of_image])
    classes = _in_colours(words)
    if len(present) > len(classes):
        classes.append(Coloured(NO_LABEL, GREY))
        of_image = (of_image - 1) % len(classes)
    return Column("label", of_image.astype(np.uint16), classes)


def described(columns: Mapping[str, ArrayLike] | None, count: int) -> list[Column]:
    """Return columns with their colours, in their order.

    Text, booleans and integers with at most 20 different values are classes (missing: None, "" or
    NaN), the most frequent first, at most 500 and the rest together; other numbers are a scale.
    Raises ValueError for a column that does not have one value for each of `count` images, or has
    values of another kind.
    """
    return [_column(name, np.asarray(values), count) for name, values in (columns or {}).items()]


def _column(name: str, values: np.ndarray, count: int) -> Column:
    if values.shape != (count,):
        raise ValueError(
            f"column '{name}' must have one value for each of the {count} images, not "
            f"{values.shape}"
        )
    if values.dtype.kind == "b":
        return _classes(name, np.where(values, "yes", "no"))
    if values.dtype.kind in "iu" and len(np.unique(values)) <= FEW:
        return _classes(name, values.astype(str))
    if values.dtype.kind in "iuf":
        kind = np.float64 if values.dtype.itemsize > 4 else np.float32
        values = np.where(np.isfinite(values), values, np.nan).astype(kind)
        low, high = (
            (0.0, 1.0) if np.isnan(values).all() else map(float, np.nanpercentile(values, (1, 99)))
        )
        return Column(name, values, None, low, high if high > low else low + 1)
    if values.dtype.kind in "OUS":
        return _classes(
            name,
            np.array(
                ["" if value is None or value != value else str(value) for value in values.tolist()]
            ),
        )
    raise ValueError(f"column '{name}' must hold numbers or text, not {values.dtype}")


def _classes(name: str, text: np.ndarray) -> Column:
    count_of = Counter(text.tolist())
    missing = count_of.pop("", 0)
    ranked = sorted(count_of, key=lambda name: (-count_of[name], name))
    classes = _in_colours(ranked[:MOST_CLASSES])
    if len(ranked) > MOST_CLASSES:
        classes.append(Coloured(OTHERS, GREY))
    number = {name: min(rank, MOST_CLASSES) for rank, name in enumerate(ranked)} | {
        "": len(classes)
    }
    if missing:
        classes.append(Coloured(NONE, GREY))
    return Column(
        name, np.array([number[name] for name in text.tolist()], dtype=np.uint16), classes
    )


def _in_colours(names: Iterable[str]) -> list[Coloured]:
    return [Coloured(name, PALETTE[i % len(PALETTE)]) for i, name in enumerate(names)]


def packed(values: np.ndarray) -> dict[str, str]:
    """Return numbers as the page reads them: their type, and little-endian bytes in base64."""
    values = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return {"type": values.dtype.str[1:], "bytes": base64.b64encode(values.tobytes()).decode()}


def retrieval_column(
    encoder: Encoder,
    images: Images,
    views: Views,
    seed: int,
    search: Callable[..., Nearest],
    device: torch.device | str | None = None,
) -> np.ndarray:
    """Return whether the nearest to an augmented view of an image, among other views of all images,
    is its own.

    search: as `find_nearest`. device: where views are encoded; None: where the encoder is.
    """
    first, second = (
        extract_view(
            encoder,
            images,
            views.pick([number % len(views)]),
            stream(seed, "own view", number),
            device=device,
        )
        for number in range(2)
    )
    return (search(second, first, 1).index[:, 0] == torch.arange(len(images))).numpy()


def neighbour_columns(near: Nearest) -> dict[str, np.ndarray]:
    """Columns by the distances (cosine) of each image to its 15 nearest others.

    - outlierness: distance to the last of them (Ramaswamy et al. 2000)
    - density: minus the common logarithm of the mean distance, in the order of the typicality of
      Hacohen et al. 2022
    """
    distance = near.distance[:, :NEAREST]
    density = -distance.mean(1).clamp_min(LEAST).log10()
    return {"outlierness": distance[:, -1].numpy(), "density": density.numpy()}


def columns_of(
    own: pyarrow.Table | None,
    table: pyarrow.Table | None,
    names: Sequence[str],
    labelled: bool,
    paths: Sequence[str] | None = None,
) -> dict[str, np.ndarray]:
    """The columns that came with the images, and those of a table by their names or files, as
    arrays.

    labelled: the page has a column "label" already; that of the images is left out.
    """
    columns = {} if own is None else as_arrays(_in_years(own))
    if labelled:
        columns.pop("label", None)
    return columns if table is None else columns | join_columns(table, names, paths)


def _in_years(table: pyarrow.Table) -> pyarrow.Table:
    """The table with times as years, such as 2024.5, which are a scale."""
    for place, (name, kind) in enumerate(zip(table.column_names, table.schema.types, strict=True)):
        if pyarrow.types.is_timestamp(kind):
            seconds = (
                table[name]
                .cast(pyarrow.timestamp("s"), safe=False)
                .cast(pyarrow.int64())
                .cast(pyarrow.float64())
            )
            years = pc.add(pc.divide(seconds, 365.2425 * 86400), 1970.0)
            table = table.set_column(place, name, years)
    return table


def read_table(path: str | os.PathLike[str]) -> pyarrow.Table:
    """Read a .parquet, .csv, .tsv or .jsonl file that has a column of names; ValueError, one line,
    for anything else.
    """
    path = Path(path)
    if path.suffix.lower() not in (".parquet", ".csv", ".tsv", ".jsonl"):
        raise ValueError(f"`columns={str(path)!r}` must be a .parquet, .csv, .tsv or .jsonl file")
    if not path.is_file():
        raise ValueError(f"`columns={str(path)!r}`: there is no such file")
    with raise_as_value_error("`columns`", ValueError):
        table = files.read_table(path)
    if _column_of_names(table) is None:
        names = listed_names(table.column_names)
        raise ValueError(
            f"`columns={str(path)!r}` needs the image names in a column 'name' (or 'path'); it "
            f"has {names}"
        )
    return table


def _column_of_names(table: pyarrow.Table) -> str | None:
    """The column "name", as nearfar writes it, else one of another usual name."""
    return find_column(table.column_names, ("name", *PATH_NAMES))


def join_columns(
    table: pyarrow.Table, names: Sequence[str], paths: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Return the other columns of a table, in the order of the images with these names and files;
    an image without a row has missing values.

    A name in the table is that of an image, or means one as `nearfar.data.names.match` says.
    Numbers come as float64, NaN for missing ones (integers without gaps as they are), all else as
    text. Lists, structs and bytes are left out. Of several rows of one name the first counts, and a
    log line counts the others; another one counts the images without a row. Raises ValueError if no
    name is in the table.
    """
    key = str(_column_of_names(table))
    row_of: dict[str, int] = {}
    others: dict[str, int] = {}
    wanted, again = set(names), 0
    for row, name in enumerate(map(str, table[key].to_pylist())):
        if name.startswith("'") and name.lstrip("'").startswith(FORMULAS) and name[1:] in wanted:
            name = name[1:]
        known = row_of if name in wanted else others
        again += known.setdefault(name, row) != row
    rows = [row_of.get(name) for name in names]
    if others and None in rows:
        matched, note = match(list(others), names, paths)
        for image, place in matched.items():
            if rows[image] is None:
                rows[image] = list(others.values())[place]
        if note:
            log.info("`columns`: %s", note)
    if again:
        log.info("`columns`: left out %d rows whose names had occurred before", again)
    if lacking := rows.count(None):
        if lacking == len(rows):
            first = str(table[key][0]) if len(table) else ""
            near = did_you_mean(first, names[:1000], f"'{names[0]}' is")
            raise ValueError(
                f"`columns`: no name in column '{key}' is that of an image: '{first}' is not, "
                f"{near}"
            )
        first = names[rows.index(None)]
        log.info("`columns`: %d of %d images have no row, first %s", lacking, len(rows), first)
    return as_arrays(table.drop_columns([key]).take(pyarrow.array(rows, type=pyarrow.int64())))
