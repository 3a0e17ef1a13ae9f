"""Tables of `datasets`: by name from the Hugging Face Hub, the only source that touches the network, or as objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfar.data import columns
from nearfar.data.columns import EncodedColumn, Originals
from nearfar.data.readers import Reading, prefix
from nearfar.messages import first_line

if TYPE_CHECKING:
    import datasets


class Tables:
    """Tables in memory or mapped by `datasets`, by split; `name` is for messages.

    inside: the folder that rows may name image files in; None: rows must hold the bytes of their image.
    """

    def __init__(self, tables: Mapping[str, datasets.Dataset], name: str, inside: Path | None) -> None:
        self.tables = {split: table.with_format(None) for split, table in tables.items()}
        self.name, self.inside, self.splits = name, inside, dict.fromkeys(tables)
        self.problems: list[tuple[str, str]] = []

    def digests(self, splits: Sequence[str], folder: Path) -> dict[str, str]:
        return {}

    def identity(self, splits: Sequence[str], digests: Mapping[str, str]) -> list[Any]:
        return [[split, self.tables[split]._fingerprint] for split in splits]

    def read(self, split: str, label_column: str | None, scratch: Path) -> Reading:
        table = self.tables[split]
        image = columns.image_column(table.features, self.name)
        label = columns.label_column(table.features, label_column, self.name)
        rows = columns.undecoded(table, image).select_columns([image] + ([label] if label else []))
        records = columns.to_records(rows, image, label, prefix(split), self.inside)
        return Reading(records, columns.class_names(table.features, label), len(table))

    def originals(self, splits: Sequence[str], label_column: str | None, rows: list[int], scratch: Path) -> Originals:
        import datasets

        return EncodedColumn(datasets.concatenate_datasets([self.tables[split] for split in splits]), rows, self.inside)


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
