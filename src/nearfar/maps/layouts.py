"""Maps as functions: layouts of images on a plane, which give coordinates to new images too, and
their files.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from nearfar.data import Images
from nearfar.data.table import digest
from nearfar.device import find_device
from nearfar.evaluation import extract, extract_view
from nearfar.maps.cluster_embedding import ClusterEmbedding, NeighborInterpolation
from nearfar.maps.projector import (
    Projector,
    check_enough,
    epochs_of_first_stage,
    finetune_map,
    fit_projector,
)
from nearfar.messages import check_known, first_line, raise_as_value_error
from nearfar.neighbours import Nearest
from nearfar.networks import Encoder
from nearfar.networks.encoder import WEIGHTS, load_weights
from nearfar.progress import log
from nearfar.training.seeding import stream
from nearfar.views import Views

LAYOUTS = ("cluster-embedding", "projector", "finetune")  # the default first
NUM_VIEWS = 8
FUNCTION, BACKBONE = "function.", "backbone."  # prefixes of tensors in a file
DIGESTS = "digests"
ABOUT: dict[str, Any] = {"images": int, "sample": int, "data": (str, list)}
ABOUT |= dict.fromkeys(("names", "encoder", "layout", "split"), str)
"""Entries that a file may hold about a map, as far as they are used, with their types."""


@dataclass(frozen=True)
class Map:
    """A map as a function.

    function: features [images, dim] -> coordinates [images, 2]. coordinates: of the images that the
    map was made of. about: further facts, as JSON has them: "layout", "data", ... backbone: weights
    of the encoder whose features the function takes; None: those of the run. digests: of the images
    of the map, 16 bytes each; None where they are not known, and images can be compared by their
    names alone.

    >>> made = load_map("runs/photos/map.safetensors")
    >>> made.coordinates.shape, made.function(torch.rand(3, 128)).shape
    (torch.Size([25, 2]), torch.Size([3, 2]))
    """

    function: Projector | NeighborInterpolation
    coordinates: Float[Tensor, "images 2"]
    about: Mapping[str, Any]
    backbone: Mapping[str, Tensor] | None = None
    digests: UInt8[Tensor, "images bytes"] | None = None

    def encoder(self, encoder: Encoder) -> Encoder:
        """The run's encoder with the weights of the map; ValueError if they do not fit."""
        if self.backbone is None:
            return encoder
        encoder = copy.deepcopy(encoder)
        with raise_as_value_error(
            "the map holds weights of another encoder than the run", ValueError
        ):
            load_weights(encoder.backbone.net, self.backbone)
        return encoder

    def place(
        self, images: Images, features_of: Callable[[list[int]], Tensor]
    ) -> Float[Tensor, "images 2"]:
        """Coordinates of images, those of the map among them; a log line counts the others.

        An image with the digest of one on the map keeps that one's place; several with one digest
        share out theirs in order. All others, such as one that was replaced under its old name, get
        coordinates by the function, from `features_of` their positions. Where digests are not
        known, the images count as those of the map if all names are the same, and a log line says
        so. Raises ValueError for features of another width than the map's.
        """
        rows = self._rows_of(images)
        if rows is None:
            log.info(
                "images are compared with those of the map by their names, since the "
                "digests of their content are not "
                "known: one that was replaced keeps its old place"
            )
            same = names_of(images) == self.about.get("names") and len(images) == len(
                self.coordinates
            )
            rows = list(range(len(images))) if same else [-1] * len(images)
        new = [place for place, row in enumerate(rows) if row < 0]
        coordinates = self.coordinates[rows].clone()  # a row of -1 is overwritten
        if new:
            features, dim = features_of(new), self._dim
            if features.shape[1] != dim:
                raise ValueError(
                    f"the map takes features of {dim} numbers, and the encoder gives "
                    f"{features.shape[1]}"
                )
            coordinates[new] = self.function(features)
        if 0 < len(new) < len(images):
            log.info(
                "%d of %d images are not on the map as it was drawn, and get new coordinates",
                len(new),
                len(images),
            )
        return coordinates

    @property
    def _dim(self) -> int:
        if isinstance(self.function, Projector):
            return len(self.function.centre)
        return self.function.features.shape[1]

    def _rows_of(self, images: Images) -> list[int] | None:
        """The row of the map of each image, by its digest, -1 for one that is not on it; None where
        none is known.
        """
        if self.digests is None or digests_of(images) is None:
            return None
        left: dict[str | None, list[int]] = {}
        for row, value in reversed(list(enumerate(self.digests.numpy()))):
            left.setdefault(bytes(value).hex(), []).append(row)
        return [
            left[image_digest].pop() if left.get(image_digest) else -1
            for image_digest in images.digests
        ]


