"""What a source of encoded images is, what all that lie on disk have in common, and folders of images."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from nearfar.data import columns, digests, sources
from nearfar.data.columns import Originals, Record
from nearfar.data.decode import suffixes
from nearfar.messages import one_line

_BLOCK = 4096


class Reading(NamedTuple):
    """A split being read: its records in order, and where known its class names and number of records."""

    records: Iterator[Record]
    class_names: list[str] | None
    total: int | None


@runtime_checkable
class Source(Protocol):
    """Anything with splits of encoded images; `problems` are (name, reason) of what could not be looked at."""

    splits: dict[str, Any]
    problems: list[tuple[str, str]]

    def digests(self, splits: Sequence[str], folder: Path) -> dict[str, str]:
        """The digests of the splits' files by path, remembered in the cache `folder`; see `nearfar.data.digests`."""
        ...

    def identity(self, splits: Sequence[str], digests: Mapping[str, str]) -> list[Any]:
        """What the pixels and names of the splits depend on, for the cache key; plain JSON values."""
        ...

    def read(self, split: str, label_column: str | None, scratch: Path) -> Reading:
        """The split's records in order; `scratch` is a folder that `datasets` may write to."""
        ...

    def originals(self, splits: Sequence[str], label_column: str | None, rows: list[int], scratch: Path) -> Originals:
        """Random access to encoded images: those at the positions `rows` of the records of the joined splits."""
        ...


class Files:
    """Files under a root, divided into splits."""

    def __init__(self, root: Path, splits: dict[str, list[str]], problems: Sequence[tuple[str, str]] = ()) -> None:
        self.root, self.splits, self.problems = root.resolve(), splits, list(problems)

    def digests(self, splits: Sequence[str], folder: Path) -> dict[str, str]:
        names = [name for split in splits for name in self.splits[split]]
        found = digests.digests(self.root, names, splits, folder)
        return {f"{self.root}/{name}": digest for name, digest in found.items()}

    def identity(self, splits: Sequence[str], digests: Mapping[str, str]) -> list[Any]:
        return [[split, name, digests[f"{self.root}/{name}"]] for split in splits for name in self.splits[split]]


def prefix(split: str) -> str:
    """What the names of a split's images begin with."""
    return f"{split}/" if split else ""


