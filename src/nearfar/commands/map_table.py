"""A map as columns of a table, in the form that embedding-atlas and Hugging Face datasets read."""

from __future__ import annotations

import pyarrow
import torch
from jaxtyping import Float
from rich.console import Console
from torch import Tensor

from nearfar.commands.gallery import ENLARGED, GATHERED, SIZE
from nearfar.commands.run_features import nearest_shown
from nearfar.data import Images
from nearfar.maps.thumbnails import encoded, thumbnails
from nearfar.views import eight_bits

PICTURES = "image"
NEIGHBOURS = 15


def with_map(
    images: Images, features: Float[Tensor, "images dim"], places: Float[Tensor, "images 2"], console: Console
) -> pyarrow.Table:
    """The images' own columns, then x and y, image {bytes, path} and neighbors {ids, distances}.

    image: a picture of at most 128 px. neighbors: the 15 nearest rows by the features, counted from 0, and 1 - cos.
    Own columns of such a name are called table_name.
    """
    added = {
        "x": pyarrow.array(places[:, 0].numpy()),
        "y": pyarrow.array(places[:, 1].numpy()),
        PICTURES: pyarrow.array(
            [{"bytes": data, "path": name} for data, name in zip(_pictures(images), images.names, strict=True)],
            pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()}),
        ),
        "neighbors": _neighbours(features, console),
    }
    own = {} if images.columns is None else {name: images.columns[name] for name in images.columns.column_names}
    return pyarrow.table({f"table_{name}" if name in added else name: value for name, value in own.items()} | added)


def _pictures(images: Images) -> list[bytes]:
    tiles = [
        tile
        for rows in torch.arange(len(images)).split(GATHERED)
        for tile in thumbnails(eight_bits(images.pictures(rows)), SIZE)
    ]
    return [encoded(tile, lossless=tile.shape[-1] < ENLARGED) for tile in tiles]


def _neighbours(features: Float[Tensor, "images dim"], console: Console) -> pyarrow.Array:
    k = min(NEIGHBOURS, len(features) - 1)
    starts = pyarrow.array(range(0, len(features) * k + 1, k) if k else [0] * (len(features) + 1), pyarrow.int32())
    found = None if k == 0 else nearest_shown(features, k, console)
    flat = [torch.zeros(0, dtype=torch.int64), torch.zeros(0)] if found is None else [found.index, found.distance]
    lists = [pyarrow.ListArray.from_arrays(starts, pyarrow.array(numbers.flatten().numpy())) for numbers in flat]
    return pyarrow.StructArray.from_arrays(lists, ["ids", "distances"])