def check_layout(layout: str, num_views: int | None, images: int) -> None:
    """Raise ValueError for an unknown layout, for views with a layout that uses none, and for fewer
    images than it needs.
    """
    check_known("`layout`", layout, LAYOUTS)
    if layout == "finetune":
        check_enough(images)
    if layout == "cluster-embedding" and num_views is not None:
        raise ValueError(
            "`num_views`: the layout cluster-embedding makes no views; choose projector or finetune"
        )


def fit_layout(
    layout: str,
    encoder: Encoder | None,
    images: Images,
    features: Float[Tensor, "images dim"],
    views: Views | None,
    *,
    neighbours: Nearest | None = None,
    num_views: int | None = None,
    epochs: int | None = None,
    seed: int = 0,
) -> Map:
    """Lay out images on a plane; projectors train on a GPU if there is one.

    encoder, views: None for cluster-embedding. features: those of the encoder, without
    augmentation. neighbours: 30 nearest others of each image, if known. num_views: augmented views
    of each image for the projector. epochs: None fits them to the number of images.
    """
    if layout == "cluster-embedding":
        return _cluster_embedding(features, neighbours, epochs, seed)
    assert encoder is not None and views is not None
    device = find_device()
    seen = [
        extract_view(
            encoder,
            images,
            views.pick([number % len(views)]),
            stream(seed, "map", number),
            device=device,
        )
        for number in range(num_views or NUM_VIEWS)
    ]
    alone = epochs_of_first_stage(len(images), epochs) if layout == "finetune" else epochs
    projector = fit_projector(torch.stack(seen), features, epochs=alone, seed=seed)
    if layout == "projector":
        return Map(projector, projector(features), {"layout": layout})
    encoder, projector = finetune_map(
        encoder, projector, images, views, epochs=epochs, seed=seed, device=device
    )
    coordinates = projector(extract(encoder, images, device=device))
    return Map(projector, coordinates, {"layout": layout}, encoder.backbone.net.state_dict())


def _cluster_embedding(
    features: Float[Tensor, "images dim"],
    neighbours: Nearest | None,
    steps: int | None,
    seed: int,
) -> Map:
    coordinates = torch.zeros(len(features), 2)
    if len(features) > 1:
        embedding = ClusterEmbedding(
            metric="cosine", max_iter=steps or ClusterEmbedding.max_iter, random_state=seed
        )
        embedding.fit(features.numpy(), neighbours=neighbours)
        coordinates = torch.from_numpy(embedding.embedding_)
    about = {"layout": "cluster-embedding"}
    return Map(NeighborInterpolation(features, coordinates), coordinates, about)


def save_map(path: str | os.PathLike[str], saved: Map) -> None:
    """Write a map to a safetensors file; the features of a cluster embedding, compared by cosine,
    in half precision.

    >>> save_map("copied.safetensors", load_map("runs/photos/map.safetensors"))
    """
    tensors = {"coordinates": saved.coordinates}
    tensors |= {} if saved.digests is None else {DIGESTS: saved.digests}
    tensors |= {FUNCTION + name: value for name, value in saved.function.state_dict().items()}
    if isinstance(saved.function, NeighborInterpolation):
        tensors[FUNCTION + "features"] = saved.function.features.half()
        del tensors[FUNCTION + "coordinates"]
    tensors |= {BACKBONE + name: value for name, value in (saved.backbone or {}).items()}
    whole = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    Path(path).write_bytes(save(whole, metadata={"about": json.dumps(dict(saved.about))}))


