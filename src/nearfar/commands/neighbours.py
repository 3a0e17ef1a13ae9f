"""A few images with their nearest ones, by the encoder and by raw pixels: what people judge at a glance."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch

from nearfar.atomic import replacing
from nearfar.data import Images
from nearfar.evaluation import extract, raw_pixels
from nearfar.neighbours import nearest_rows
from nearfar.networks import Encoder
from nearfar.training.seeding import stream

FILE = "neighbours.json"
QUERIES, NEAREST, SIZE = 10, 6, 64
MOST_IMAGES, SECONDS, CHUNK = 2000, 3.0, 32


def write_neighbours(folder: Path, encoder: Encoder, images: Images, seed: int) -> None:
    """Write neighbours.json: ten images at random, and the six nearest of each by the encoder and by raw pixels.

    They are searched, by cosine, among at most 2000 images at random, of which the ten are the first; fewer where
    their features take longer than three seconds. Every image that is shown is held as a thumbnail of at most 64
    pixels, so that the report can be written without the data. Nothing is written for fewer than two images.
    """
    from nearfar.maps.thumbnails import LOSSLESS, data_url, thumbnails  # here: with matplotlib, which takes a second

    if len(images) < 2:
        return
    order = torch.randperm(len(images), generator=stream(seed, "neighbours"))[:MOST_IMAGES]
    encoder.to("cuda" if torch.cuda.is_available() else "cpu")
    began = time.perf_counter()
    ours, plain = [], []
    for rows in order.split(CHUNK):
        pixels = images.gather(rows)
        ours.append(extract(encoder, pixels))
        plain.append(raw_pixels(pixels))
        if time.perf_counter() - began > SECONDS:
            break
    near = {"encoder": _nearest(torch.cat(ours)), "raw_pixels": _nearest(torch.cat(plain))}
    queries = [{"image": i, **{kind: lists[i] for kind, lists in near.items()}} for i in range(len(near["encoder"]))]
    shown = sorted({*range(len(queries)), *(image for lists in near.values() for row in lists for image in row)})
    tiles = thumbnails(images.pictures(order[shown]), SIZE)
    pictures = {
        image: {"name": images.names[int(order[image])], "url": data_url(tile, lossless=len(tile[0]) <= LOSSLESS)}
        for image, tile in zip(shown, tiles, strict=True)
    }
    found = {"searched": sum(map(len, ours)), "images": len(images), "queries": queries, "pictures": pictures}
    with replacing(folder / FILE) as unfinished:
        unfinished.write_text(json.dumps(found) + "\n")


def _nearest(features: torch.Tensor) -> list[list[int]]:
    """The nearest other rows of each of the first rows."""
    queries = features[:QUERIES]
    count = min(NEAREST, len(features) - 1)
    return nearest_rows(features, queries, count, own=torch.arange(len(queries))).index.tolist()
