"""Parquet files with a column of images, read row by row without decoding."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nearfar.data import columns
from nearfar.data.columns import EncodedColumn, Originals
from nearfar.data.readers import Files, Reading, prefix, state
from nearfar.messages import one_line

_ROWS = 8  # read at once: encoded images may be large


class ParquetFiles(Files):
    """Parquet files with a column of images: type Image, a struct {bytes, path}, or binary."""

    def identity(self, splits: Sequence[str], digests: Mapping[str, str]) -> list[Any]:
        return [str(self.root), *super().identity(splits, digests)]  # rows may name image files below it

    def read(self, split: str, label_column: str | None, scratch: Path) -> Reading:
        import datasets
        import pyarrow.parquet

        total = 0
        features = datasets.Features()
        for number, name in enumerate(self.splits[split]):
            with one_line(f"cannot read '{self.root / name}'"):
                described = pyarrow.parquet.read_metadata(self.root / name)
                total += described.num_rows
                if number == 0:
                    features = datasets.Features.from_arrow_schema(described.schema.to_arrow_schema())
        image = columns.image_column(features, self.root)
        label = columns.label_column(features, label_column, self.root)
        rows = self._rows(split, [image] + ([label] if label else []))
        records = columns.to_records(rows, image, label, prefix(split), self.root)
        return Reading(records, columns.class_names(features, label), total)

    def _rows(self, split: str, wanted: list[str]) -> Iterator[Mapping[str, Any]]:
        import pyarrow.parquet

        for name in self.splits[split]:
            with one_line(f"cannot read '{self.root / name}'"), pyarrow.parquet.ParquetFile(self.root / name) as file:
                missing = set(wanted) - set(file.schema_arrow.names)
                if missing:
                    raise ValueError(f"it has no column '{missing.pop()}'; the first file has one")
                for batch in file.iter_batches(_ROWS, columns=wanted):
                    yield from batch.to_pylist()

    def originals(self, splits: Sequence[str], label_column: str | None, rows: list[int], scratch: Path) -> Originals:
        """A copy by `datasets` in the folder `scratch`, for random access to images too many for the pixel cache."""
        import datasets
        from datasets.data_files import DataFilesDict, DataFilesList
        from datasets.packaged_modules.parquet.parquet import Parquet

        exact = {}
        for split in splits:  # by exact name: patterns would trip over "[" or "*" in a path
            paths = [f"{self.root}/{name}" for name in self.splits[split]]
            exact[split or "train"] = DataFilesList(paths, [(str(state(path)),) for path in paths])
        with one_line(f"cannot read '{self.root}'"), _quiet():
            builder = Parquet(data_files=DataFilesDict(exact), cache_dir=str(scratch))
            builder.download_and_prepare()
            tables = [builder.as_dataset(split=split or "train") for split in splits]
        return EncodedColumn(datasets.concatenate_datasets(tables), rows, self.root)


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
