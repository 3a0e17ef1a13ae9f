"""What kind of source an object is, and a few words for it where a string would stand."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from nearfar.data.images import Images


def describe(source: Any) -> str:
    """A source in a few words, for config files and messages; a path or name is its own description.

    Such as "array [1797, 8, 8] uint8", "torch Dataset CIFAR10 of 50000 images", "datasets.Dataset of 1000 rows".
    """
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if isinstance(source, Images):
        return source.source
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
