"""A frozen teacher of a run: an encoder or vectors made elsewhere, found by name, and its features
of the training images.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from nearfar.data import Images
from nearfar.data.images import divisors
from nearfar.data.names import match
from nearfar.data.sources.files import TEXT_TABLES
from nearfar.embeddings.embeddings import compute_features
from nearfar.evaluation import Vectors, find_vectors
from nearfar.neighbours import paths_of
from nearfar.networks import Encoder, fitting_size, load_encoder, named_encoder
from nearfar.networks.encoder import WEIGHTS
from nearfar.networks.joined import SIDE
from nearfar.networks.pretrained import StartingWeights, named_weights
from nearfar.progress import log

ROUNDING = 1e-6  # of float32: features that differ by less are the same
VECTOR_FILES = (".npy", ".npz", ".parquet", *TEXT_TABLES)


@dataclass(frozen=True)
class FoundTeacher:
    """A teacher that exists: weights by name, an encoder in a folder, or vectors in a file."""

    given: str
    source: StartingWeights | Encoder | Vectors

    def features(self, images: Images, whole: Images) -> Float[Tensor, "images dim"]:
        """Its features of the training images, less their mean over these, as rows of unit length.

        Without the mean, which all images share, similarities tell more of them apart. whole: the
        images of which these are some; vectors without names are in their order. Raises
        ValueError for images without a vector, for other channels, and for features that are not
        finite or the same for all images.
        """
        if isinstance(self.source, Vectors):
            features = self._vectors_of(self.source, images, whole)
        else:
            encoder, title = self._encoder_for(self.source, images), f"features of {self.given}"
            features = compute_features(encoder, images, title)
        apart = features - features.mean(0)
        if apart.norm(dim=1).max() <= ROUNDING * features.norm(dim=1).max():
            raise ValueError(
                f"`teacher={self.given!r}` tells none of {len(images)} images apart: its features "
                "are the same for all"
            )
        return F.normalize(apart, dim=1)

    def _encoder_for(self, source: StartingWeights | Encoder, images: Images) -> Encoder:
        if isinstance(source, Encoder):
            if {source.channels, images.channels} - {1, 3} and (source.channels != images.channels):
                raise ValueError(
                    f"`teacher={self.given!r}` takes images of {source.channels} channels, and "
                    f"these have {images.channels}"
                )
            return source
        name = source.encoder
        if name is None:
            raise ValueError(f"`teacher={self.given!r}` does not say which net its weights are of")
        size = fitting_size(name, SIDE, 2 * SIDE)
        moments = (images.mean, divisors(images.std))
        encoder = named_encoder(self.given, size, images.channels, moments)
        encoder.value_range = images.value_range
        return encoder

    def _vectors_of(
        self, vectors: Vectors, images: Images, whole: Images
    ) -> Float[Tensor, "images dim"]:
        """The vector of each image, by its name among the whole, or in the order of the whole."""
        if vectors.names is not None:
            paths = [path for path in paths_of(whole) if path is not None]
            own = paths if len(paths) == len(whole) else None
            of, note = match(vectors.names, whole.names, own)
            first = f": its first name is {vectors.names[0]!r:.300}"
        elif len(vectors.features) == len(whole):
            of, first = {row: row for row in range(len(whole))}, ""
            note = f"the vectors of {self.given} have no names: they are taken in the images' order"
        else:
            texts = f"rename one of {', '.join(vectors.texts)}" if vectors.texts else "name them"
            raise ValueError(
                f"`teacher={self.given!r}` has {len(vectors.features)} vectors without names, "
                f"which cannot be those of {len(whole)} images: {texts}, in a column such as 'path'"
            )
        place = {name: row for row, name in enumerate(whole.names)}
        rows = [of.get(place[name], -1) for name in images.names]
        if missing := [name for name, row in zip(images.names, rows, strict=True) if row < 0]:
            raise ValueError(
                f"`teacher={self.given!r}` has no vector for {len(missing)} of the {len(images)} "
                f"training images, such as {missing[0]!r:.300}{first}"
            )
        if note:
            log.info("%s", note)
        return vectors.features[rows]


def find_teacher(given: str) -> FoundTeacher:
    """Find a teacher by what a user gives: a file of vectors, a folder with an encoder, or what
    `find_weights` knows by name.

    Raises ValueError for a file without vectors, and all that `find_weights` raises.
    """
    path = Path(given)
    if path.is_file():
        vectors = find_vectors(given)
        if vectors is None:
            raise ValueError(
                f"`teacher={given!r}` holds no vectors: name a file of some "
                f"({', '.join(VECTOR_FILES)}), a run or an encoder"
            )
        return FoundTeacher(given, vectors)
    if (path / WEIGHTS).is_file():
        return FoundTeacher(given, load_encoder(path))
    is_path = "/" in given or path.suffix.lower() in VECTOR_FILES
    if is_path and ":" not in given and not path.exists():
        raise FileNotFoundError(
            f"there is no teacher {given}: name a run or encoder folder, a file of vectors, "
            "pretrained, or a timm backbone"
        )
    return FoundTeacher(given, named_weights(given))
