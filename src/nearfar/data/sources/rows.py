"""Tables whose rows hold encoded images: Parquet files, tables of `datasets`, and those of the Hugging Face Hub."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import pyarrow.parquet

from nearfar.data.sources.files import LABEL_NAMES, Files
from nearfar.data.sources.splits import prefix
from nearfar.data.table import Lookup, Named, Row, digest, looked_at
from nearfar.data.value_range import spread
from nearfar.messages import first_line, one_line

if TYPE_CHECKING:
    import datasets
    from datasets import Dataset, Features

HUB = "hf:"
IMAGE_NAMES = ("image", "img", "images", "picture", "photo", "jpg", "png", "webp")
_ROWS = 8  # read at once: encoded images may be large


class Rows(Files):
    """Rows of tables with a column of images: type Image, a struct {bytes, path}, or binary.

    inside: the folder that rows may name image files in; None: rows must hold the bytes of their image.
    """

    whole = False
    inside: Path | None
    label: str

    def features(self, split: str) -> Features:
        """The columns of a split and their types."""
        raise NotImplementedError

    def column(self, file: str, name: str) -> list[Any]:
        """A column of a table that holds no images."""
        raise NotImplementedError

    def cells(self, file: str, image: str) -> Iterator[Any]:
        """The column of images, row by row and left encoded."""
        raise NotImplementedError

    def _images(self, file: str) -> Iterator[bytes | str | None]:
        split = next(split for split, files in self.splits.items() if file in files)
        cells = self.cells(file, image_column(self.features(split), self.label))
        return (encoded(cell, self.inside) for cell in cells)

    def look(self, file: str, label_column: str | None) -> list[Row]:
        return [looked_at(data, row) for row, data in enumerate(self._images(file))]

    def named(self, table: pyarrow.Table, splits: Sequence[str], label_column: str | None) -> Named:
        refs = [os.fsdecode(ref) for ref in table["ref"].unique().to_pylist()]
        counts = dict(zip(refs, table["ref"].value_counts().field("counts").to_pylist(), strict=True))
        names, parts = list[str](), list[str]()
        for split in splits:
            count = sum(counts.get(file, 0) for file in self.splits[split])
            names += [f"{prefix(split)}{number:06d}" for number in range(count)]
            parts += [split] * count
        labels, classes = list[Any](), None
        for split in splits:
            own, classes = self._labels(split, label_column)
            labels += own or [None] * parts.count(split)
        texts = list(labels)
        if any(isinstance(label, str) for label in labels):
            for split in self.splits.keys() - set(splits):
                texts += self._labels(split, label_column)[0]
        return Named(names, parts, labels, classes, texts)

    def _labels(self, split: str, wanted: str | None) -> tuple[list[Any], list[str] | None]:
        """The labels of a split, none without a column of them, and the names of classes."""
        features = self.features(split)
        column = label_column(features, wanted, self.label)
        if column is None:
            return [], None
        names = getattr(features[column], "names", None)
        found = [label for file in self.splits[split] for label in self.column(file, column)]
        return found, list(names) if names else None

    def few(self, splits: Sequence[str], count: int) -> list[tuple[str, bytes | str | None]]:
        total = sum(self.count(file) for split in splits for file in self.splits[split])
        chosen = set(spread(total, count))
        found, place = [], 0
        for split in splits:
            number = 0
            for file in self.splits[split]:
                for data in self._images(file):
                    if place in chosen:
                        found.append((f"{prefix(split)}{number:06d}", data))
                    number, place = number + 1, place + 1
                    if len(found) == len(chosen):
                        return found
        return found

    def count(self, file: str) -> int:
        """The number of rows of a table."""
        raise NotImplementedError

    def encoded(self, table: pyarrow.Table) -> Iterator[bytes | str]:
        places = {os.fsdecode(ref): set[int]() for ref in table["ref"].unique().to_pylist()}
        for ref, place in zip(table["ref"].to_pylist(), table["place"].to_pylist(), strict=True):
            places[os.fsdecode(ref)].add(place)
        for file, wanted in places.items():
            for place, data in enumerate(self._images(file)):
                if place in wanted:
                    yield data or b""

    def _lookup(self, whole: Dataset, names: list[str], table: pyarrow.Table) -> Lookup:
        """Rows of several tables by position in all of them, which follow each other in `whole`."""
        ends = np.cumsum([0, *(self.count(name) for name in names)]).tolist()
        starts = {os.fsencode(name): start for name, start in zip(names, ends, strict=False)}
        places = zip(table["ref"].to_pylist(), table["place"].to_pylist(), strict=True)
        return Lookup(_column(whole, self.inside), [starts[ref] + place for ref, place in places])


class ParquetFiles(Rows):
    """Parquet files with a column of images."""

    def __init__(self, root: Path, splits: dict[str, list[str]], problems: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(root, splits, problems)
        self.inside, self.label = self.root, str(self.root)

    def features(self, split: str) -> Features:
        import datasets

        for number, name in enumerate(self.splits[split]):
            with one_line(f"cannot read '{self.path(name)}'"):
                schema = pyarrow.parquet.read_schema(self.path(name))
                if number == 0:
                    features = datasets.Features.from_arrow_schema(schema)
        return features

    def count(self, file: str) -> int:
        with one_line(f"cannot read '{self.path(file)}'"):
            return pyarrow.parquet.read_metadata(self.path(file)).num_rows

    def column(self, file: str, name: str) -> list[Any]:
        with self._opened(file, name) as opened:
            return opened.read([name])[name].to_pylist()

    def cells(self, file: str, image: str) -> Iterator[Any]:
        with self._opened(file, image) as opened:
            for batch in opened.iter_batches(_ROWS, columns=[image]):
                yield from batch[image].to_pylist()

    @contextlib.contextmanager
    def _opened(self, file: str, column: str) -> Iterator[pyarrow.parquet.ParquetFile]:
        path = self.path(file)
        with one_line(f"cannot read '{path}'"), pyarrow.parquet.ParquetFile(path) as opened:
            if column not in opened.schema_arrow.names:
                raise ValueError(f"it has no column '{column}'; the first file has one")
            yield opened

    def originals(self, table: pyarrow.Table, scratch: Path | None = None) -> Sequence[bytes | str]:
        """A copy by `datasets` in the folder `scratch`, for random access to images too many for the pixel cache."""
        from datasets.data_files import DataFilesDict, DataFilesList
        from datasets.packaged_modules.parquet.parquet import Parquet

        names = [os.fsdecode(ref) for ref in table["ref"].unique().to_pylist()]
        paths = [self.path(name) for name in names]  # by exact name: patterns would trip over "[" or "*" in a path
        files = DataFilesList(paths, [tuple(map(str, self.stamp(name))) for name in names])
        with one_line(f"cannot read '{self.root}'"), _quiet():
            builder = Parquet(data_files=DataFilesDict({"train": files}), cache_dir=str(scratch))
            builder.download_and_prepare()
            whole = builder.as_dataset(split="train")
        return self._lookup(whole, names, table)


class Tables(Rows):
    """Tables in memory or mapped by `datasets`, by split; `name` is for messages."""

    def __init__(self, tables: Mapping[str, datasets.Dataset], name: str, inside: Path | None) -> None:
        super().__init__(Path(), {split: [split] for split in tables})
        self.tables = {split: table.with_format(None) for split, table in tables.items()}
        self.label, self.inside = name, inside

    def address(self, label_column: str | None) -> list[Any]:
        return [self.label]

    def stamp(self, file: str) -> tuple[int, int]:
        if self.inside is not None:  # rows may name files, which may change
            return 0, 0
        return int(digest(self.tables[file]._fingerprint.encode())[:15], 16), 0

    def features(self, split: str) -> Features:
        return self.tables[split].features

    def count(self, file: str) -> int:
        return len(self.tables[file])

    def column(self, file: str, name: str) -> list[Any]:
        return list(self.tables[file][name])

    def cells(self, file: str, image: str) -> Iterator[Any]:
        return (row[image] for row in undecoded(self.tables[file].select_columns([image]), image))

    def originals(self, table: pyarrow.Table, scratch: Path | None = None) -> Sequence[bytes | str]:
        import datasets

        names = [os.fsdecode(ref) for ref in table["ref"].unique().to_pylist()]
        return self._lookup(datasets.concatenate_datasets([self.tables[name] for name in names]), names, table)


def from_hub(name: str) -> Tables:
    """A data set by name ("owner/name").

    `datasets` downloads it into its own cache; with HF_HUB_OFFLINE=1 an earlier download is used. ValueError, after a
    single request, where the Hub cannot be reached or has no such data set.
    """
    import datasets
    import huggingface_hub

    try:
        if not datasets.config.HF_HUB_OFFLINE:
            huggingface_hub.HfApi().dataset_info(name, timeout=10)  # one request: `load_dataset` tries many times
        tables = datasets.load_dataset(f"hf://datasets/{name}")  # the name alone may be a folder here
    except Exception as error:  # the network and the Hub fail in many ways
        raise ValueError(
            f"cannot open '{name}' of the Hugging Face Hub: {first_line(error)} "
            "(HF_HUB_OFFLINE=1 takes what was downloaded earlier)"
        ) from error
    return Tables(tables, name, None)


def from_object(source: datasets.Dataset | datasets.DatasetDict, name: str) -> Tables:
    """A table, or tables by split, that the user has loaded: image files that its rows name are read from anywhere."""
    import datasets

    tables = source if isinstance(source, datasets.DatasetDict) else {"": source}
    return Tables(tables, name, Path(Path.cwd().anchor))


def hub_name(source: str) -> str:
    """The "owner/name" in "hf:owner/name"; ValueError for anything else, such as a path."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    name = source.removeprefix(HUB)
    try:
        validate_repo_id(name)
    except HFValidationError:
        name = ""
    if name.count("/") != 1:  # a name alone may be a format of `datasets`, which would look for files
        raise ValueError(f"'{source}' is no name on the Hugging Face Hub: write hf:owner/name; a path needs no hf:")
    return name


