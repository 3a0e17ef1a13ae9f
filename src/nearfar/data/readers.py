"""Sources on disk, read through `datasets` builders without decoding.

The builder classes are used directly and as streams: `datasets.load_dataset` would report even the use of local folders
to the Hub, and copy the data into a cache of its own. Only `originals` of Parquet files and tars makes such a copy (for
random access to images that are too many for the pixel cache), inside nearfar's cache folder.
"""

from __future__ import annotations

import contextlib
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from nearfar.data import columns, sources
from nearfar.data.columns import EncodedColumn, Originals, Record
from nearfar.data.decode import suffixes
from nearfar.messages import first_line

if TYPE_CHECKING:
    import datasets


class Reading(NamedTuple):
    """A split being read: its records in order, and where known its class names and number of records."""

    records: Iterator[Record]
    class_names: list[str] | None
    total: int | None


@runtime_checkable
class Source(Protocol):
    """Anything with splits of encoded images."""

    splits: dict[str, Any]

    def identity(self, splits: Sequence[str]) -> list[Any]:
        """What the cache key is made of; plain JSON values."""
        ...

    def read(self, split: str, label_column: str | None, scratch: Path) -> Reading:
        """The split's records in order; `scratch` is a folder that `datasets` may write to."""
        ...

    def originals(self, splits: Sequence[str], names: list[str], rows: list[int], scratch: Path) -> Originals:
        """Random access to encoded images: those called `names`, at the positions `rows` of the joined splits."""
        ...


def _prefix(split: str) -> str:
    return f"{split}/" if split else ""


class _Files:
    """Files under a root, divided into splits."""

    def __init__(self, root: Path, splits: dict[str, list[str]]) -> None:
        self.root, self.splits = root.resolve(), splits

    def identity(self, splits: Sequence[str]) -> list[Any]:
        named = [(split, name) for split in splits for name in self.splits[split]]
        return [str(self.root), *([split, name, *_state(f"{self.root}/{name}")] for split, name in named)]


class ImageFolder(_Files):
    """Image files at any depth.

    Labels: with `label_column`, from metadata.csv, .jsonl or .parquet; else the class folder, when every image lies
    exactly one folder below the root (or below its split's folder) and there are at least two such folders.
    """

    def __init__(self, root: Path, splits: dict[str, list[str]], metadata: list[str]) -> None:
        super().__init__(root, splits)
        self.metadata = metadata
        self._listed: dict[tuple[str, str | None], tuple[list[Record], list[str] | None]] = {}

    def identity(self, splits: Sequence[str]) -> list[Any]:
        notes = [[name, *_state(self.root / name)] for name in self.metadata]
        return [super().identity(splits), self._has_class_folders(), notes]

    def read(self, split: str, label_column: str | None, scratch: Path) -> Reading:
        key = split, label_column
        if key not in self._listed:
            self._listed[key] = self._list(split, label_column, scratch)
        records, classes = self._listed[key]
        return Reading(iter(records), classes, len(records))

    def _list(self, split: str, label_column: str | None, scratch: Path) -> tuple[list[Record], list[str] | None]:
        from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder as Imagefolder

        class Builder(Imagefolder):
            EXTENSIONS = sorted(suffixes())  # also the formats that newer versions of Pillow brought

        files = dict(self.splits)
        if label_column is not None:
            if not self.metadata:
                raise ValueError(f"'{self.root}' has no {' or '.join(sources.METADATA)} with a column '{label_column}'")
            files = {s: names + self._metadata_of(s) for s, names in files.items()}
        builder = Builder(
            data_files=_data_files(self.root, files),
            cache_dir=str(scratch),
            drop_labels=label_column is not None or not self._has_class_folders(),
            drop_metadata=label_column is None,
        )
        with _one_line(self.root):
            stream, features = _stream(builder, split)
            rows = list(stream)
        image = columns.image_column(features, self.root)
        label = columns.label_column(features, label_column, self.root)
        paths = [(row[image]["path"], label and row[label]) for row in rows]
        records = [Record(os.path.relpath(path, self.root).replace(os.sep, "/"), path, value) for path, value in paths]
        records.sort(key=lambda record: record.name)
        return records, columns.class_names(features, label)

    def originals(self, splits: Sequence[str], names: list[str], rows: list[int], scratch: Path) -> Originals:
        return [str(self.root / name) for name in names]

    def _has_class_folders(self) -> bool:
        folders = [
            name.split("/")[1:-1] if split else name.split("/")[:-1] for split, fs in self.splits.items() for name in fs
        ]
        return all(len(above) == 1 for above in folders) and len({above[0] for above in folders}) > 1

    def _metadata_of(self, split: str) -> list[str]:
        return [name for name in self.metadata if not split or sources.folder_splits([name]).get(split)]


