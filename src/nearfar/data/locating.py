"""What lies behind the name of a source: a folder, tables, tars or a data set on the Hub, and its splits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from nearfar.data import arrays, sources, tables
from nearfar.data.objects import describe, is_table
from nearfar.data.parquet import ParquetFiles
from nearfar.data.path_tables import TEXT_TABLES, names_paths, path_table
from nearfar.data.readers import ImageFiles, ImageFolder, Source
from nearfar.data.tars import Tars


def encoded_source(source: Any) -> Source | None:
    """The files or tables behind a source, whose images are still encoded; None for every other source."""
    if is_table(source):
        return tables.from_object(source, describe(source))
    if sources.are_files(source):
        return ImageFiles([os.fspath(path) for path in source])
    if not isinstance(source, (str, os.PathLike)):
        return None
    name = os.fspath(source)
    return None if name == "digits" or name.lower().endswith((".npy", ".npz")) else locate(name)


def list_splits(source: Any) -> list[str]:
    """The splits that `open_images(source, split=...)` knows; empty where the source is not divided."""
    if is_table(source):
        return list(source) if isinstance(source, dict) else []
    if sources.are_several(source):
        first, *others = [list_splits(one) for one in source]
        return [split for split in first if all(split in there for there in others)]
    if not isinstance(source, (str, os.PathLike)):
        return []
    name = os.fspath(source)
    if name == "digits":
        return ["train", "test"]
    if name.lower().endswith((".npy", ".npz")):
        return arrays.splits_of(sources.existing(name))
    return [split for split in locate(name).splits if split]


def locate(name: str) -> Source:
    """The source behind a path or the name of a data set on the Hub."""
    if name.startswith(sources.HUB):
        found: Source = tables.from_hub(sources.hub_name(name))
    else:
        path = sources.existing(name)
        found = _file(path) if path.is_file() else _folder(path)
    sources.say_splits(name, found.splits)
    return found


def _file(path: Path) -> Source:
    suffix = path.suffix.lower()
    splits = sources.shard_splits([path.name], path)
    if suffix in TEXT_TABLES or (suffix == ".parquet" and names_paths(path)):
        return path_table(path)
    if suffix == ".parquet":
        return ParquetFiles(path.parent, splits)
    if suffix == ".tar":
        return Tars(path.parent, splits)
    if sources.are_files([path]):
        return ImageFiles([os.fspath(path)])
    raise ValueError(f"'{path}' is no image, and no .csv, .tsv, .parquet, .tar, .npy or .npz file")


def _folder(path: Path) -> Source:
    files, problems = sources.list_files(path)
    kind, members, others = sources.kind_of(path, files, problems)
    splits = sources.folder_splits(members, path) if kind == "images" else sources.shard_splits(members, path)
    problems += [(name, f"not read: most files here are {kind}") for name in others] + sources.in_none(members, splits)
    if kind == "images":
        return ImageFolder(path, splits, [one for one in files if os.path.basename(one) in sources.METADATA], problems)
    return (ParquetFiles if kind == "parquet" else Tars)(path, splits, problems)