def image_column(features: Features, source: object) -> str:
    """The column of type Image, else a struct with `bytes`, else binary with a usual name; ValueError if none."""
    import datasets

    images = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    structs = [name for name, kind in features.items() if isinstance(kind, Mapping) and "bytes" in kind]
    binary = [n for n, k in features.items() if getattr(k, "dtype", "") in ("binary", "large_binary")]
    for group in (images, structs, [name for name in binary if name in IMAGE_NAMES]):
        if group:
            return next((name for name in IMAGE_NAMES if name in group), group[0])
    raise ValueError(f"'{source}' has no column of images; its columns: {', '.join(features)}")


def label_column(features: Features, wanted: str | None, source: object) -> str | None:
    """`wanted`, else a column with a usual name (ClassLabel before whole numbers), else the only ClassLabel."""
    import datasets

    if wanted is not None:
        if wanted not in features:
            raise ValueError(f"'{source}' has no column '{wanted}' for labels; its columns: {', '.join(features)}")
        return wanted
    classes = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    whole = [n for n, k in features.items() if isinstance(k, datasets.Value) and k.dtype.lstrip("u").startswith("int")]
    for group in (classes, whole):
        for name in LABEL_NAMES:
            if name in group:
                return name
    return classes[0] if len(classes) == 1 else None


