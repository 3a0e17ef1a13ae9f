"""Features that a run folder keeps, by the digests of the images, so that only new ones are
computed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nearfar.atomic import replacing
from nearfar.data import Images
from nearfar.data.cache import FORMAT as READING
from nearfar.data.table import digest
from nearfar.messages import first_line
from nearfar.networks import Encoder
from nearfar.networks.encoder import CONFIG, WEIGHTS
from nearfar.pairs.arithmetic import rows_not_finite
from nearfar.progress import log
from nearfar.training.run_folder import content_of

FILE = "features.safetensors"
FEATURES = 1  # raise it when the same encoder gives an image other features


class FeatureStore:
    """The features of images in a run folder, in features.safetensors, by the digest of each
    encoded image. Those of other data stay, up to as many as these are, or as the file had.

    Where the file cannot be written, a line says so and the features are used all the same. One
    that holds anything else than what was written is not believed, and a line says so.
    """

    def __init__(self, folder: Path, images: Images) -> None:
        self.folder, self.images, self.path = folder, images, folder / FILE

    def features(
        self, encoder: Encoder, compute: Callable[[Encoder, Images], Tensor]
    ) -> Float[Tensor, "images dim"]:
        """Return the features of all images; those that are not kept are computed, and kept."""
        key, digests, images = self._key(), self.images.digests, self.images
        saved, before = self._load(key, encoder.num_features)
        rows = np.array([before.get(digest or "", -1) for digest in digests])
        new = np.flatnonzero(rows < 0)
        if not len(new):
            return saved[rows]
        if len(new) < len(images):
            log.info(
                "%d of %d images are new; the features of the others are known",
                len(new),
                len(images),
            )
            images = images.subset(new)
        features = torch.cat([saved, compute(encoder, images)])
        rows[new] = len(saved) + np.arange(len(new))
        known = {
            digest: int(row)
            for digest, row in zip(digests, rows, strict=True)
            if digest is not None
        }
        others = [digest for digest in before if digest not in known]
        most = max(2 * len(self.images), len(before)) - len(known)
        known |= {digest: before[digest] for digest in others[:most]}
        try:
            self._save(key, features, known)
        except (OSError, SafetensorError) as error:  # which a full disk raises too
            log.warning("the features are not saved for the next time: %s", first_line(error))
        return features[rows]

    def _key(self) -> str:
        """Return what the features of an image depend on beside its content: the encoder's files,
        how it is read, and our code.
        """
        images = self.images
        opened = [FEATURES, READING, images.image_size, images.channels, images.value_range]
        files = [(self.folder / file).read_bytes() for file in (WEIGHTS, CONFIG)]
        return digest([*files, json.dumps(opened).encode()])

    def _load(self, key: str, dim: int) -> tuple[Float[Tensor, "known dim"], dict[str, int]]:
        """Return the features under this key and the row of each digest; none where there are
        none, or the file is damaged.
        """
        nothing: tuple[Tensor, dict[str, int]] = (torch.zeros(0, dim), {})
        if not os.path.lexists(self.path):
            return nothing
        try:
            features = self._read(key, dim)
        except (OSError, SafetensorError, ValueError, TypeError, RuntimeError) as error:
            why = first_line(error)[:200]
            log.warning("%s is damaged, and its features are computed anew: %s", self.path, why)
            return nothing
        return nothing if features is None else features

    def _read(self, key: str, dim: int) -> tuple[Tensor, dict[str, int]] | None:
        if not self.path.is_file():
            raise ValueError("it is not a regular file")
        with safe_open(self.path, "pt") as file:
            about = file.metadata() or {}
            if about.get("key") != key:
                return None
            features, digests = file.get_tensor("features"), file.get_tensor("digests")
        shapes = (len(features), dim), (len(features), 16)
        if (tuple(features.shape), tuple(digests.shape)) != shapes:
            raise ValueError(f"its features are not [images, {dim}]")
        if (features.dtype, digests.dtype) != (torch.float32, torch.uint8):
            raise ValueError(f"its features are {features.dtype}")
        if about.get("content") != content_of(features, digests) or len(rows_not_finite(features)):
            raise ValueError("its content has changed")
        return features, {bytes(mark).hex(): row for row, mark in enumerate(digests.numpy())}

    def _save(self, key: str, features: Tensor, rows: Mapping[str, int]) -> None:
        """Write the features at these rows by the digests of their images, whole or not at all."""
        kept = features[list(rows.values())]
        marks = [list(bytes.fromhex(digest)) for digest in rows]
        digests = torch.tensor(marks, dtype=torch.uint8).reshape(len(rows), 16)
        about = {"key": key, "content": content_of(kept, digests)}
        with replacing(self.path) as unfinished:
            save_file({"features": kept, "digests": digests}, unfinished, metadata=about)
