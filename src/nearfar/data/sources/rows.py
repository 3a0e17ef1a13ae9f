"""Tables whose rows hold encoded images: Parquet files, tables of `datasets`, and those of the
Hugging Face Hub.
"""

from __future__ import annotations

import contextlib
import functools
import os
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.parquet

from nearfar.data.column_names import IMAGE_NAMES, find_column, normalized_name
from nearfar.data.labels import label_columns, labels_of, say_label_column
from nearfar.data.sources.encoded import EncodedImage, EncodedSource, Stamp
from nearfar.data.sources.source import numbered_names, prefix
from nearfar.data.sources.splits import row_splits, split_columns
from nearfar.data.table import Lookup, digest, printable
from nearfar.messages import check_column, first_line, listed_names, raise_as_value_error, say_once

if TYPE_CHECKING:
    import datasets
    from datasets import Dataset, Features

HUB = "hf:"
_LONGEST_PATH = 1000  # characters of a path that names an image
_ROWS = 8  # read at once: encoded images may be large


class Rows(EncodedSource):
    """Rows of tables with a column of images: type Image, a struct {bytes, path}, or binary.

    `inside`: the folder that rows may name image files in; None: rows must hold the bytes of their
    image. `name`: of all tables, for messages. The labels stand in `label_column`, else in a column
    with a usual name.

    Tables that are in no split each, and all have a column of splits with words such as "train" and
    "test", have those.
    """

    whole = False
    inside: Path | None
    name: str
    split_of_rows: Mapping[str, list[str]] = MappingProxyType(
        {}
    )  # by table, where rows are divided
    labels_read: Mapping[str, list[str | None] | None] = MappingProxyType({})
    """By table, where the column was read to see whether it holds labels."""

    def divide(self) -> None:
        """Take the splits of a column, such as "split", if the tables themselves have none."""
        if set(self.splits) != {""}:
            return
        for column in split_columns(self.features(self.files[0])):
            columns = [self._column_like(column, file) for file in self.files]
            if None in columns:
                continue
            words = {
                file: self._words(file, str(own))
                for file, own in zip(self.files, columns, strict=True)
            }
            every = [word for of_file in words.values() for word in of_file]
            if rows_of := row_splits(column, every, self.name):
                self._divide(words, rows_of)
                return

    def _column_like(self, column: str, file: str) -> str | None:
        """The column of a file whose name is that one, perhaps written otherwise."""
        return find_column(self.features(file), [normalized_name(column)])

    def _divide(
        self, words: Mapping[str, Sequence[str]], rows_of: Mapping[str, Sequence[int]]
    ) -> None:
        """Divide the rows of files with these words; found: places of all words by split."""
        split_of = {place: split for split, places in rows_of.items() for place in places}
        places = iter(range(len(split_of)))
        self.split_of_rows = {
            file: [split_of[next(places)] for _ in of_file] for file, of_file in words.items()
        }
        self.splits = {
            split: [file for file, own in self.split_of_rows.items() if split in own]
            for split in rows_of
        }

    def _words(self, file: str, column: str) -> list[str]:
        names = _classes(self.features(file), column)
        return [
            names[value]
            if names and isinstance(value, int) and 0 <= value < len(names)
            else str(value)
            for value in self.values(file, column)
        ]

    def splits_in(self, file: str) -> list[str] | None:
        return self.split_of_rows.get(file)

    def outside(self, why: str) -> list[tuple[str, str]]:
        if not self.split_of_rows:
            return super().outside(why)
        alone = len(self.files) == 1
        return [
            (f"row {row + 1}" if alone else f"{file}, row {row + 1}", why)
            for file, splits in self.split_of_rows.items()
            for row, split in enumerate(splits)
            if split == ""
        ]

    @functools.cached_property
    def first_features(self) -> Features:
        return self.features(next(file for files in self.splits.values() for file in files))

    @functools.cached_property
    def image(self) -> str:
        return image_column(self.first_features, self.name)

    @functools.cached_property
    def files(self) -> list[str]:
        return list(dict.fromkeys(file for files in self.splits.values() for file in files))

    @functools.cached_property
    def label(self) -> str | None:
        """The column of labels: `label_column`, else one of a usual name that holds labels."""
        every = {file: self.features(file) for file in self.files}
        wanted = self.label_column
        if wanted is not None and all(wanted not in features for features in every.values()):
            check_column(f"'{self.name}'", wanted, self.first_features)
        if wanted is not None:
            return wanted
        label_column = (
            name
            for features in every.values()
            for name in label_columns(
                features.arrow_schema, [column for column in features if _classes(features, column)]
            )
        )
        usual = list(dict.fromkeys(label_column))
        chosen = next((name for name in usual if self._holds_labels(name)), None)
        if chosen is not None:
            say_label_column(self.name, chosen, usual)
            self._say_lacking(chosen)
        return chosen

    def _say_lacking(self, column: str) -> None:
        """Say which tables lack the column of labels."""
        lacking = [file for file in self.files if column not in self.features(file)]
        if lacking:
            say_once(
                f"{len(lacking)} of {len(self.files)} tables of '{self.name}' have no column "
                f"'{column}', and their images no labels: first {lacking[0]}"
            )

    def _holds_labels(self, column: str) -> bool:
        """Return whether a column of a usual name holds labels and no measurements or lists; a line
        says so if not.
        """
        try:
            self.labels_read = {file: self.labels_in(file, column) for file in self.files}
        except ValueError as error:
            say_once(f"no labels of '{self.name}' are used: {first_line(error)}")
            return False
        return True

    def labels_in(self, file: str, column: str) -> list[str | None] | None:
        """The labels in a column of a table, by the names of their classes if it has some; None
        without it.
        """
        features = self.features(file)
        if column not in features:
            return None
        values = self.values(file, column)
        names = _classes(features, column)
        if names is None:
            return labels_of(values, f"column '{column}'")
        if values and max(number for number in [*values, -1] if number is not None) >= len(names):
            raise ValueError(f"column '{column}' holds numbers beyond its {len(names)} classes")
        return [None if number is None or number < 0 else names[number] for number in values]

    def values(self, file: str, column: str) -> list[Any]:
        """Return the values in a column of a table."""
        raise NotImplementedError

    def class_names(self) -> list[str] | None:
        """The classes of all tables, in the order of the first and then of the others; None if no
        table names some.
        """
        if self.label is None:
            return None
        known = [_classes(self.features(file), self.label) for file in self.files]
        named = dict.fromkeys(name for names in known if names is not None for name in names)
        return list(named) if any(names is not None for names in known) else None

    def label_kind(self, file: str) -> str:
        features = self.features(file)
        return (
            "" if self.label not in features else str(features.arrow_schema.field(self.label).type)
        )

    def features(self, file: str) -> Features:
        """The columns of a table and their types."""
        raise NotImplementedError

    def batches(self, file: str, columns: list[str]) -> Iterator[list[dict[str, Any]]]:
        """The rows of a table, a few at a time, with those of the columns that it has; images are
        left encoded.
        """
        raise NotImplementedError

    def count(self, file: str) -> int:
        """The number of rows of a table."""
        raise NotImplementedError

    def dataset(self, files: list[str], scratch: Path | None) -> Dataset:
        """The rows of some tables, one table after the other, for random access."""
        raise NotImplementedError

    def address(self) -> list[Any]:
        return [*super().address(), self.name, self.label]

    def images(self, file: str) -> Iterator[EncodedImage]:
        labels = None
        if (column := self.label) is not None:  # to find it may have been to read it
            cached = file in self.labels_read
            labels = self.labels_read[file] if cached else self.labels_in(file, column)
        rows = (row for batch in self.batches(file, [self.image]) for row in batch)
        for place, row in enumerate(rows):
            label = None if labels is None else labels[place]
            cell = row[self.image]
            name = path_in(cell, self.inside)
            yield EncodedImage(encoded(cell, self.inside), place, name, label)

    def names_inside(self, splits: Sequence[str], names: Sequence[str | None]) -> list[str]:
        """The paths that only one row has, with the split in front; for other rows the number in
        the split. A line counts these where other rows have paths.
        """
        kept, shared = unique_paths(splits, names)
        named = len(kept) - kept.count(None)
        if shared or 0 < named < len(kept):
            lacking = len(kept) - named - len(shared)
            which = [f"{lacking} without a path"] if lacking else []
            if shared:
                which.append(f"{len(shared)} whose path is not unique, first {shared[0]}")
            say_once(f"images of '{self.name}' named by their number: {' and '.join(which)}")
        return numbered_names(splits, kept)

    def read(self, rows: pyarrow.Table) -> Iterator[bytes | str]:
        places: dict[str, set[int]] = {}
        for ref, place in zip(rows["ref"].to_pylist(), rows["place"].to_pylist(), strict=True):
            places.setdefault(os.fsdecode(ref), set()).add(place)
        for file, wanted in places.items():
            cells = (row for batch in self.batches(file, [self.image]) for row in batch)
            for place, row in enumerate(islice(cells, max(wanted) + 1)):
                if place in wanted:
                    yield encoded(row[self.image], self.inside) or b""

    def originals(self, rows: pyarrow.Table, scratch: Path | None = None) -> Sequence[bytes | str]:
        files = list(dict.fromkeys(map(os.fsdecode, rows["ref"].to_pylist())))
        whole = undecoded(self.dataset(files, scratch).select_columns([self.image]), self.image)
        starts = dict(
            zip(
                map(os.fsencode, files), accumulate(map(self.count, files), initial=0), strict=False
            )
        )
        places = zip(rows["ref"].to_pylist(), rows["place"].to_pylist(), strict=True)
        get = functools.partial(_cell, whole, self.image, self.inside)
        return Lookup(get, [starts[ref] + row for ref, row in places])


