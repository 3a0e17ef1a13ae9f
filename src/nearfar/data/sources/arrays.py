"""Sources that are decoded already: arrays in memory, .npy and .npz files, items of a torch Dataset
or list, digits.

Of files no pickle is loaded, and no more is read than fits into memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped, UInt8
from numpy.lib.npyio import NpzFile
from PIL import Image
from torch import Tensor

from nearfar.data.cache import Store
from nearfar.data.decoding import to_array, to_gray_or_rgb
from nearfar.data.images import Images, pieces
from nearfar.data.labels import (
    OneHot,
    check_alike,
    label_of,
    labels_of,
    numbered,
    texts_of,
    whole_number,
)
from nearfar.data.left_out import OTHER_KEY
from nearfar.data.resources import machine_memory
from nearfar.data.sources.encoded import prefix
from nearfar.data.sources.splits import choose_splits
from nearfar.data.table import SMALL, USUAL, most_common_channels, most_common_size
from nearfar.data.value_range import (
    EIGHT_BITS,
    FormatRequest,
    PixelFormat,
    of_sample,
    sixteen_bits,
    spread,
)
from nearfar.messages import first_line, raise_as_value_error, say_once
from nearfar.progress import tracked
from nearfar.views import from_range, resize_square, with_channels

_IMAGE_KEYS = ("images", "x")
_LABEL_KEYS = ("labels", "y", "label", "targets", "target", "classes", "class")
COLOUR = (3, 4)  # channels of colour images, without and with transparency
_PARTS = ("", "train", "validation", "val", "test")
KINDS = (
    "images come as PIL images, uint8 arrays or tensors, or float tensors in 0..1, alone "
    "or first in a tuple "
    "with a label as the second"
)


def from_memory(source: Any, split: str | None, request: FormatRequest) -> Images:
    """An array or tensor of images, or a pair (images, labels)."""
    images, labels = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
    choose_splits([""], split, "an array")
    return _images(_array(images), labels, None, request)


def from_file(path: Path, split: str | None, request: FormatRequest, label: str | None) -> Images:
    """A .npy file of images (memory-mapped), or a .npz file.

    npz: images under "images" or "x", labels under "labels" or "y" (or the key `label`); with
    splits "x_train", "train_images", "y_test" and so on. Pickled objects are refused.
    """
    # a damaged header claims any size: what cannot be allocated is the file's fault here
    with raise_as_value_error(f"cannot use '{path}'", Exception, MemoryError):
        content = np.load(path, mmap_mode="c", allow_pickle=False)
        if isinstance(content, np.ndarray):
            if label is not None:
                raise ValueError(
                    "a .npy file holds images only; use .npz with a key for the labels"
                )
            choose_splits([""], split, path)
            return _images(content, None, None, request)
        with content:
            parts = _parts(content.files)
            if not parts:
                raise ValueError(
                    f"it needs a key 'images' or 'x'; its keys: {', '.join(content.files)}"
                )
            chosen = choose_splits(parts, split, path)
            wanted = _LABEL_KEYS if label is None else (label,)
            keys = {part: _find(content.files, wanted, part) for part in parts}
            if label is not None and any(keys[part] is None for part in chosen):
                raise ValueError(
                    f"it has no key '{label}' for labels; its keys: {', '.join(content.files)}"
                )
            images = _joined(content, [parts[part] for part in chosen])
            every = _labels_in(content, keys, path, label)
            others = [key for key in content.files if key not in parts.values()]
            left = [(key, OTHER_KEY) for key in others if _may_be_images(content, key)]
        opened = _images(images, None, chosen[0] if len(chosen) == 1 else None, request)
        if all(part in every for part in chosen):
            check_alike(every, path)
            _set_labels(opened, [key for part in chosen for key in every[part]], every)
        opened.skipped = left
        return opened


def _labels_in(
    content: NpzFile, keys: Mapping[str, str | None], path: Path, label: str | None
) -> dict[str, list[str | None]]:
    """The labels of each split; none, with a line, where what stands under a usual key is none."""
    try:
        return {
            part: labels_of(_joined(content, [key]), f"'{key}'")
            for part, key in keys.items()
            if key is not None
        }
    except ValueError as error:
        if label is not None:
            raise
        say_once(f"no labels of '{path}' are used: {first_line(error)}")
        return {}


def _may_be_images(content: NpzFile, key: str) -> bool:
    """Return whether an array in a .npz file has the axes of images, by its header."""
    return f"{key}.npy" in content.zip.namelist() and len(header_in(content, key)[0]) in (3, 4)


def header_in(content: NpzFile, key: str) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of an array in a .npz file, from its header."""
    with content.zip.open(f"{key}.npy") as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, kind = read(file)
    return shape, kind


