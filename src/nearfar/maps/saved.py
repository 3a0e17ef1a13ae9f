"""A map on disk: one safetensors file that places further images, read without running code from it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from nearfar.maps.placement import NeighbourPlacement
from nearfar.maps.projector import Projector
from nearfar.messages import first_line

FUNCTION, BACKBONE = "function.", "backbone."


@dataclass(frozen=True)
class SavedMap:
    """A map as a function.

    function: features [images, dim] -> places [images, 2]. places: of the images it was made of. about: what else is
    known: "layout", "data", ... backbone: weights of the encoder that makes the features, None where it is the run's.
    """

    function: Projector | NeighbourPlacement
    places: Float[Tensor, "images 2"]
    about: Mapping[str, Any]
    backbone: Mapping[str, Tensor] | None = None


def save_map(path: str | os.PathLike[str], saved: SavedMap) -> None:
    """Write a map to a file; features of the old images, where placing needs them, in half precision.

    Raises ValueError for a placement that does not compare by cosine, which is what a file stands for.
    """
    tensors = {"places": saved.places}
    tensors |= {FUNCTION + name: value for name, value in saved.function.state_dict().items()}
    if isinstance(saved.function, NeighbourPlacement):
        if saved.function.metric != "cosine":
            raise ValueError("only placements that compare features by cosine are saved")
        tensors[FUNCTION + "features"] = saved.function.features.half()
        del tensors[FUNCTION + "places"]
    tensors |= {BACKBONE + name: value for name, value in (saved.backbone or {}).items()}
    whole = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    Path(path).write_bytes(save(whole, metadata={"about": json.dumps(dict(saved.about))}))


def load_map(path: str | os.PathLike[str]) -> SavedMap:
    """Read a map, on the CPU. Raises FileNotFoundError for a missing file and ValueError for one that is no map."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no map at {path}: draw it first, with nearfar map RUN")
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["about"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        places = tensors.pop("places")
        if not isinstance(about, dict) or places.ndim != 2 or places.shape[1] != 2:
            raise ValueError("it describes no places on a plane")
        return SavedMap(
            _function(_within(tensors, FUNCTION), places), places, about, _within(tensors, BACKBONE) or None
        )
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} is not a map of nearfar, or damaged: {first_line(error)[:200]}") from error


def _within(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _function(state: dict[str, Tensor], places: Tensor) -> Projector | NeighbourPlacement:
    if "features" in state:
        if state["features"].ndim != 2 or len(state["features"]) != len(places):
            raise ValueError("it has not one row of features for each place")
        return NeighbourPlacement(state["features"].float(), places.float())
    projector = Projector(len(state["centre"]))
    projector.load_state_dict(state)
    return projector.requires_grad_(False)