def _cell(table: Dataset, column: str, inside: Path | None, row: int) -> bytes | str | None:
    return encoded(table[row][column], inside)


class ParquetFiles(Rows):
    """Parquet files with a column of images."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._features: dict[str, Features] = {}
        alone = [file for files in self.splits.values() for file in files]
        self.inside = self.root
        self.name = self.path(alone[0]) if len(alone) == 1 else str(self.root)
        self.divide()

    def features(self, file: str) -> Features:
        import datasets

        if file not in self._features:
            with raise_as_value_error(f"cannot read '{self.path(file)}'"):
                schema = pyarrow.parquet.read_schema(self.path(file))
                self._features[file] = datasets.Features.from_arrow_schema(schema)
        return self._features[file]

    def count(self, file: str) -> int:
        with raise_as_value_error(f"cannot read '{self.path(file)}'"):
            return pyarrow.parquet.read_metadata(self.path(file)).num_rows

    def values(self, file: str, column: str) -> list[Any]:
        with raise_as_value_error(f"cannot read '{self.path(file)}'"):
            return pyarrow.parquet.read_table(self.path(file), columns=[column])[column].to_pylist()

    def batches(self, file: str, columns: list[str]) -> Iterator[list[dict[str, Any]]]:
        path = self.path(file)
        with (
            raise_as_value_error(f"cannot read '{path}'"),
            pyarrow.parquet.ParquetFile(path) as opened,
        ):
            stored = opened.schema_arrow.names
            if self.image not in stored:
                raise ValueError(f"it has no column '{self.image}'; the first file has one")
            for batch in opened.iter_batches(
                _ROWS, columns=[name for name in columns if name in stored]
            ):
                yield batch.to_pylist()

    def dataset(self, files: list[str], scratch: Path | None) -> Dataset:
        """A copy by `datasets` in the folder `scratch`, for random access to images too many for
        the pixel cache.
        """
        from datasets.data_files import DataFilesDict, DataFilesList
        from datasets.packaged_modules.parquet.parquet import Parquet

        paths = [
            self.path(file) for file in files
        ]  # by exact name: patterns would trip over "[" or "*" in a path
        listed = DataFilesList(paths, [tuple(map(str, self.stamp(file))) for file in files])
        with raise_as_value_error(f"cannot read '{self.root}'"), _quiet():
            builder = Parquet(
                data_files=DataFilesDict({"train": listed}),
                cache_dir=str(scratch),
                columns=[self.image],
            )
            builder.download_and_prepare()
            return builder.as_dataset(split="train")


class Tables(Rows):
    """Tables in memory or mapped by `datasets`, by split; `name` is for messages."""

    def __init__(
        self,
        tables: Mapping[str, datasets.Dataset],
        name: str,
        inside: Path | None,
        label_column: str | None = None,
    ) -> None:
        self.tables = {split: table.with_format(None) for split, table in tables.items()}
        self.inside, self.name = inside, name
        super().__init__(Path(), {split: [split] for split in tables}, (), label_column)
        self.divide()

    def stamp(self, file: str) -> Stamp:
        if self.inside is not None:  # rows may name files, which may change
            return 0, 0, 0, 0
        return int(digest(self.tables[file]._fingerprint.encode())[:15], 16), 0, 0, 0

    def features(self, file: str) -> Features:
        return self.tables[file].features

    def count(self, file: str) -> int:
        return len(self.tables[file])

    def values(self, file: str, column: str) -> list[Any]:
        table = self.tables[file].select_columns([column]).with_format("arrow")
        return table[:][column].to_pylist()

    def batches(self, file: str, columns: list[str]) -> Iterator[list[dict[str, Any]]]:
        table = self.tables[file]
        if self.image not in table.column_names:
            raise ValueError(f"{file} has no column '{self.image}'; the first split has one")
        present = [name for name in columns if name in table.column_names]
        for row in undecoded(table.select_columns(present), self.image):
            yield [row]

    def dataset(self, files: list[str], scratch: Path | None) -> Dataset:
        import datasets

        return datasets.concatenate_datasets(
            [self.tables[file].select_columns([self.image]) for file in files]
        )


def from_hub(name: str, label_column: str | None) -> Tables:
    """A data set by name ("owner/name").

    `datasets` downloads it into its own cache; with HF_HUB_OFFLINE=1 an earlier download is used.
    ValueError, after a single request, if the Hub cannot be reached or has no such data set.
    """
    import datasets
    import huggingface_hub

    try:
        if not datasets.config.HF_HUB_OFFLINE:
            huggingface_hub.HfApi().dataset_info(
                name, timeout=10
            )  # one request: `load_dataset` tries many times
        tables = datasets.load_dataset(
            f"hf://datasets/{name}"
        )  # the name alone may be a folder here
    except Exception as error:  # the network and the Hub fail in many ways
        raise ValueError(
            f"cannot open '{name}' of the Hugging Face Hub: {first_line(error)} "
            "(HF_HUB_OFFLINE=1 takes what was downloaded earlier)"
        ) from error
    return Tables(tables, name, None, label_column)


def hub_name(source: str) -> str:
    """The "owner/name" in "hf:owner/name"; ValueError for anything else, such as a path."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    name = source.removeprefix(HUB)
    try:
        validate_repo_id(name)
    except HFValidationError:
        name = ""
    if (
        name.count("/") != 1
    ):  # a name alone may be a format of `datasets`, which would look for files
        raise ValueError(
            f"'{source}' is no name on the Hugging Face Hub: write hf:owner/name; a path "
            f"needs no hf:"
        )
    return name