def _joined(content: NpzFile, keys: list[str]) -> np.ndarray:
    """Some arrays of a file, one after the other; ValueError if they do not fit into the free
    memory.
    """
    available = machine_memory()["available"]
    for key in keys:
        needed = content.zip.getinfo(
            key if key in content.zip.namelist() else f"{key}.npy"
        ).file_size
        if available is not None and needed > available:
            gib, free = needed / 2**30, available / 2**30
            raise ValueError(
                f"'{key}' needs {gib:.3g} GiB of memory, and {free:.3g} GiB are free: save "
                f"it as .npy"
            )
    return content[keys[0]] if len(keys) == 1 else np.concatenate([content[key] for key in keys])


def digits(split: str | None, request: FormatRequest) -> Images:
    """scikit-learn's 1797 digits, 8 x 8, 0..16 scaled to 0..255.

    The source has no splits: for None or "all" everything is read. "test" is a fixed random fifth
    (360 images) and "train" the rest, sampled once for all with seed 0.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    images = _images(pixels, bunch.target, None, request._replace(value_range=None))
    images.names = [f"digits/{i:04d}" for i in range(len(pixels))]
    images.class_names = [str(name) for name in bunch.target_names]
    if split in (None, "all"):
        return images
    order = np.random.RandomState(0).permutation(len(pixels))
    part = {"train": order[360:], "test": order[:360]}[
        choose_splits(["train", "test"], split, "digits")[0]
    ]
    chosen = images.subset(np.sort(part))
    chosen.split = split
    return chosen


def splits_of(path: Path) -> list[str]:
    """The splits in a .npz file's keys; empty for .npy and for undivided files."""
    with raise_as_value_error(f"cannot use '{path}'"):
        content = np.load(path, mmap_mode="c", allow_pickle=False)
        return (
            []
            if isinstance(content, np.ndarray)
            else [part for part in _parts(content.files) if part]
        )


def _parts(keys: list[str]) -> dict[str, str]:
    """Split to key of its images; an undivided file has the one split ""."""
    key_of = {part: _find(keys, _IMAGE_KEYS, part) for part in _PARTS}
    named = {part: name for part, name in key_of.items() if name is not None}
    return {"": named[""]} if "" in named else named


def _find(keys: Iterable[str], names: tuple[str, ...], part: str) -> str | None:
    wanted = (
        [f"{name}_{part}" for name in names] + [f"{part}_{name}" for name in names]
        if part
        else list(names)
    )
    return next((name for name in wanted if name in keys), None)


