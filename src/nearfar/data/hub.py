"""Data sets on the Hugging Face Hub: the only source that touches the network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nearfar.data import columns
from nearfar.data.columns import EncodedColumn, Originals
from nearfar.data.readers import Reading


class Hub:
    """A data set by name ("owner/name").

    `datasets` downloads it into its own cache; with HF_HUB_OFFLINE=1 an earlier download is used.
    """

    def __init__(self, name: str) -> None:
        import datasets

        try:
            self.tables = datasets.load_dataset(name)
        except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ValueError(
                f"'{name}' is no local file or folder, and opening it as a Hub data set failed: {reason}"
            ) from error
        self.name, self.splits = name, dict.fromkeys(self.tables)

    def identity(self, splits: Sequence[str]) -> list[Any]:
        return [self.name, [[split, self.tables[split]._fingerprint] for split in splits]]

    def read(self, split: str, label_column: str | None, scratch: Path) -> Reading:
        table = self.tables[split]
        image = columns.image_column(table.features, self.name)
        label = columns.label_column(table.features, label_column, self.name)
        rows = columns.undecoded(table, image).select_columns([image] + ([label] if label else []))
        records = columns.to_records(rows, image, label, f"{split}/", None)
        return Reading(records, columns.class_names(table.features, label), len(table))

    def originals(self, splits: Sequence[str], names: list[str], rows: list[int], scratch: Path) -> Originals:
        import datasets

        return EncodedColumn(datasets.concatenate_datasets([self.tables[split] for split in splits]), rows, None)