def image_column(features: Features, source: object) -> str:
    """The column of type Image, else a struct with `bytes`, else binary with a usual name;
    ValueError if none.
    """
    import datasets

    images = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    structs = [
        name for name, kind in features.items() if isinstance(kind, Mapping) and "bytes" in kind
    ]
    binary = [
        n for n, k in features.items() if getattr(k, "dtype", "") in ("binary", "large_binary")
    ]
    for group in (images, structs, [name for name in binary if name in IMAGE_NAMES]):
        if group:
            chosen = next((name for name in IMAGE_NAMES if name in group), group[0])
            if others := [name for name in group if name != chosen]:
                say_once(f"images are those of column '{chosen}', and not of {', '.join(others)}")
            return chosen
    raise ValueError(f"'{source}' has no column of images; its columns: {listed_names(features)}")


def images_in(schema: pyarrow.Schema) -> str | None:
    """The column of images of a table, as of `image_column`; None without one."""
    import datasets

    with contextlib.suppress(ValueError):
        return image_column(datasets.Features.from_arrow_schema(schema), "")
    return None


def _classes(features: Features, column: str) -> list[str] | None:
    """The names of the classes that numbers in a column stand for, if the table knows them."""
    names = getattr(features.get(column), "names", None)
    return None if names is None else [unicodedata.normalize("NFC", name) for name in names]