def _array(value: Any) -> np.ndarray:
    if not isinstance(value, Tensor):
        return np.asarray(value)
    if value.is_sparse or value.is_quantized:
        raise ValueError("images must be a dense tensor, not sparse or quantized")
    return (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()


def _images(raw: np.ndarray, labels: Any, split: str | None, request: FormatRequest) -> Images:
    planes = as_planes(np.asarray(raw), request.channels)
    height, width = planes.shape[2:]
    size = request.size or (min(height, width) if max(height, width) <= SMALL else USUAL)
    form = PixelFormat(size, request.channels or planes.shape[1])
    if request.value_range == EIGHT_BITS or _has_eight_bits(planes):
        pixels = fitted(as_bytes(planes), form)
    else:
        sample = [planes.numpy()[i] for i in spread(len(planes))]
        form = form._replace(value_range=of_sample(sample, form.channels, request.value_range))
        pixels = _in_range(planes, form)
    names = [f"{prefix(split or '')}{i:06d}" for i in range(len(pixels))]
    images = Images(pixels, names=names, form=form, split=split or None)
    if labels is not None:
        _set_labels(images, labels_of(labels, "what is given for labels"))
    return images


def _set_labels(
    images: Images,
    labels: list[str | None],
    of_splits: Mapping[str, list[str | None]] | None = None,
    class_names: list[str] | None = None,
) -> None:
    """Give images their labels, numbered alike in all splits; ValueError for another number of
    them.
    """
    if len(labels) != len(images):
        raise ValueError(f"labels must be one for each of {len(images)} images, got {len(labels)}")
    others = [label for part in (of_splits or {}).values() for label in part]
    numbers, names = numbered([*labels, *others], class_names)
    numbers = numbers.slice(0, len(labels))
    if numbers.null_count < len(numbers):
        images.labels = numbers.fill_null(-1).to_numpy().copy()
        images.class_names = names


def _has_eight_bits(planes: Tensor) -> bool:
    """Return whether the type is uint8 or bool, or another of whole numbers (but for uint16) that
    all lie in 0..255.
    """
    if planes.is_floating_point() or planes.dtype == torch.uint16:
        return False
    small = planes.dtype in (torch.uint8, torch.bool)
    return small or all(
        piece.min() >= 0 and piece.max() <= 255 for piece in map(Tensor.numpy, pieces(planes))
    )


def _in_range(planes: Tensor, form: PixelFormat) -> Shaped[Tensor, "images c s s"]:
    """Images in their own numbers as uint16: resized as floats, in which the range is 0..1."""
    out = []
    for piece in pieces(planes):
        numbers = piece.to(torch.float32)
        if not numbers.isfinite().all():
            raise ValueError("images must hold finite numbers")
        small = resize_square(
            from_range(with_channels(numbers, form.channels), form.value_range or ()), form.size
        )
        out.append(sixteen_bits(small))
    return torch.from_numpy(np.concatenate(out))


def as_planes(raw: np.ndarray, channels: int | None = None) -> Tensor:
    """Any accepted layout as a tensor [N,C,H,W]; the channel axis is the shorter of the second and
    the last.

    ValueError where both may be it: `channels` says which one has so many, and of two equal ones
    takes the second; and for three axes that are one colour image rather than strips of grayscale.
    """
    if raw.ndim not in (3, 4) or 0 in raw.shape:
        raise ValueError(
            f"images must be an array [N,H,W], [N,H,W,C] or [N,C,H,W], got shape {tuple(raw.shape)}"
        )
    if (
        raw.dtype.kind not in "uifb" or raw.dtype.itemsize > 8
    ):  # float128, which torch does not know
        raise ValueError(f"images must be uint8 or other numbers up to 64 bits, got {raw.dtype}")
    if raw.ndim == 3 and raw.shape[2] in COLOUR and min(raw.shape[:2]) > max(COLOUR):
        height, width, colours = raw.shape
        raise ValueError(
            f"an array {list(raw.shape)} is one image of {colours} channels, or {height} grayscale "
            f"ones of {width} x {colours} pixels: give images[None], or images[:, None]"
        )
    if raw.ndim == 3:
        raw = raw[:, None]
    elif _channels_last(raw.shape, channels):
        raw = raw.transpose(0, 3, 1, 2)
    if min(raw.strides) < 0:  # turned around, which torch does not know
        raw = raw.copy()
    return torch.from_numpy(raw.astype(raw.dtype.newbyteorder("="), copy=False))


def _channels_last(shape: tuple[int, ...], channels: int | None) -> bool:
    """Return whether the last axis of four holds the channels, and not the second.

    The shorter one does where the images are square then, or where it has at most 4 and they are
    not square otherwise.
    """
    _, second, third, last = shape
    shorter, square_first, square_last = min(second, last), third == last, second == third
    square, square_otherwise = (
        (square_last, square_first) if last < second else (square_first, square_last)
    )
    if second != last and (square or (shorter <= 4 and not square_otherwise)):
        return last < second
    if channels in (second, last):
        return channels != second
    first, otherwise = (
        f"{second} channels of {third} x {last} pixels",
        f"{last} of {second} x {third}",
    )
    which = (
        f"channels={second} or channels={last}"
        if second != last
        else f"channels={second}, if they come first"
    )
    raise ValueError(
        f"images of shape {list(shape[1:])} may have {first} or {otherwise}: say {which}"
    )


def as_bytes(planes: Tensor) -> UInt8[Tensor, "images channels height width"]:
    """To uint8: bool to 0 and 255, uint16 divided by 257, floats in 0..1 times 255, other integers
    as they are.
    """
    if planes.dtype == torch.uint8:
        return planes
    if planes.dtype == torch.bool:
        return planes.to(torch.uint8) * 255
    scale = 1 / 257 if planes.dtype == torch.uint16 else 255 if planes.is_floating_point() else 1
    out = torch.empty(planes.shape, dtype=torch.uint8)
    for piece, to in zip(pieces(planes), pieces(out), strict=True):
        values = piece.to(torch.float64) * scale
        if not bool(((values >= 0) & (values <= 255)).all()):
            raise ValueError(
                "float images must lie in 0..1, whole numbers in 0..255; scale them, or give uint8"
            )
        to.copy_(values.round())
    return out


def fitted(
    pixels: UInt8[Tensor, "images given height width"], form: PixelFormat
) -> UInt8[Tensor, "images {form.channels} {form.size} {form.size}"]:
    """The same images with another size and number of channels; not copied where they fit."""
    if pixels.shape[1] == form.channels and min(pixels.shape[2:]) == form.size:
        return resize_square(pixels, form.size)
    return torch.cat(
        [resize_square(with_channels(piece, form.channels), form.size) for piece in pieces(pixels)]
    )


def from_items(source: Any, name: str, request: FormatRequest, store: Store) -> Images:
    """Read every item once, in order, into memory.

    An item is a PIL image (taken as it is: EXIF orientation is not applied), an array or tensor
    [h,w], [h,w,c] or [c,h,w], or a tuple of that and, where known, its label. Items that raise an
    error are skipped and listed. Raises ValueError for items of another kind, and before more than
    the limit of the store is filled.
    """
    count = len(source)
    images: list[Tensor] = []
    natives: list[tuple[int, int]] = []
    names: list[str] = []
    labels: list[str | OneHot | None] | None = []
    skipped: list[tuple[str, str]] = []
    for number in tracked(range(count), "reading images"):
        try:
            picture, label = _read(source, number)
        except Exception as error:  # the user's own code, or a damaged file that it opens
            skipped.append((f"{number:06d}", first_line(error)))
            continue
        with raise_as_value_error(f"item {number} of {name}", ValueError):
            image = _image(picture, request.channels)
            native = image.shape[3], image.shape[2]
            size = request.size or (None if max(native) <= SMALL else USUAL)
            form = PixelFormat(size or min(native), request.channels or image.shape[1])
            _check_fits_memory(count, form, store.limit, name)
            images.append(
                with_channels(image, form.channels) if size is None else fitted(image, form)
            )
        natives.append(native)
        names.append(f"{number:06d}")
        labels = _with_label(labels, label, name)
    if not images:
        problem = (
            f"none of its items can be read; item {skipped[0][0]}: {skipped[0][1]}"
            if skipped
            else "it has no items"
        )
        raise ValueError(f"{name}: {problem}")
    channels = request.channels or most_common_channels(
        np.array([image.shape[1] for image in images])
    )
    form = PixelFormat(request.size or most_common_size(np.array(natives)), channels)
    _check_fits_memory(count, form, store.limit, name)
    pixels = torch.empty(len(images), form.channels, form.size, form.size, dtype=torch.uint8)
    for row, image in enumerate(images):
        with raise_as_value_error(f"item {int(names[row])} of {name}", ValueError):
            pixels[row] = fitted(image, form)[0]
    images_read = Images(pixels, names=names, form=form, skipped=skipped)
    if labels is not None:
        classes: Any = getattr(source, "classes", None)  # of torchvision's data sets
        try:
            texts = texts_of(labels, "the second of an item")
        except ValueError as error:
            say_once(f"no labels of {name} are used: {first_line(error)}")
        else:
            _set_labels(images_read, *_named(texts, classes))
    return images_read


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


def _named(
    labels: list[str | None], classes: Any
) -> tuple[list[str | None], None, list[str] | None]:
    """The labels, and the names of classes where these fit them."""
    if not isinstance(classes, (list, tuple)) or not classes:
        return labels, None, None
    names = [str(name) for name in classes]
    whole = [None if label is None else whole_number(label) for label in labels]
    if all(label is None or label in names for label in labels) and None in whole:
        return labels, None, names
    if any(
        number is None and label is not None for number, label in zip(whole, labels, strict=True)
    ):
        return labels, None, None
    present = [number for number in whole if number is not None]
    if min(present, default=0) < -1 or max(present, default=0) >= len(names):
        return labels, None, None
    return (
        [None if number is None or number < 0 else names[number] for number in whole],
        None,
        names,
    )


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
    return as_bytes(as_planes(picture[None], channels))


def _check_fits_memory(count: int, form: PixelFormat, limit: int, name: str) -> None:
    if (needed := form.bytes_of(count)) > limit:
        raise ValueError(
            f"{count} images of {form.size} px need {needed / 2**30:.2g} GiB of memory, "
            f"more than cache_limit "
            f"({limit / 2**30:.2g} GiB); give a smaller image_size, a higher cache_limit, "
            f"or a folder of images"
        )
