"""Sources that are decoded already: arrays in memory, .npy and .npz files, items of a torch Dataset
or list, digits.

Of files no pickle is loaded, and no more is read than fits into memory.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import torch
from jaxtyping import UInt8
from numpy.lib.npyio import NpzFile
from PIL import Image
from torch import Tensor

from nearfar.data.bits import NEARLY_BLACK, are_gray, bits_of, bytes_of_arrays
from nearfar.data.labels import (
    OneHot,
    check_alike,
    label_of,
    labels_of,
    numbered,
    say_label_column,
    texts_of,
    whole_number,
)
from nearfar.data.layouts import as_planes, shape_of_planes, to_pixels, unmasked
from nearfar.data.left_out import OTHER_KEY
from nearfar.data.pictures import to_array, to_gray_or_rgb
from nearfar.data.resources import machine_memory
from nearfar.data.sources.source import Source, labels_as_column, numbered_names
from nearfar.data.table import SMALL, USUAL
from nearfar.data.value_range import FormatRequest, PixelFormat
from nearfar.messages import first_line, listed_names, raise_as_value_error, say_once
from nearfar.progress import tracked
from nearfar.views import with_channels

_IMAGE_KEYS = ("images", "x")
_LABEL_KEYS = ("labels", "y", "label", "targets", "target", "classes", "class")
_EXPANDED = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}  # most bytes of one byte in a file
_PARTS = ("", "train", "validation", "val", "test")
KINDS = (
    "images come as PIL images, uint8 arrays or tensors, or float tensors in 0..1, alone "
    "or first in a tuple "
    "with a label as the second"
)
Labels = list[str | None] | None


class Facts(NamedTuple):
    """Shape and type of an array that is perhaps not read yet."""

    shape: tuple[int, ...]
    dtype: np.dtype


class Arrays(Source):
    """Arrays of images by split, and their labels.

    get: an array by its split, read when it is asked for. facts: of each. channels: of which each
    image has so many, where its layout may be read in two ways.
    """

    def __init__(
        self,
        get: Callable[[str], np.ndarray],
        facts: Mapping[str, Facts],
        labels: Mapping[str, Labels],
        channels: int | None = None,
        skipped: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.get, self.facts, self.labels, self.channels = get, facts, labels, channels
        self.skipped = list(skipped)
        self._planes: dict[str, Tensor] = {}

    def split_names(self) -> list[str]:
        return list(self.facts)

    def left_out(self, splits: Sequence[str]) -> list[tuple[str, str]]:
        return self.skipped

    def planes(self, split: str) -> Tensor:
        """The images of a split, [images, channels, height, width], in their own numbers."""
        if split not in self._planes:
            self._planes[split] = as_planes(self.get(split), self.channels)
        return self._planes[split]

    def scan(self) -> pyarrow.Table:
        shapes = {
            split: shape_of_planes(shape, dtype, self.channels)
            for split, (shape, dtype) in self.facts.items()
        }
        counts = [shape[0] for shape in shapes.values()]
        splits = [split for split, shape in shapes.items() for _ in range(shape[0])]
        bits = [bits_of(self.facts[split].dtype, partial(self.planes, split)) for split in shapes]
        sizes = {
            "height": [shape[2] for shape in shapes.values()],
            "width": [shape[3] for shape in shapes.values()],
            "bands": [shape[1] for shape in shapes.values()],
            "bits": bits,
            "pages": [1] * len(shapes),
        }
        columns: dict[str, Any] = {
            name: pyarrow.array(np.repeat(values, counts).astype(np.int32))
            for name, values in sizes.items()
        }
        columns["place"] = pyarrow.array(np.concatenate([np.arange(count) for count in counts]))
        return table_of(splits, numbered_names(splits), self._labels(shapes), columns)

    def _labels(self, shapes: Mapping[str, tuple[int, ...]]) -> pyarrow.Array:
        every: list[str | None] = []
        for split, shape in shapes.items():
            labels = self.labels.get(split)
            if labels is not None and len(labels) != shape[0]:
                raise ValueError(
                    f"labels must be one for each of {shape[0]} images, got {len(labels)}"
                )
            every += [None] * shape[0] if labels is None else labels
        return labels_as_column(*numbered(every))

    def read(self, rows: pyarrow.Table) -> Iterable[np.ndarray] | Tensor:
        splits, places = rows["split"].to_pylist(), rows["place"].to_numpy()
        parts = [self.planes(split) for split in dict.fromkeys(splits)]
        if len(parts) == 1:
            first = int(places[0]) if len(places) else 0
            if np.array_equal(places, np.arange(first, first + len(places))):
                return parts[0][first : first + len(places)]  # no copy
            return parts[0][torch.tensor(places)]
        return [
            self.planes(split)[place].numpy() for split, place in zip(splits, places, strict=True)
        ]

    def originals(self, rows: pyarrow.Table, scratch: Path | None = None) -> None:
        return None


class Digits(Arrays):
    """scikit-learn's 1797 digits, 8 x 8, 0..16 scaled to 0..255.

    "test" is a fixed random fifth (360 images) and "train" the rest, sampled once for all with seed
    0; all are read unless one of them is asked for.
    """

    undivided = True

    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        self.bunch = load_digits()
        pixels = np.rint(self.bunch.images * (255 / 16)).astype(np.uint8)
        super().__init__(lambda split: pixels, {"": Facts(pixels.shape, pixels.dtype)}, {})

    def split_names(self) -> list[str]:
        return ["train", "test"]

    def scan(self) -> pyarrow.Table:
        table = super().scan()
        order = np.random.RandomState(0).permutation(len(table))
        test = np.isin(np.arange(len(table)), order[:360])
        columns = {
            "name": pyarrow.array([f"digits/{i:04d}" for i in range(len(table))]),
            "split": pyarrow.array(np.where(test, "test", "train").tolist()),
            "label": labels_as_column(
                pyarrow.array(self.bunch.target, pyarrow.int64()),
                [str(name) for name in self.bunch.target_names],
            ),
        }
        for name, column in columns.items():
            table = table.set_column(table.schema.get_field_index(name), name, column)
        return table

    def read(self, rows: pyarrow.Table) -> Tensor:
        return self.planes("")[torch.tensor(rows["place"].to_numpy())]


def table_of(
    splits: Sequence[str], names: Sequence[str], labels: Any, others: Mapping[str, Any]
) -> pyarrow.Table:
    """A table of images in memory, which have no digests."""
    nothing = pyarrow.nulls(len(names), pyarrow.string())
    return pyarrow.table(
        {
            "name": pyarrow.array(names, pyarrow.string()),
            "split": pyarrow.array(splits, pyarrow.string()),
            "label": labels,
            "digest": nothing,
            "problem": nothing,
            **others,
        }
    )


def of_memory(source: Any, channels: int | None) -> Arrays:
    """An array or tensor of images, or a pair (images, labels)."""
    images, given = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
    array = _array(images)
    labels = None if given is None else labels_of(given, "what is given for labels")
    return Arrays(
        lambda split: array, {"": Facts(array.shape, array.dtype)}, {"": labels}, channels
    )


def _array(value: Any) -> np.ndarray:
    if not isinstance(value, Tensor):
        return unmasked(value)
    if value.is_sparse or value.is_quantized:
        raise ValueError("images must be a dense tensor, not sparse or quantized")
    return (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()


class ArrayFile(Arrays):
    """A .npy file of images (memory-mapped), or a .npz file.

    npz: images under "images" or "x", labels under "labels" or "y" (or the key `label`); with
    splits "x_train", "train_images", "y_test" and so on. Pickled objects are refused.
    """

    def __init__(self, path: Path, label: str | None, channels: int | None) -> None:
        self.path = path
        with self._usable():
            content = np.load(path, mmap_mode="c", allow_pickle=False)
            if isinstance(content, np.ndarray):
                if label is not None:
                    raise ValueError(
                        "a .npy file holds images only; use .npz with a key for the labels"
                    )
                facts = {"": Facts(content.shape, content.dtype)}
                super().__init__(lambda split: content, facts, {}, channels)
                return
            with content:
                self._open(content, label, channels)

    def _open(self, content: NpzFile, label: str | None, channels: int | None) -> None:
        parts = _parts(content.files)
        if not parts:
            raise ValueError(
                f"it needs a key 'images' or 'x'; its keys: {listed_names(content.files)}"
            )
        wanted = _LABEL_KEYS if label is None else (label,)
        keys = {part: _find(content.files, wanted, part) for part in parts}
        if label is not None and None in keys.values():
            raise ValueError(
                f"it has no key '{label}' for labels; its keys: {listed_names(content.files)}"
            )
        for part, key in keys.items():
            if label is None and key is not None:
                say_label_column(self.path, key, _all(content.files, wanted, part))
        labels = _labels_in(content, keys, self.path, label)
        check_alike({part: own for part, own in labels.items() if own is not None}, self.path)
        others = [key for key in content.files if key not in parts.values()]
        left = [(key, OTHER_KEY) for key in others if _may_be_images(content, key)]
        facts = {part: _loadable(content, key) for part, key in parts.items()}
        super().__init__(partial(self._load, parts), facts, labels, channels, left)

    def _load(self, keys: Mapping[str, str], split: str) -> np.ndarray:
        with np.load(self.path, allow_pickle=False) as content:
            return _array_in(content, keys[split])

    def _usable(self) -> Any:
        # a damaged header claims any size: what cannot be allocated is the file's fault here
        return raise_as_value_error(f"cannot use '{self.path}'", Exception, MemoryError)

    def scan(self) -> pyarrow.Table:
        with self._usable():
            return super().scan()

    def planes(self, split: str) -> Tensor:
        with self._usable():
            return super().planes(split)


def _labels_in(
    content: NpzFile, keys: Mapping[str, str | None], path: Path, label: str | None
) -> dict[str, Labels]:
    """The labels of each split; none, with a line, where what stands under a usual key is none."""
    try:
        return {
            part: None if key is None else labels_of(_array_in(content, key), f"'{key}'")
            for part, key in keys.items()
        }
    except ValueError as error:
        if label is not None:
            raise
        say_once(f"no labels of '{path}' are used: {first_line(error)}")
        return {}


def _may_be_images(content: NpzFile, key: str) -> bool:
    """Return whether an array in a .npz file has the axes of images, by its header."""
    return f"{key}.npy" in content.zip.namelist() and len(facts_in(content, key).shape) in (3, 4)


def facts_in(content: NpzFile, key: str) -> Facts:
    """Shape and type of an array in a .npz file, from its header.

    Raises ValueError for one that claims more than the file can hold, which numpy would allocate.
    """
    member = _member(content, key)
    with content.zip.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, kind = read(file)
    claimed = math.prod(map(abs, shape)) * kind.itemsize
    if claimed > member.file_size and not kind.hasobject:  # objects are never loaded
        raise ValueError(f"'{key}' claims {claimed:,} bytes, which the file cannot hold")
    return Facts(shape, kind)


def _member(content: NpzFile, key: str) -> zipfile.ZipInfo:
    """The entry of an array; ValueError where the archive cannot hold what its entry claims."""
    archive, names = content.zip, content.zip.namelist()
    member = archive.getinfo(key if key in names else f"{key}.npy")
    assert archive.fp is not None
    held = min(member.compress_size, archive.fp.seek(0, os.SEEK_END))
    if member.file_size > held * _EXPANDED.get(member.compress_type, math.inf):
        raise ValueError(f"'{key}' claims {member.file_size:,} bytes, which the file cannot hold")
    return member


def _loadable(content: NpzFile, key: str) -> Facts:
    """Shape and type of an array in a .npz file; ValueError if it holds Python objects."""
    facts = facts_in(content, key)
    if facts.dtype.hasobject:
        raise ValueError("Python objects are not loaded")
    return facts


def _array_in(content: NpzFile, key: str) -> np.ndarray:
    """An array of a file; ValueError if it is no usable one or larger than the free memory."""
    _loadable(content, key)
    available, needed = machine_memory()["available"], _member(content, key).file_size
    if available is not None and needed > available:
        gib, free = needed / 2**30, available / 2**30
        raise ValueError(
            f"'{key}' needs {gib:.3g} GiB of memory, and {free:.3g} GiB are free: save it as .npy"
        )
    return content[key]


def _parts(keys: list[str]) -> dict[str, str]:
    """Split to key of its images; an undivided file has the one split ""."""
    key_of = {part: _find(keys, _IMAGE_KEYS, part) for part in _PARTS}
    named = {part: name for part, name in key_of.items() if name is not None}
    return {"": named[""]} if "" in named else named


def _find(keys: Iterable[str], names: tuple[str, ...], part: str) -> str | None:
    return next(iter(_all(keys, names, part)), None)


def _all(keys: Iterable[str], names: tuple[str, ...], part: str) -> list[str]:
    """The keys of a part, by the order of their names."""
    wanted = (
        [f"{name}_{part}" for name in names] + [f"{part}_{name}" for name in names]
        if part
        else list(names)
    )
    return [name for name in wanted if name in keys]


class Items(Source):
    """The items of a torch Dataset or list, each read once, in order, into memory.

    An item is a PIL image (taken as it is: EXIF orientation is not applied), an array or tensor
    [h,w], [h,w,c] or [c,h,w], or a tuple of that and, where known, its label. Items that raise an
    error are problems of their rows. Those of another kind raise ValueError, and so do more pixels
    than `limit` bytes: items larger than 96 pixels are kept in the size that is asked for, or else
    of 224.
    """

    def __init__(self, items: Any, name: str, request: FormatRequest, limit: int) -> None:
        self.items, self.name, self.request, self.limit = items, name, request, limit
        self._held: dict[int, Tensor] = {}

    def split_names(self) -> list[str]:
        return [""]

    def scan(self) -> pyarrow.Table:
        count = len(self.items)
        problems = list[str | None]()
        shapes = list[tuple[int | None, ...]]()
        labels: list[str | OneHot | None] | None = []
        wide, loses_colour = 0, False
        for number in tracked(range(count), "reading images"):
            try:
                picture, label = _read(self.items, number)
            except Exception as error:  # the user's own code, or a damaged file that it opens
                problems.append(first_line(error))
                shapes.append((None, None, None))
                labels = _with_label(labels, None, self.name)
                continue
            with raise_as_value_error(f"item {number} of {self.name}", ValueError):
                image = _image(picture, self.request.channels)
                wide += _has_sixteen_bits(picture)
                if self.request.channels == 1 and image.shape[1] == 3 and not loses_colour:
                    loses_colour = not bool(are_gray(image))
                self._held[number] = self._shrunk(image, count)
            problems.append(None)
            shapes.append(tuple(image.shape[1:]))
            labels = _with_label(labels, label, self.name)
        self._check_any(problems)
        self._say_lost(wide, loses_colour)
        bands, heights, widths = zip(*shapes, strict=True)
        sizes: dict[str, Any] = {"bands": bands, "height": heights, "width": widths}
        sizes |= {"bits": [8] * count, "pages": [1] * count}
        columns: dict[str, Any] = {
            name: pyarrow.array(values, pyarrow.int32()) for name, values in sizes.items()
        }
        columns["place"] = pyarrow.array(range(count), pyarrow.int64())
        columns["problem"] = pyarrow.array(problems, pyarrow.string())
        numbers = labels_as_column(*numbered(*self._texts(labels, count)))
        return table_of([""] * count, [f"{n:06d}" for n in range(count)], numbers, columns)

    def _check_any(self, problems: Sequence[str | None]) -> None:
        if None in problems:
            return
        problem = (
            f"none of its items can be read; item 000000: {problems[0]}"
            if problems
            else "it has no items"
        )
        raise ValueError(f"{self.name}: {problem}")

    def _say_lost(self, wide: int, loses_colour: bool) -> None:
        """Say where items lose bits or colours. wide: how many have 16 bits."""
        if wide:
            say_once(
                f"{wide} of {len(self.items)} items of {self.name} hold 16 bits, and become 8, "
                f"{NEARLY_BLACK}: one array keeps them"
            )
        if loses_colour:
            say_once(f"{self.name} holds images in colour, and all become gray")

    def _shrunk(self, image: Tensor, count: int) -> Tensor:
        """The image as it is held until all are known; ValueError if so many do not fit."""
        size = self.request.size or (None if max(image.shape[2:]) <= SMALL else USUAL)
        form = PixelFormat(size or min(image.shape[2:]), self.request.channels or image.shape[1])
        check_fits_memory(count, form, self.limit, self.name)
        return with_channels(image, form.channels) if size is None else to_pixels(image, form)

    def _texts(
        self, labels: list[str | OneHot | None] | None, count: int
    ) -> tuple[list[str | None], list[str] | None]:
        """The labels, and the names of classes if the items have some."""
        classes: Any = getattr(self.items, "classes", None)  # of torchvision's data sets
        try:
            if labels is not None:
                return _named(texts_of(labels, "the second of an item"), classes)
        except ValueError as error:
            say_once(f"no labels of {self.name} are used: {first_line(error)}")
        return [None] * count, None

    def read(self, rows: pyarrow.Table) -> Iterable[np.ndarray]:
        return (self._held[place][0].numpy() for place in rows["place"].to_pylist())

    def originals(self, rows: pyarrow.Table, scratch: Path | None = None) -> None:
        return None


def _with_label(
    labels: list[str | OneHot | None] | None, value: Any, name: str
) -> list[str | OneHot | None] | None:
    """The labels of items with a further one; None, with a line, from the first that is no label
    on.
    """
    try:
        if labels is not None:
            labels.append(label_of(value, "the second of an item"))
        return labels
    except ValueError as error:
        say_once(f"no labels of {name} are used: {first_line(error)}")
        return None


def _named(labels: list[str | None], classes: Any) -> tuple[list[str | None], list[str] | None]:
    """The labels, and the names of classes where these fit them."""
    if not isinstance(classes, (list, tuple)) or not classes:
        return labels, None
    names = [str(name) for name in classes]
    whole = [None if label is None else whole_number(label) for label in labels]
    if all(label is None or label in names for label in labels) and None in whole:
        return labels, names
    if any(
        number is None and label is not None for number, label in zip(whole, labels, strict=True)
    ):
        return labels, None
    present = [number for number in whole if number is not None]
    if min(present, default=0) < -1 or max(present, default=0) >= len(names):
        return labels, None
    return [None if number is None or number < 0 else names[number] for number in whole], names


def _read(source: Any, number: int) -> tuple[Any, Any]:
    item = source[number]
    picture, label = item, None
    if isinstance(item, (tuple, list)) and item:
        picture, label = item[0], item[1] if len(item) > 1 else None
    if isinstance(picture, Image.Image):
        picture.load()
    return picture, label


def _image(picture: Any, channels: int | None) -> UInt8[Tensor, "1 channels height width"]:
    if isinstance(picture, Image.Image):
        image = to_gray_or_rgb(picture)
        return torch.tensor(to_array(image, len(image.getbands())))[None]
    if isinstance(picture, Tensor):
        picture = picture.detach().cpu().numpy()
    if not isinstance(picture, np.ndarray) or picture.ndim not in (2, 3):
        shape = f" of shape {list(picture.shape)}" if isinstance(picture, np.ndarray) else ""
        raise ValueError(f"it is a {type(picture).__name__}{shape}; {KINDS}")
    return bytes_of_arrays(as_planes(unmasked(picture)[None], channels))


def _has_sixteen_bits(picture: Any) -> bool:
    if isinstance(picture, Image.Image):
        return picture.mode.startswith("I;16")
    return str(picture.dtype).endswith("uint16")


def check_fits_memory(count: int, form: PixelFormat, limit: int, name: str) -> None:
    """Raise ValueError where so many images of a form are more than `limit` bytes."""
    if (needed := form.bytes_of(count)) > limit:
        raise ValueError(
            f"{count} images of {form.size} px need {needed / 2**30:.2g} GiB of memory, "
            f"more than cache_limit "
            f"({limit / 2**30:.2g} GiB); give a smaller image_size, a higher cache_limit, "
            f"or a folder of images"
        )