def encoded(cell: Any, inside: Path | None) -> bytes | str | None:
    """The bytes in a cell, or the path in it where that lies inside the folder `inside`; else
    None.
    """
    if cell is None or isinstance(cell, bytes):
        return cell
    if not isinstance(cell, Mapping):
        return None
    if isinstance(cell.get("bytes"), bytes):
        return cell["bytes"]
    path = cell.get("path")
    if not isinstance(path, str) or not path or inside is None or "\0" in path:
        return None
    anywhere = inside == Path(inside.anchor)  # then paths are those of the working directory
    full = os.path.realpath(path if anywhere else inside / path)
    return (
        full
        if Path(full).is_relative_to(os.path.realpath(inside)) and os.path.isfile(full)
        else None
    )


def path_in(cell: Any, inside: Path | None) -> str | None:
    """The path in a cell {bytes, path}, below the folder `inside` if it lies there; None if it has
    none, or one of more than 1000 characters.
    """
    path = cell.get("path") if isinstance(cell, Mapping) else None
    if not isinstance(path, str):
        return None
    path = printable(path)
    if inside is not None:
        path = path.removeprefix(f"{inside}/")
    path = path.strip("/")
    return path if 0 < len(path) <= _LONGEST_PATH else None


def unique_paths(
    splits: Sequence[str], paths: Sequence[str | None]
) -> tuple[list[str | None], list[str]]:
    """The paths of rows, None for one that another row of its split has too; and those that were
    dropped. Numbers are dropped too if a row that is named by its number could have the same name.
    """
    whole = [
        None if path is None else prefix(split) + path
        for split, path in zip(splits, paths, strict=True)
    ]
    counts = Counter(whole)
    kept = [path if counts[name] == 1 else None for path, name in zip(paths, whole, strict=True)]
    numbers = set(numbered_names(splits)) if None in kept else set()
    kept = [None if name in numbers else path for path, name in zip(kept, whole, strict=True)]
    shared = [
        path for path, own in zip(paths, kept, strict=True) if path is not None and own is None
    ]
    return kept, shared


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
    """The table with a note for Hugging Face datasets that a column of {bytes, path} holds
    pictures.
    """
    from datasets import Features, Image  # here: it takes seconds to import

    features = Features.from_arrow_schema(table.schema)
    features[column] = Image()
    return table.replace_schema_metadata(features.arrow_schema.metadata)