class _Tables(_Files):
    """Files that hold one image per row."""

    def read(self, split: str, label_column: str | None, scratch: Path) -> Reading:
        with _one_line(self.root):
            stream, features = _stream(self._builder([split], scratch), split)
            total = self._total(split)
        image = columns.image_column(features, self.root)
        label = columns.label_column(features, label_column, self.root)
        records = columns.to_records(_guarded(stream, self.root), image, label, _prefix(split), self.root)
        return Reading(records, columns.class_names(features, label), total)

    def originals(self, splits: Sequence[str], names: list[str], rows: list[int], scratch: Path) -> Originals:
        import datasets

        builder = self._builder(splits, scratch)
        with _quiet():
            builder.download_and_prepare()
            tables = [builder.as_dataset(split=split or "train") for split in splits]
        return EncodedColumn(datasets.concatenate_datasets(tables), rows, self.root)

    def _builder(self, splits: Sequence[str], scratch: Path) -> datasets.DatasetBuilder:
        raise NotImplementedError

    def _total(self, split: str) -> int | None:
        return None


class ParquetFiles(_Tables):
    """Parquet files with a column of images: type Image, a struct {bytes, path}, or binary."""

    def _builder(self, splits: Sequence[str], scratch: Path) -> datasets.DatasetBuilder:
        from datasets.packaged_modules.parquet.parquet import Parquet

        return Parquet(data_files=_data_files(self.root, {s: self.splits[s] for s in splits}), cache_dir=str(scratch))

    def _total(self, split: str) -> int | None:
        import pyarrow.parquet

        return sum(pyarrow.parquet.read_metadata(self.root / name).num_rows for name in self.splits[split])


class Tars(_Tables):
    """Tars in WebDataset form: the members of one example share a name up to the first dot. No pickle is read."""

    def _builder(self, splits: Sequence[str], scratch: Path) -> datasets.DatasetBuilder:
        from datasets.packaged_modules.webdataset.webdataset import WebDataset

        return WebDataset(
            data_files=_data_files(self.root, {s: self.splits[s] for s in splits}), cache_dir=str(scratch)
        )


def _state(path: str | Path) -> tuple[int, int]:
    """Size and time of change; zeros for a link to nothing, which is then listed as unreadable."""
    try:
        stat = os.stat(path)
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns


def _data_files(root: Path, splits: dict[str, list[str]]) -> Any:
    """Files for a builder, by exact name: its patterns would trip over "[" or "*" in a path."""
    from datasets.data_files import DataFilesDict, DataFilesList

    def exact(names: list[str]) -> Any:
        paths = [root / name for name in names]
        return DataFilesList([str(path) for path in paths], [(str(_state(path)),) for path in paths])

    return DataFilesDict({split or "train": exact(names) for split, names in splits.items()})


def _stream(builder: datasets.DatasetBuilder, split: str) -> tuple[datasets.IterableDataset, datasets.Features]:
    stream = builder.as_streaming_dataset(split=split or "train")
    return columns.undecoded(stream, columns.image_column(stream.features, builder.name)), stream.features


@contextlib.contextmanager
def _one_line(source: object) -> Iterator[None]:
    """What `datasets` and pyarrow say about a damaged file, as a ValueError of one line."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, TypeError, KeyError, tarfile.TarError) as error:
        raise ValueError(f"cannot read '{source}': {first_line(error)}") from error


def _guarded(rows: Iterable[Any], source: object) -> Iterator[Any]:
    with _one_line(source):
        yield from rows


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    import datasets

    shown = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
