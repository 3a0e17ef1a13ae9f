"""Sources of images by kind, and which one lies behind a path, a name or an object."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from nearfar.data.left_out import LOOKED_AT, by_content, describe_left_out
from nearfar.data.sources import arrays, rows
from nearfar.data.sources.encoded import EncodedSource
from nearfar.data.sources.files import (
    METADATA,
    TEXT_TABLES,
    ImageFiles,
    ImageFolder,
    PathTable,
    existing,
    kind_of,
    list_files,
    names_paths,
    sorted_out,
)
from nearfar.data.sources.outside import Outside
from nearfar.data.sources.source import Readable, Source
from nearfar.data.sources.splits import folder_splits, shard_splits
from nearfar.data.sources.tars import Tars
from nearfar.data.table import LIMIT
from nearfar.data.value_range import ANY_FORMAT, FormatRequest


def are_paths(source: Any) -> bool:
    """Return whether it is a list of paths or names."""
    given = isinstance(source, (list, tuple)) and len(source) > 0
    return given and all(isinstance(path, (str, os.PathLike)) for path in source)


def are_files(source: Any) -> bool:
    """Return whether it is a list of image files, by their endings: one source."""
    return are_paths(source) and all(
        kind_of(os.fspath(path)) == "images" and not os.path.isdir(path) for path in source
    )


def are_several(source: Any) -> bool:
    """Return whether it is a list of paths or names, each a source of images."""
    return are_paths(source) and not are_files(source)


def short_names(given: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The end of each path or name, of as many parts as make all of them differ; ValueError for one
    given twice.
    """
    names = [os.fspath(path) for path in given]
    whole = [
        os.path.abspath(os.path.expanduser(n)) if os.path.exists(os.path.expanduser(n)) else n
        for n in names
    ]
    seen: set[str] = set()
    for name, real in zip(names, map(os.path.realpath, whole), strict=True):
        if real in seen:
            raise ValueError(f"'{name}' is given twice")
        seen.add(real)
    parts = [Path(name).parts for name in whole]
    shorter = (
        ["/".join(folders[-depth:]) for folders in parts]
        for depth in range(1, max(map(len, parts)) + 1)
    )
    return next(short for short in shorter if len(set(short)) == len(short))


def describe(source: Any) -> str:
    """A source in a few words, for config files and messages; a path or name is its own
    description, and an object may have one, `described`.

    Such as "array [1797, 8, 8] uint8", "torch Dataset CIFAR10 of 50000 images", "datasets.Dataset
    of 1000 rows".
    """
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if isinstance(own := getattr(source, "described", None), str):
        return own
    if are_files(source):
        return f"{len(source)} image files, first {os.fspath(source[0])}"
    if are_several(source):
        return " + ".join(short_names(source))
    if is_array(source):
        images = source[0] if isinstance(source, tuple) else source
        kind = "tensor" if isinstance(images, Tensor) else "array"
        return f"{kind} {list(images.shape)} {str(images.dtype).removeprefix('torch.')}"
    if is_table(source):
        rows = (
            sum(len(table) for table in source.values())
            if isinstance(source, dict)
            else len(source)
        )
        return f"datasets.{type(source).__name__} of {rows} rows"
    if isinstance(source, Dataset):
        length = length_of(source)
        return f"torch Dataset {type(source).__name__}" + (
            f" of {length} images" if length is not None else ""
        )
    if isinstance(source, (list, tuple)):
        return f"{type(source).__name__} of {len(source)} images"
    return f"an object of class {type(source).__name__}"


def length_of(source: Any) -> int | None:
    """Its length, or None; never found out by asking for items until one is missing, as some have
    no last one.
    """
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        return None


def is_array(source: Any) -> bool:
    """Return whether it is an array or tensor, or a pair (images, labels) of which the first is."""
    images = source[0] if isinstance(source, tuple) and len(source) == 2 else source
    return isinstance(images, (np.ndarray, Tensor))


def is_array_file(source: Any) -> bool:
    """Return whether it is the path of a .npy or .npz file."""
    return isinstance(source, (str, os.PathLike)) and os.fspath(source).lower().endswith(
        (".npy", ".npz")
    )


def is_table(source: Any) -> bool:
    """Return whether it is a Dataset or DatasetDict of `datasets`, which is not imported to find
    out.
    """
    library = sys.modules.get("datasets")
    return library is not None and isinstance(source, (library.Dataset, library.DatasetDict))


def has_items(source: Any) -> bool:
    """Return whether it is a torch Dataset with a length, or a list, to be read item by item."""
    given = isinstance(source, (Dataset, list, tuple)) and not isinstance(source, IterableDataset)
    return given and length_of(source) is not None


