"""One walk over many images: each file is decoded once, for its features and its measures, and what
was found is kept by the digests of the files in a folder, a few thousand images at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64, Shaped, UInt8
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional as F

from nearfar.data import Images
from nearfar.data.bits import floats
from nearfar.data.cache import FORMAT as READING
from nearfar.data.decoding import reason
from nearfar.data.measures import decode_and_measure
from nearfar.data.readers import quietly
from nearfar.data.resources import in_order, usable_cores
from nearfar.data.table import digest, read_small
from nearfar.data.thumbnails import ENLARGED, KeptPictures, encoded, thumbnails
from nearfar.data.value_range import spread
from nearfar.device import find_device, send
from nearfar.embeddings.kept import Marks, read_kept, save_kept
from nearfar.embeddings.store import FEATURES
from nearfar.neighbours.copies import SIDE
from nearfar.networks import Encoder
from nearfar.networks.encoder import describe_encoder, state_of
from nearfar.networks.shortened import FITTED, Shortened, longest_directions
from nearfar.progress import log, progress
from nearfar.threads import use_threads
from nearfar.views import eight_bits

PART = 8192  # images of a file of the folder: what a walk that is killed loses at most
BATCH = 32  # images that a thread decodes and encodes at a time
THUMBNAIL = 64  # pixels of a side, at most: no page of more than 20 000 images shows larger ones
IN_MEMORY = ("features", "measures")  # of what is kept
MEASURING = 2  # raise it when something else is kept of an image


class Walked(NamedTuple):
    """Features and measures of each image, NaN for those that could not be read; small versions and
    thumbnails; why an image could not be read, by position; `new`: how many were read now.
    """

    features: Float[Tensor, "images dim"]
    measures: Float32[np.ndarray, "images 4"]
    pictures: KeptPictures
    problems: dict[int, str]
    new: int


class Found(NamedTuple):
    """Features of one image, its measures, its small version, and the file of its thumbnail."""

    vector: Float[Tensor, " dim"]
    measures: tuple[float, float, float, float]
    small: UInt8[Tensor, "channels side side"]
    thumbnail: bytes


def _stacked(images: Iterable[Found], number: int = 0) -> dict[str, Tensor]:
    """Return what is kept of several images in the file of a number, but for their digests."""
    vectors, measured, small, thumbnails = zip(*images, strict=True)
    ends = torch.tensor([len(thumbnail) for thumbnail in thumbnails]).cumsum(0)
    starts = F.pad(ends[:-1], (1, 0))
    return {
        "features": torch.stack(vectors),
        "measures": torch.tensor(measured),
        "small": torch.stack(small),
        "places": torch.stack([torch.full_like(ends, number), starts, ends], 1),
        "pictures": torch.frombuffer(bytearray(b"".join(thumbnails)), dtype=torch.uint8),
    }


class _Gathered:
    """Features and measures of all images, NaN where they are not known, and where the rest of each
    lies: the number of a file and a row there.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.tensors: dict[str, Tensor] = {}
        self.places: np.ndarray = np.full((count, 2), -1, np.int32)

    def put(
        self,
        rows: Int64[np.ndarray, " rows"],
        kept: dict[str, Tensor],
        number: int,
        at: Int64[np.ndarray, " rows"],
    ) -> None:
        """Put in what the file of a number has of some images, in its rows `at`."""
        for name in IN_MEMORY:
            values = kept[name]
            if name not in self.tensors:
                self.tensors[name] = values.new_full((self.count, *values.shape[1:]), torch.nan)
            self.tensors[name][rows] = values[at]
        self.places[rows] = np.stack([np.full(len(at), number), at], 1)


def _shrunk(
    pixels: Shaped[Tensor, "batch channels size size"],
) -> UInt8[Tensor, "batch channels side side"]:
    """Images as `small_images` has them, in whole numbers."""
    values = pixels.float() if pixels.dtype == torch.uint8 else 255 * pixels
    if values.shape[-1] > SIDE:
        values = F.interpolate(values, (SIDE, SIDE), mode="area")
    return values.round().to(torch.uint8)


def _thumbnails(pixels: Shaped[Tensor, "batch channels size size"]) -> list[bytes]:
    """Files of images as pages show them."""
    tiles = thumbnails(eight_bits(pixels), THUMBNAIL)
    return [encoded(tile, lossless=tile.shape[-1] < ENLARGED) for tile in tiles]


