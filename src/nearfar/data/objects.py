"""Images from objects of the user: what kind of source one is, in a few words, and the items of a torch Dataset."""

from __future__ import annotations

import numbers
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from nearfar.data.arrays import as_bytes, as_planes, fitted
from nearfar.data.building import PixelFormat, Progress, format_after
from nearfar.data.decode import plain, to_array
from nearfar.data.images import Images
from nearfar.data.sources import are_files, are_several, short_names
from nearfar.messages import first_line


def describe(source: Any) -> str:
    """A source in a few words, for config files and messages; a path or name is its own description.

    Such as "array [1797, 8, 8] uint8", "torch Dataset CIFAR10 of 50000 images", "datasets.Dataset of 1000 rows".
    """
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if isinstance(source, Images):
        return source.source
    if are_files(source):
        return f"{len(source)} image files, first {os.fspath(source[0])}"
    if are_several(source):
        return " + ".join(short_names(source))
    if is_array(source):
        images = source[0] if isinstance(source, tuple) else source
        kind = "tensor" if isinstance(images, Tensor) else "array"
        return f"{kind} {list(images.shape)} {str(images.dtype).removeprefix('torch.')}"
    if is_table(source):
        rows = sum(len(table) for table in source.values()) if isinstance(source, dict) else len(source)
        return f"datasets.{type(source).__name__} of {rows} rows"
    if isinstance(source, Dataset):
        length = length_of(source)
        return f"torch Dataset {type(source).__name__}" + (f" of {length} images" if length is not None else "")
    if isinstance(source, (list, tuple)):
        return f"{type(source).__name__} of {len(source)} images"
    return f"an object of class {type(source).__name__}"


def length_of(source: Any) -> int | None:
    """Its length, or None; never found out by asking for items until one is missing, as some have no last one."""
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        return None


def is_array(source: Any) -> bool:
    """Whether it is an array or a tensor, or a pair (images, labels) of which the first is."""
    images = source[0] if isinstance(source, tuple) and len(source) == 2 else source
    return isinstance(images, (np.ndarray, Tensor))


def is_table(source: Any) -> bool:
    """Whether it is a Dataset or DatasetDict of `datasets`, which is not imported to find out."""
    library = sys.modules.get("datasets")
    return library is not None and isinstance(source, (library.Dataset, library.DatasetDict))


def has_items(source: Any) -> bool:
    """Whether it is a torch Dataset with a length, or a list, to be read item by item."""
    given = isinstance(source, (Dataset, list, tuple)) and not isinstance(source, IterableDataset)
    return given and length_of(source) is not None


KINDS = (
    "images come as PIL images, uint8 arrays or tensors, or float tensors in 0..1, alone or first in a tuple "
    "with a label as the second"
)


def from_items(
    source: Any,
    name: str,
    image_size: int | None,
    channels: int | None,
    limit: int,
    progress: Progress | None,
) -> Images:
    """Read every item once, in order, into memory.

    An item is a PIL image (taken as it is: EXIF orientation is not applied), an array or tensor [h,w], [h,w,c] or
    [c,h,w], or a tuple of that and, where known, its label. Items that raise an error are skipped and listed.
    Raises ValueError for items of another kind, and before more than `limit` bytes are filled.
    """
    count = len(source)
    form: PixelFormat | None = None
    pixels = torch.empty(0)
    names: list[str] = []
    labels: list[int] = []
    skipped: list[tuple[str, str]] = []
    for number in range(count):
        try:
            picture, label = _read(source, number)
        except Exception as error:  # the user's own code, or a damaged file that it opens
            skipped.append((f"{number:06d}", first_line(error)))
            continue
        finally:
            if progress is not None:
                progress(number + 1, count)
        try:
            image = _image(picture, channels)
            native, has = (image.shape[3], image.shape[2]), image.shape[1]
            wider = format_after(native, has, image_size, channels) if form is None else form.widened(native, has > 1)
            if wider != form:
                form, pixels = wider, _room(count, wider, limit, name, pixels[: len(names)])
            pixels[len(names)] = fitted(image, form.size, form.channels)[0]
        except ValueError as error:
            raise ValueError(f"item {number} of {name}: {error}") from error
        names.append(f"{number:06d}")
        labels.append(label)
    if form is None:
        what = f"none of its items can be read; item {skipped[0][0]}: {skipped[0][1]}" if skipped else "it has no items"
        raise ValueError(f"{name}: {what}")
    known = any(label >= 0 for label in labels)
    return Images(
        pixels[: len(names)],
        names=names,
        image_size=form.size,
        channels=form.channels,
        labels=np.array(labels, dtype=np.int64) if known else None,
        class_names=_class_names(source, labels) if known else None,
        skipped=skipped,
    )


def _read(source: Any, number: int) -> tuple[Any, int]:
    item = source[number]
    picture, label = item, None
    if isinstance(item, (tuple, list)) and item:
        picture, label = item[0], item[1] if len(item) > 1 else None
    if isinstance(picture, Image.Image):
        picture.load()
    if isinstance(label, (Tensor, np.ndarray)) and tuple(label.shape) == ():
        label = label.item()
    return picture, int(label) if isinstance(label, numbers.Integral) else -1


def _image(picture: Any, channels: int | None) -> UInt8[Tensor, "1 channels height width"]:
    if isinstance(picture, Image.Image):
        image = plain(picture)
        return torch.tensor(to_array(image, len(image.getbands())))[None]
    if isinstance(picture, Tensor):
        picture = picture.detach().cpu().numpy()
    if not isinstance(picture, np.ndarray) or picture.ndim not in (2, 3):
        shape = f" of shape {list(picture.shape)}" if isinstance(picture, np.ndarray) else ""
        raise ValueError(f"it is a {type(picture).__name__}{shape}; {KINDS}")
    return as_bytes(as_planes(picture[None], channels))


def _room(count: int, form: PixelFormat, limit: int, name: str, kept: Tensor) -> UInt8[Tensor, "count channels s s"]:
    """An empty tensor for all images, with those of a narrower format in its first rows."""
    needed = count * form.channels * form.size**2
    if needed > limit:
        raise ValueError(
            f"{count} images of {form.size} px need {needed / 2**30:.2g} GiB of memory, more than cache_limit "
            f"({limit / 2**30:.2g} GiB); give a smaller image_size, a higher cache_limit, or a folder of images"
        )
    pixels = torch.empty(count, form.channels, form.size, form.size, dtype=torch.uint8)
    if len(kept):
        pixels[: len(kept)] = fitted(kept, form.size, form.channels)
    return pixels


def _class_names(source: Any, labels: Sequence[int]) -> list[str] | None:
    """The names that torchvision's data sets keep in `classes`."""
    classes = getattr(source, "classes", None)
    fits = isinstance(classes, (list, tuple)) and len(classes) > max(labels)
    return [str(name) for name in classes] if fits and classes is not None else None