def find_source(
    given: Any,
    label_column: str | None = None,
    *,
    request: FormatRequest = ANY_FORMAT,
    limit: int = LIMIT,
    among: bool = False,
) -> Source:
    """The source behind a path, a name or an object; ValueError or FileNotFoundError without one.

    request, limit: form and bytes of what must be read to be scanned. among: one of several
    sources, of which some may lack the column of labels.
    """
    if isinstance(given, Source):
        return given
    is_row = isinstance(given, np.ndarray) and given.ndim == 1
    holds_paths = is_row and given.dtype.kind in "OSU"  # or images
    if is_array(given) and not holds_paths:
        return arrays.of_memory(given, request.channels)
    if is_table(given):
        tables = given if isinstance(given, dict) else {"": given}
        anywhere = Path(Path.cwd().anchor)  # rows may name any file
        return rows.Tables(tables, describe(given), anywhere, label_column)
    if are_files(given):
        return ImageFiles(given)
    if isinstance(given, (str, os.PathLike)):
        return _named(os.fspath(given), label_column, request.channels, among)
    if has_items(given):
        return arrays.Items(given, describe(given), request, limit)
    if isinstance(given, Readable):
        return Outside(given, describe(given))
    if holds_paths or (isinstance(given, Iterable) and not isinstance(given, Dataset)):
        raise ValueError(
            f"cannot open images from {describe(given)}: make a list of it, of paths or of images"
        )
    raise ValueError(
        f"cannot open images from {describe(given)}; give a path, an array or a tensor, a pair "
        f"(images, labels), "
        "a datasets.Dataset, or a map-style torch Dataset with __len__"
    )


def _named(name: str, label_column: str | None, channels: int | None, among: bool) -> Source:
    if name == "digits":
        return arrays.Digits()
    if name.startswith(rows.HUB):
        return rows.from_hub(rows.hub_name(name), label_column)
    path = existing(name)
    if is_array_file(name):
        return arrays.ArrayFile(path, label_column, channels)
    return _file(path, label_column) if path.is_file() else _folder(path, label_column, among)


def has_columns(source: Source) -> bool:
    """Return whether a source has columns, of which one may hold labels."""
    if isinstance(source, ImageFolder):
        return source.has_metadata
    if isinstance(source, arrays.ArrayFile):
        return source.path.suffix.lower() == ".npz"
    return isinstance(source, EncodedSource) and not isinstance(source, ImageFiles)


def _file(path: Path, label_column: str | None) -> Source:
    suffix = path.suffix.lower()
    if suffix in TEXT_TABLES or (suffix == ".parquet" and names_paths(path)):
        return PathTable(path, label_column)
    if suffix == ".parquet":
        return rows.ParquetFiles(path.parent, shard_splits([path.name], path), (), label_column)
    if suffix == ".tar":
        return Tars(path.parent, shard_splits([path.name], path), (), label_column)
    if are_files([path]):
        return ImageFiles([path])
    with path.open("rb") as file:
        if by_content(path.name, file.read(LOOKED_AT)) is None:  # an image of another name
            return ImageFiles([path])
    raise ValueError(f"'{path}' is no image, and no .csv, .tsv, .parquet, .tar, .npy or .npz file")


def _folder(root: Path, label_column: str | None, among: bool) -> Source:
    """The source in a folder: its images, Parquet files or tars, whichever it holds most of."""
    files, problems = list_files(root)
    groups: dict[str | None, list[str]] = {"parquet": [], "tars": [], "images": [], None: []}
    for name in files:
        groups[kind_of(name)].append(name)
    unusual, left = sorted_out(root, groups.pop(None))
    groups["images"] = sorted([*groups["images"], *unusual])
    kind = max(groups, key=lambda name: len(groups[name]))
    members = groups.pop(kind)
    if not members:
        state = "is empty" if not any(root.iterdir()) else "holds no images, Parquet files or tars"
        wrong = f"; left out: {describe_left_out(left)}" if left else ""
        wrong += "".join(f"; '{name}': {reason}" for name, reason in problems[:1])
        raise ValueError(
            f"the folder '{root}' {state}; images are .png, .jpg, .tif and others, at any "
            f"depth{wrong}"
        )
    splits = folder_splits(members, root) if kind == "images" else shard_splits(members, root)
    others = sorted(name for group in groups.values() for name in group)
    problems += [(name, f"not read: most files here are {kind}") for name in others] + left
    if kind == "images":
        metadata = [file for file in files if os.path.basename(file) in METADATA]
        tables = [file for file in files if file.lower().endswith(TEXT_TABLES) or file in metadata]
        label_column = label_column if metadata or not among else None
        return ImageFolder(root, splits, metadata, problems, label_column, tables)
    return (rows.ParquetFiles if kind == "parquet" else Tars)(root, splits, problems, label_column)