def _column(table: Dataset, inside: Path | None) -> Callable[[int], Any]:
    """Rows of a table's image column by position, still encoded; memory-mapped, and fit for worker processes."""
    column = image_column(table.features, "the data set")
    return functools.partial(_cell, undecoded(table, column).select_columns([column]), column, inside)


def _cell(table: Dataset, column: str, inside: Path | None, row: int) -> bytes | str | None:
    return encoded(table[row][column], inside)


def encoded(cell: Any, inside: Path | None) -> bytes | str | None:
    """The bytes in a cell, or the path in it where that lies inside the folder `inside`; else None."""
    if cell is None or isinstance(cell, bytes):
        return cell
    if not isinstance(cell, Mapping):
        return None
    if isinstance(cell.get("bytes"), bytes):
        return cell["bytes"]
    path = cell.get("path")
    if not isinstance(path, str) or not path or inside is None or "\0" in path:
        return None
    full = os.path.realpath(inside / path)
    return full if Path(full).is_relative_to(os.path.realpath(inside)) and os.path.isfile(full) else None


def undecoded(table: Any, image: str) -> Any:
    """The table with its image column left encoded."""
    import datasets

    if isinstance(table.features[image], datasets.Image):
        return table.cast_column(image, datasets.Image(decode=False))
    return table


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


def marked_as_images(table: pyarrow.Table, column: str) -> pyarrow.Table:
    """The table with a note for Hugging Face datasets that a column of {bytes, path} holds pictures."""
    from datasets import Features, Image  # here: it takes seconds to import

    features = Features.from_arrow_schema(table.schema)
    features[column] = Image()
    return table.replace_schema_metadata(features.arrow_schema.metadata)