def load_map(path: str | os.PathLike[str]) -> Map:
    """Read a map, on the CPU, without running code from it.

    Raises FileNotFoundError for a missing file and ValueError for a file that is no map.

    >>> load_map("runs/photos/map.safetensors").coordinates.shape
    torch.Size([25, 2])
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no map at {path}: draw it first, with nearfar map RUN")
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["about"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        coordinates = tensors.pop("coordinates")
        if not isinstance(about, dict) or coordinates.ndim != 2 or coordinates.shape[1] != 2:
            raise ValueError("it has no coordinates on a plane")
        digests = tensors.pop(DIGESTS, None)
        _check(about, coordinates, digests, tensors)
        function = _function(_within(tensors, FUNCTION), coordinates)
        return Map(
            function, coordinates.float(), about, _within(tensors, BACKBONE) or None, digests
        )
    except (
        SafetensorError,
        KeyError,
        TypeError,
        ValueError,
        RuntimeError,
        RecursionError,
    ) as error:
        raise ValueError(
            f"{path} is not a map of nearfar, or damaged: {first_line(error)[:200]}"
        ) from error


def _check(
    about: Mapping[str, Any],
    coordinates: Tensor,
    digests: Tensor | None,
    tensors: Mapping[str, Tensor],
) -> None:
    """Raise ValueError where facts, digests or numbers of a file cannot be those of a map."""
    for name, kinds in ABOUT.items():
        value = about.get(name)
        if value is not None and (not isinstance(value, kinds) or isinstance(value, bool)):
            raise ValueError(f"its {name!r} cannot be {value!r:.40}")
    if len(coordinates) != about.get("images", len(coordinates)):
        raise ValueError("its coordinates are not those of as many images as it names")
    kind = torch.uint8, (len(coordinates), 16)
    if digests is not None and (digests.dtype, tuple(digests.shape)) != kind:
        raise ValueError("its digests are not those of its images")
    places = {name: value for name, value in tensors.items() if name.startswith(FUNCTION)}
    for name, value in {**places, "coordinates": coordinates}.items():
        if not value.is_floating_point() or not value.isfinite().all():
            raise ValueError(f"its {name} are not finite numbers")


def digests_of(images: Images) -> UInt8[Tensor, "images bytes"] | None:
    """The digest of each image, 16 bytes; None where that of one is not known."""
    known = [
        bytes.fromhex(image_digest) for image_digest in images.digests if image_digest is not None
    ]
    if not known or len(known) < len(images):
        return None
    return torch.tensor([list(value) for value in known], dtype=torch.uint8)


def names_of(images: Images) -> str:
    """One digest of the names of images, in their order."""
    return digest("\n".join(images.names).encode("utf-8", "surrogatepass"))


def map_fingerprint(folder: Path, images: Images) -> dict[str, Any]:
    """Describe the origin of a map: the number of images, and digests of their names and of the
    encoder in a run folder.
    """
    return {
        "images": len(images),
        "names": names_of(images),
        "encoder": digest((folder / WEIGHTS).read_bytes()),
    }


def find_map(name: str | Path, folder: Path) -> Path:
    """The file of a saved map, given its name in a run folder, or the path of its page or file."""
    path = Path(name)
    stem = path.with_suffix("") if path.suffix in (".html", ".safetensors") else path
    inside, elsewhere = folder / f"{stem}.safetensors", Path(f"{stem}.safetensors")
    return elsewhere if elsewhere.is_file() and not inside.is_file() else inside


def _within(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def _function(state: dict[str, Tensor], coordinates: Tensor) -> Projector | NeighborInterpolation:
    if "features" in state:
        if state["features"].ndim != 2 or len(state["features"]) != len(coordinates):
            raise ValueError("features and coordinates differ in number")
        return NeighborInterpolation(state["features"].float(), coordinates.float())
    projector = Projector(len(state["centre"]))
    projector.load_state_dict(state)
    return projector.requires_grad_(False)
