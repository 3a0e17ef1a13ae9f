"""A map as columns of a table, in the form that embedding-atlas and Hugging Face datasets read."""

from __future__ import annotations

import pyarrow
import torch
from jaxtyping import Float
from rich.console import Console
from torch import Tensor

from nearfar.commands.run_features import nearest_shown
from nearfar.data import Images
from nearfar.maps.thumbnails import encoded, thumbnails
from nearfar.pages.contact_sheets import ENLARGED, GATHERED, SIZE
from nearfar.views import eight_bits

PICTURES = "image"
NEIGHBOURS = 15


def map_columns_of(
    images: Images, features: Float[Tensor, "images dim"], places: Float[Tensor, "images 2"], console: Console
) -> dict[str, pyarrow.Array]:
    """The columns x and y, image {bytes, path} and neighbors {ids, distances}.

    image: a picture of at most 128 px. neighbors: the 15 nearest rows by the features, counted from 0, and 1 - cos.
    """
    return {
        "x": pyarrow.array(places[:, 0].numpy()),
        "y": pyarrow.array(places[:, 1].numpy()),
        PICTURES: pyarrow.array(
            [{"bytes": data, "path": name} for data, name in zip(_pictures(images), images.names, strict=True)],
            pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()}),
        ),
        "neighbors": _neighbours(features, console),
    }


def _pictures(images: Images) -> list[bytes]:
    return [
        encoded(tile, lossless=tile.shape[-1] < ENLARGED)
        for rows in torch.arange(len(images)).split(GATHERED)
        for tile in thumbnails(eight_bits(images.pictures(rows)), SIZE)
    ]


def _neighbours(features: Float[Tensor, "images dim"], console: Console) -> pyarrow.Array:
    k = min(NEIGHBOURS, len(features) - 1)
    starts = pyarrow.array(range(0, len(features) * k + 1, k) if k else [0] * (len(features) + 1), pyarrow.int32())
    found = None if k == 0 else nearest_shown(features, k, console)
    flat = [torch.zeros(0, dtype=torch.int64), torch.zeros(0)] if found is None else [found.index, found.distance]
    lists = [pyarrow.ListArray.from_arrays(starts, pyarrow.array(numbers.flatten().numpy())) for numbers in flat]
    return pyarrow.StructArray.from_arrays(lists, ["ids", "distances"])