def state(path: str | Path) -> tuple[int, int, str]:
    """Size, time of change, and a hash of the first and last block, where images and tables keep their checksums.

    Zeros for what cannot be read, such as a link to nothing, which is then listed as unreadable.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            stat = os.fstat(file.fileno())
            ends = file.read(_BLOCK)
            if stat.st_size > _BLOCK:
                file.seek(-_BLOCK, os.SEEK_END)
                ends += file.read(_BLOCK)
    except OSError:
        return 0, 0, ""
    return stat.st_size, stat.st_mtime_ns, digests.digest(ends, size=8)


class ImageFolder(Files):
    """Image files at any depth.

    Labels: with `label_column`, from metadata.csv, .jsonl or .parquet; else the class folder, when images lie exactly
    one folder below the root (or below their split's folder) and there are at least two such folders. Of the first
    split fewer than half may lie in the root itself: they have no label.
    """

    def __init__(
        self,
        root: Path,
        splits: dict[str, list[str]],
        metadata: list[str],
        problems: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(root, splits, problems)
        self.metadata = metadata
        self._listed: dict[tuple[str, str | None], tuple[list[Record], list[str] | None]] = {}

    def read(self, split: str, label_column: str | None, scratch: Path) -> Reading:
        key = split, label_column
        if key not in self._listed:
            self._listed[key] = (
                self._by_folder(split) if label_column is None else self._by_metadata(split, label_column, scratch)
            )
        records, classes = self._listed[key]
        return Reading(iter(records), classes, len(records))

    def originals(self, splits: Sequence[str], label_column: str | None, rows: list[int], scratch: Path) -> Originals:
        records = [record for split in splits for record in self.read(split, label_column, scratch).records]
        return [records[row].data or "" for row in rows]

    def _by_folder(self, split: str) -> tuple[list[Record], list[str] | None]:
        classes = self._classes()
        number = {name: place for place, name in enumerate(classes or [])}
        labels = [number[_class(n)] if classes and _depth(split, n) else None for n in self.splits[split]]
        if classes and None in labels:
            without = self.splits[split][labels.index(None)]
            count = f"{labels.count(None)} of {len(labels)}, first '{without}'"
            sources.say_once(f"images of '{self.root}' in no class folder, so without a label: {count}")
        named = zip(self.splits[split], labels, strict=True)
        return [Record(name, f"{self.root}/{name}", label) for name, label in named], classes

    def _classes(self) -> list[str] | None:
        depths = {split: [_depth(split, name) for name in names] for split, names in self.splits.items()}
        first = next(iter(depths.values()), [])
        if any(max(own) > 1 for own in depths.values()) or 2 * sum(first) <= len(first):
            return None
        named = [(split, name) for split, names in self.splits.items() for name in names]
        classes = sorted({_class(name) for split, name in named if _depth(split, name)})
        return classes if len(classes) > 1 else None

    def _by_metadata(self, split: str, label_column: str, scratch: Path) -> tuple[list[Record], list[str] | None]:
        """Read by the builder of `datasets`: `load_dataset` would report the use of a local folder to the Hub."""
        from datasets.data_files import DataFilesDict, DataFilesList
        from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder as Imagefolder

        class Builder(Imagefolder):
            EXTENSIONS = sorted(suffixes())  # also the formats that newer versions of Pillow brought

        if not self.metadata:
            raise ValueError(f"'{self.root}' has no {' or '.join(sources.METADATA)} with a column '{label_column}'")
        exact = {}
        for part, names in self.splits.items():  # by exact name: patterns would trip over "[" or "*" in a path
            paths = [
                f"{self.root}/{name}" for name in names + self._metadata_of(part) if columns.printable(name) == name
            ]
            exact[part or "train"] = DataFilesList(paths, [(str(state(path)),) for path in paths])
        with one_line(f"cannot read '{self.root}'"):
            builder = Builder(
                data_files=DataFilesDict(exact), cache_dir=str(scratch), drop_labels=True, drop_metadata=False
            )
            stream = builder.as_streaming_dataset(split=split or "train")
            features = stream.features
            image = columns.image_column(features, self.root)
        label = columns.label_column(features, label_column, self.root)
        with one_line(f"cannot read '{self.root}'"):
            rows = [(row[image]["path"], row[label]) for row in columns.undecoded(stream, image)]
            named = [(os.path.relpath(path, self.root).replace(os.sep, "/"), value) for path, value in rows]
        there, problem = set(self.splits[split]), "named in the metadata, and not an image in the folder"
        records = [Record(n, f"{self.root}/{n}" if n in there else None, value, problem) for n, value in named]
        records.sort(key=lambda record: record.name)
        return records, columns.class_names(features, label)

    def _metadata_of(self, split: str) -> list[str]:
        return [name for name in self.metadata if not split or sources.folder_split(name) == split]


class ImageFiles(ImageFolder):
    """Image files that are listed one by one, named from the folder on that holds all of them; without labels."""

    def __init__(self, given: Sequence[str]) -> None:
        paths = [os.path.abspath(sources.existing(path)) for path in given]
        twice, times = Counter(paths).most_common(1)[0]
        if times > 1:
            raise ValueError(f"'{twice}' is given twice")
        root = os.path.commonpath(map(os.path.dirname, paths))
        super().__init__(Path(root), {"": [os.path.relpath(path, root).replace(os.sep, "/") for path in paths]}, [])

    def _classes(self) -> None:
        return None


def _depth(split: str, name: str) -> int:
    """How many folders below the root, or the folder of its split, an image lies."""
    return name.count("/") - bool(split)


def _class(name: str) -> str:
    """The folder that an image lies in."""
    return name.rpartition("/")[0].rpartition("/")[2]
