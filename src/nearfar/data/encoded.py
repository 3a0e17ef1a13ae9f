"""From a source of encoded images, by its table and through the cache, to `Images`."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch

from nearfar.atomic import replacing
from nearfar.data import cache
from nearfar.data.cache import Form, Progress
from nearfar.data.decoding import PICTURE, decode, reason, without_warnings
from nearfar.data.formats import only_python_writes, raw
from nearfar.data.images import Images
from nearfar.data.sources.files import Files, ImageFolder, PathTable
from nearfar.data.sources.splits import say_once
from nearfar.data.table import (
    ROWS,
    looked_at,
    printable,
    readable,
    scanned,
    skipped,
    usual_channels,
    usual_size,
    with_problems,
)
from nearfar.data.value_range import EIGHT_BITS, ValueRange, for_channels, of_sample, spread, thinned

_MIXED = "holds images of 8 bits and of more: all become 8 bits; --value-range LOW HIGH keeps the others as they are"


def table_of(
    source: Files, splits: Sequence[str], label_column: str | None, folder: Path
) -> tuple[pyarrow.Table, list[str] | None]:
    """The table of some splits of a source, with labels as numbers, and the names of classes."""
    table = scanned(source, splits, label_column, folder)
    named = source.named(table, splits, label_column)
    labels, classes = _numbered(named.labels, named.class_names, named.texts, label_column)
    columns = {name: table[name] for name in table.column_names}
    columns |= {"name": [printable(name) for name in named.names], "split": named.splits, "label": labels}
    return pyarrow.table(columns), classes


def _numbered(
    labels: Sequence[Any], class_names: list[str] | None, texts: Iterable[Any], column: str | None
) -> tuple[pyarrow.Array, list[str] | None]:
    """Labels as whole numbers, null where one is missing, and the names of classes."""
    if any(isinstance(label, str) for label in labels):
        class_names = sorted({str(text) for text in texts if text is not None})
        number = {text: place for place, text in enumerate(class_names)}
        labels = [None if label is None else number[str(label)] for label in labels]
    for label in labels:
        whole = isinstance(label, (int, float)) and abs(label) < 2**63 and label == int(label)
        if label is not None and not whole:
            raise ValueError(f"labels must be whole numbers or texts; column '{column or 'label'}' holds {label!r:.80}")
    numbers = [None if label is None else int(label) for label in labels]
    return pyarrow.array(numbers, pyarrow.int64()), class_names and [printable(name) for name in class_names]


def _label_array(column: pyarrow.ChunkedArray) -> np.ndarray | None:
    """Labels as int64, -1 for a missing one; None where no label is known."""
    numbers = column.fill_null(-1).to_numpy().copy()  # arrow's own cannot be written to
    return numbers if (numbers >= 0).any() else None


def chosen_form(
    table: pyarrow.Table,
    image_size: int | None,
    channels: int | None,
    value_range: ValueRange,
    range_of: Callable[[np.ndarray, int], list[float] | None],
) -> Form:
    """What all images are decoded to: as asked for, and for the rest as most of them are.

    range_of: gives low and high of so many channels from images of more than 8 bits, by position. Without a range asked
    for, or for "full", one image of 8 bits makes 8 bits of all. Raises ValueError for a range that does not fit.
    """
    rows = readable(table)
    height, width, bands, bits = (table[name].to_numpy()[rows] for name in ("height", "width", "bands", "bits"))
    size = image_size or usual_size(np.stack([height, width], 1))
    channels = channels or usual_channels(bands.astype(np.int64))
    fits = _fitting(bands, channels)
    wide = fits & (bits > 8)
    if value_range is not None and not isinstance(value_range, str) and wide.any():
        return Form(size, channels, for_channels(value_range, channels))
    if value_range == EIGHT_BITS or not wide.any() or wide.sum() < fits.sum():
        return Form(size, channels)
    chosen = np.flatnonzero(wide)
    return Form(size, channels, range_of(rows[chosen[spread(len(chosen))]], channels))


def _fitting(bands: np.ndarray, channels: int) -> np.ndarray:
    """Which images of so many bands can be read with so many channels."""
    return (bands == channels) | (np.isin(bands, PICTURE) & (channels in PICTURE))


def in_memory(
    given: Sequence[tuple[str, bytes | str | None]],
    source: str,
    image_size: int | None,
    channels: int | None,
    value_range: ValueRange,
) -> Images:
    """Decode (name, encoded image or path) to images that are not cached; ValueError where none can be read."""
    with without_warnings(), only_python_writes():
        found = [looked_at(data, name=printable(name)) for name, data in given]
        table = pyarrow.Table.from_pylist([row._asdict() for row in found], ROWS)
        data = [one for _, one in given]

        def range_of(rows: np.ndarray, count: int) -> list[float] | None:
            return _sampled_range([data[row] for row in rows], count, value_range)

        form = chosen_form(table, image_size, channels, value_range, range_of)
        pixels, problems = [], {}
        for row in readable(table).tolist():
            try:
                pixels.append(decode(data[row] or b"", *form))
            except Exception as error:  # decoders raise anything on damaged data
                problems[row] = reason(error)
    table = with_problems(table, problems)
    if not pixels:
        wrong = "".join(f"; {name}: {why}" for name, why in skipped(table)[:1])
        raise ValueError(f"none of the {len(table)} images looked at in '{source}' can be read{wrong}")
    return Images(
        torch.from_numpy(np.stack(pixels)),
        names=table["name"].take(readable(table)).to_pylist(),
        image_size=form.size,
        channels=form.channels,
        skipped=skipped(table),
        source=source,
        value_range=form.value_range,
        table=table,
    )


def _sampled_range(images: Iterable[bytes | str | None], channels: int, value_range: ValueRange) -> list[float] | None:
    """Low and high of every channel from some images; None where none can be read."""
    planes = []
    for data in images:
        try:
            if data is not None and (found := raw(data)) is not None:
                planes.append(thinned(found.read()))
        except Exception:  # it is listed with its reason when all are decoded
            continue
    return of_sample(planes, channels, value_range) if planes else None


@dataclass(frozen=True)
class Opening:
    """One request of `open_images`; `store_limit` is 0 where pixels are not wanted."""

    source: Files
    name: str
    splits: list[str]
    image_size: int | None
    channels: int | None
    label_column: str | None
    folder: Path
    store_limit: int
    workers: int | None
    progress: Progress | None
    value_range: ValueRange = None

    def images(self) -> Images:
        """The images from the cache, which is built first where there is none yet."""
        cache.limit()  # a wrong one is noticed first
        source, chosen = self.source, None
        if isinstance(source, ImageFolder) and self.label_column is not None:
            chosen = source.by_metadata(self.splits, self.label_column)
        table, class_names = table_of(source, self.splits, self.label_column, self.folder)
        form = chosen_form(
            table, self.image_size, self.channels, self.value_range, functools.partial(self._range, table)
        )
        home, entry, pixels = self._decoded(table, form)
        rows = readable(table)
        table = with_problems(table, {int(rows[row]): why for row, why in entry.problems.items()})
        kept = table.take(readable(table))
        if not len(kept):
            raise ValueError(self._nothing(self._problems() + skipped(table)))
        if self.value_range is None and form.value_range is None and (kept["bits"].to_numpy() > 8).any():
            say_once(f"'{self.name}' {_MIXED}")
        stored = self.store_limit > 0 and pixels is not None
        images = Images(
            pixels if stored else None,
            names=kept["name"].to_pylist(),
            image_size=form.size,
            channels=form.channels,
            labels=_label_array(kept["label"]),
            class_names=class_names,
            skipped=self._problems() + skipped(table),
            statistics=(entry.mean, entry.std),
            originals=functools.partial(source.originals, kept, self.folder / "datasets"),
            split=self.splits[0] or None if len(self.splits) == 1 else None,
            reopen=functools.partial(cache.mapped, home, entry.shape, form) if stored else None,
            source=self.name,
            columns=source.columns(self.splits, readable(table).tolist()) if isinstance(source, PathTable) else None,
            value_range=form.value_range,
            table=table,
        )
        return images if chosen is None else self._chosen(images, chosen)

    def _range(self, table: pyarrow.Table, rows: np.ndarray, channels: int) -> list[float] | None:
        """The value range of a sample; it is kept, as reading a hundred large images takes seconds."""
        sample = table.take(rows)
        kept = self.folder / f"{cache.key([sample['digest'].to_pylist(), channels, self.value_range])}.range"
        with contextlib.suppress(OSError, ValueError):
            return json.loads(kept.read_text())
        with without_warnings(), only_python_writes():
            found = _sampled_range(self.source.encoded(sample), channels, self.value_range)
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with replacing(kept) as unfinished:
                unfinished.write_text(json.dumps(found))
        return found

    def _decoded(self, table: pyarrow.Table, form: Form) -> tuple[Path, cache.Entry, torch.Tensor | None]:
        rows = table.take(readable(table))
        if not len(rows):
            raise ValueError(self._nothing(self._problems() + skipped(table)))
        digests = rows["digest"].to_pylist()
        home = self.folder / cache.key([digests, form])
        store = 0 < form.bytes_of(len(rows)) <= self.store_limit
        found = self._cached(home, store)
        if found is None:
            with cache.building(home):
                found = self._cached(home, store)  # another process may have built it while we waited
                if found is None:
                    cache.build(
                        home,
                        self.source.encoded(rows),
                        digests,
                        form,
                        cache.key([type(self.source).__name__, str(Path(self.name).resolve()), self.splits, form]),
                        store=store,
                        workers=self.workers,
                        progress=self.progress,
                        before=len(table) - len(rows),
                    )
                    found = self._cached(home, store)
        if found is None:
            raise ValueError(f"the cache in '{home}' cannot be read back; remove it, or {cache.ELSEWHERE}")
        return home, *found

    def _cached(self, home: Path, store: bool) -> tuple[cache.Entry, torch.Tensor | None] | None:
        """What the cache holds, if that is enough."""
        found = cache.read(home)
        return None if found is None or (store and found[0].count and found[1] is None) else found

    def _problems(self) -> list[tuple[str, str]]:
        return [(printable(name), why) for name, why in self.source.problems]

    def _nothing(self, wrong: list[tuple[str, str]]) -> str:
        if not wrong:
            return f"'{self.name}' holds no images"
        name, why = wrong[0]
        return f"none of the {len(wrong)} images in '{self.name}' can be read; {name}: {why}"

    def _chosen(self, images: Images, named: list[tuple[str, Any]]) -> Images:
        """The images that the metadata names, in its order, with its labels."""
        place = {name: row for row, name in enumerate(images.names)}
        why = dict(images.skipped)
        names = [printable(name) for name, _ in named]
        labels, class_names = _numbered(
            [label for _, label in named], None, [label for _, label in named], self.label_column
        )
        problem = "named in the metadata, and not an image in the folder"
        wrong = self._problems() + [(name, why.get(name, problem)) for name in names if name not in place]
        rows = [row for row, name in enumerate(names) if name in place]
        if not rows:
            raise ValueError(self._nothing(wrong))
        chosen = images.subset([place[names[row]] for row in rows])
        chosen.skipped, chosen.class_names = wrong, class_names
        chosen.labels = _label_array(pyarrow.chunked_array([labels.take(pyarrow.array(rows))]))
        return chosen