class Walk:
    """A walk over images by an encoder, with a folder that keeps what it finds.

    shorten: whether features are cut down to 128 numbers; the directions are learned from the
    images of the first walk, and kept.
    """

    def __init__(self, folder: Path, encoder: Encoder, images: Images, *, shorten: bool) -> None:
        self.folder, self.images = folder, images
        about = [FEATURES, READING, MEASURING, list(images.form), describe_encoder(encoder)]
        self.key = digest([save(state_of(encoder)), json.dumps(about).encode()])
        folder.mkdir(parents=True, exist_ok=True)
        self.encoder = encoder
        if shorten:
            file = folder / "directions.safetensors"
            kept = read_kept(file, self.key)
            known = self._directions(encoder) if kept is None else kept["directions"]
            if kept is None:
                save_kept(file, self.key, {"directions": known})
            self.encoder = Shortened(encoder, known)
            self.key = digest([self.key.encode(), known.numpy().tobytes()])

    def go(self) -> Walked:
        """Return features and measures of all images; those that the folder holds are not read.

        Raises ValueError where none can be read.
        """
        marks = self.images.marks
        known, unknown = self._known(marks)
        if 0 < len(unknown) < len(marks):
            log.info(
                "%d of %d images are new; the features of the others are known",
                len(unknown),
                len(marks),
            )
        problems: dict[int, str] = {}
        number = self._next()
        with progress("features", len(unknown)) as bar:
            for start in range(0, len(unknown), PART):
                rows = unknown[start : start + PART]
                part = dict(zip(rows.tolist(), self._walked(rows, bar.advance), strict=True))
                problems |= {row: image for row, image in part.items() if isinstance(image, str)}
                right = {row: image for row, image in part.items() if isinstance(image, Found)}
                if not right:
                    continue
                kept, own = _stacked(right.values(), number), np.array(list(right))
                known.put(own, kept, number, np.arange(len(own)))
                kept["digests"] = torch.from_numpy(marks[own])
                save_kept(self.folder / f"{number:05}.safetensors", self.key, kept)
                number += 1
        if not known.tensors:
            raise ValueError(f"no image of {self.images.source} can be read: {problems[0]}")
        files = {int(file.stem): file for file in self._files()}
        side = min(self.images.image_size, THUMBNAIL)
        pictures = KeptPictures(files, known.places, side)
        features, measured = (known.tensors[name] for name in IN_MEMORY)
        return Walked(features, measured.numpy(), pictures, problems, len(unknown))

    def _walked(self, rows: np.ndarray, advance: Callable[[int], None]) -> Iterator[Found | str]:
        """Yield what is found of images, or the reason why one cannot be read; in threads, each of
        which decodes and encodes a batch at a time.
        """
        originals, form = self.images.originals, self.images.form
        assert originals is not None
        device = find_device()
        self.encoder.to(device)

        def work(batch: np.ndarray) -> list[Found | str]:
            read: list[Any] = []
            for row in batch.tolist():
                try:
                    read.append(decode_and_measure(read_small(originals[row]), form))
                except Exception as error:  # decoders raise anything on damaged data
                    read.append(reason(error))
            whole = [image[0] for image in read if not isinstance(image, str)]
            made: Iterator[tuple[Tensor, Tensor, bytes]] = iter(())
            if whole:
                with torch.no_grad():
                    pixels = floats(np.stack(whole))
                    vectors = self.encoder(send(pixels, device)).float().cpu()
                    made = zip(vectors, _shrunk(pixels), _thumbnails(pixels), strict=True)
            out: list[Found | str] = []
            for image in read:
                if isinstance(image, str):
                    out.append(image)
                else:
                    vector, small, thumbnail = next(made)
                    out.append(Found(vector, image[1], small, thumbnail))
            return out

        chunks = ([rows[at : at + BATCH]] for at in range(0, len(rows), BATCH))
        with quietly(), use_threads(1):
            batches: Iterator[list[list[Found | str]]] = in_order(chunks, work, usable_cores())
            for batch in chain.from_iterable(batches):
                yield from batch
                advance(len(batch))

    def _directions(self, encoder: Encoder) -> Float[Tensor, "dim directions"]:
        """The directions along which the features of some images are longest."""
        rows = np.array(spread(len(self.images), FITTED))
        images = [i for i in self._walked(rows, lambda _: None) if isinstance(i, Found)]
        if not images:
            return torch.zeros(encoder.num_features, 0)
        return longest_directions(_stacked(images)["features"])

    def _known(
        self, marks: UInt8[np.ndarray, "images 16"]
    ) -> tuple[_Gathered, Int64[np.ndarray, " unknown"]]:
        """Return what is kept of the images, and the positions of the others. Files of other
        images or another encoder are removed.
        """
        known, find = _Gathered(len(marks)), Marks(marks)
        for file in self._files():
            held = read_kept(file, self.key)
            if held is not None:
                rows, at = find.rows_of(held["digests"].numpy())
                if len(rows):
                    known.put(rows, held, int(file.stem), at)
                    continue
            file.unlink()
        return known, np.flatnonzero(known.places[:, 0] < 0)

    def _next(self) -> int:
        """The number of the next file."""
        files = self._files()
        return int(files[-1].stem) + 1 if files else 0

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9]*.safetensors"))
