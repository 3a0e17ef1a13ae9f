"""A map as columns of a table of embeddings, for other tools."""

from __future__ import annotations

import numpy as np
import pyarrow
import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.data import Images
from nearfar.data.thumbnails import ENLARGED, encoded, thumbnails
from nearfar.embeddings import Embeddings
from nearfar.maps import Map, map_fingerprint
from nearfar.neighbours import Nearest, find_nearest
from nearfar.pages.sheet import GATHERED, SIZE
from nearfar.tools.map.adding import place_on_map

IMAGE, NEIGHBOURS = "image", 15


def map_columns(photos: Embeddings, saved: Map) -> dict[str, pyarrow.Array]:
    """Return the places of images on the map of their run; see `table_columns`.

    Raises ValueError where the encoder has changed since the map was drawn.
    """
    assert photos.run is not None
    now = map_fingerprint(photos.run.path, photos.images)
    if now["encoder"] != saved.about.get("encoder"):
        raise ValueError(
            f"the encoder of {photos.name} changed since its map was drawn: draw the map again"
        )
    return table_columns(photos.images, photos.features, place_on_map(saved, photos))


def table_columns(
    images: Images,
    features: Float[Tensor, "images dim"],
    coordinates: Float[Tensor, "images 2"],
) -> dict[str, pyarrow.Array]:
    """Return a map as columns of a table, as embedding-atlas and Hugging Face datasets read them.

    x and y; image {bytes, path}, a thumbnail of at most 128 px; neighbors {ids, distances}, the 15
    nearest rows by the features, counted from 0, and 1 - cos.
    """
    tiles = (
        tile
        for rows in torch.arange(len(images)).split(GATHERED)
        for tile in thumbnails(images.pictures(rows, SIZE), SIZE)
    )
    files = [
        {"bytes": encoded(tile, lossless=tile.shape[-1] < ENLARGED), "path": name}
        for tile, name in zip(tiles, images.names, strict=True)
    ]
    k = min(NEIGHBOURS, len(images) - 1)
    near = (
        find_nearest(features, k=k) if k else Nearest(torch.zeros(1, 0), torch.zeros(1, 0).long())
    )
    starts = pyarrow.array(k * np.arange(len(images) + 1, dtype=np.int32))
    lists = [
        pyarrow.ListArray.from_arrays(starts, pyarrow.array(numbers.flatten().numpy()))
        for numbers in (near.index, near.distance)
    ]
    return {
        "x": pyarrow.array(coordinates[:, 0].numpy()),
        "y": pyarrow.array(coordinates[:, 1].numpy()),
        IMAGE: pyarrow.array(
            files, pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
        ),
        "neighbors": pyarrow.StructArray.from_arrays(lists, ["ids", "distances"]),
    }
