"""Items of a torch Dataset or a list, read into memory."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from nearfar.data.cache import Form, Progress
from nearfar.data.decoding import plain, to_array
from nearfar.data.images import Images
from nearfar.data.sources.arrays import as_bytes, as_planes, fitted
from nearfar.data.table import SMALL, USUAL, usual_channels, usual_size
from nearfar.messages import first_line, one_line
from nearfar.views import with_channels

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
    images: list[Tensor] = []
    natives: list[tuple[int, int]] = []
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
        with one_line(f"item {number} of {name}", ValueError):
            image = _image(picture, channels)
            native = image.shape[3], image.shape[2]
            size = image_size or (None if max(native) <= SMALL else USUAL)
            _must_fit(count, Form(size or min(native), channels or image.shape[1]), limit, name)
            image = image if channels is None else with_channels(image, channels)
            images.append(image if size is None else fitted(image, size, channels))
        natives.append(native)
        names.append(f"{number:06d}")
        labels.append(label)
    if not images:
        what = f"none of its items can be read; item {skipped[0][0]}: {skipped[0][1]}" if skipped else "it has no items"
        raise ValueError(f"{name}: {what}")
    form = Form(
        image_size or usual_size(np.array(natives)), channels or usual_channels(np.array([i.shape[1] for i in images]))
    )
    _must_fit(count, form, limit, name)
    pixels = torch.empty(len(images), form.channels, form.size, form.size, dtype=torch.uint8)
    for row, image in enumerate(images):
        with one_line(f"item {int(names[row])} of {name}", ValueError):
            pixels[row] = fitted(image, form.size, form.channels)[0]
    known = any(label >= 0 for label in labels)
    return Images(
        pixels,
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


def _must_fit(count: int, form: Form, limit: int, name: str) -> None:
    if (needed := form.bytes_of(count)) > limit:
        raise ValueError(
            f"{count} images of {form.size} px need {needed / 2**30:.2g} GiB of memory, more than cache_limit "
            f"({limit / 2**30:.2g} GiB); give a smaller image_size, a higher cache_limit, or a folder of images"
        )


def _class_names(source: Any, labels: Sequence[int]) -> list[str] | None:
    """The names that torchvision's data sets keep in `classes`."""
    classes = getattr(source, "classes", None)
    fits = isinstance(classes, (list, tuple)) and len(classes) > max(labels)
    return [str(name) for name in classes] if fits and classes is not None else None
