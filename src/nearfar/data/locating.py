"""What lies behind the name of a source: a folder, tables, tars or a data set on the Hub, and its splits."""

from __future__ import annotations

import os
from typing import Any

from nearfar.data import arrays, sources, tables
from nearfar.data.objects import describe, is_table
from nearfar.data.parquet import ParquetFiles
from nearfar.data.path_tables import TEXT_TABLES, names_paths, path_table
from nearfar.data.readers import ImageFolder, Source
from nearfar.data.tars import Tars


def encoded_source(source: Any) -> Source | None:
    """The files or tables behind a source, whose images are still encoded; None for every other source."""
    if is_table(source):
        return tables.from_object(source, describe(source))
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
        return tables.from_hub(name.removeprefix(sources.HUB))
    path = sources.existing(name)
    if path.is_file():
        suffix = path.suffix.lower()
        splits = sources.shard_splits([path.name])
        if suffix in TEXT_TABLES or (suffix == ".parquet" and names_paths(path)):
            return path_table(path)
        if suffix == ".parquet":
            return ParquetFiles(path.parent, splits)
        if suffix == ".tar":
            return Tars(path.parent, splits)
        raise ValueError(
            f"'{name}' is a single file; give a folder of images, or a .csv, .tsv, .parquet, .tar, .npy or .npz file"
        )
    files, problems = sources.list_files(path)
    kind, members = sources.kind_of(path, files, problems)
    if kind == "parquet":
        return ParquetFiles(path, sources.shard_splits(members), problems)
    if kind == "tars":
        return Tars(path, sources.shard_splits(members), problems)
    metadata = [name for name in files if os.path.basename(name) in sources.METADATA]
    return ImageFolder(path, sources.folder_splits(members), metadata, problems)
