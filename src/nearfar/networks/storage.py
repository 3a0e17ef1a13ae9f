"""An encoder on disk: encoder.safetensors and encoder.json, read without running code."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from nearfar.networks.backbone import Architecture
from nearfar.networks.encoder import Encoder

WEIGHTS, DESCRIPTION = "encoder.safetensors", "encoder.json"


def save_encoder(folder: str | Path, encoder: Encoder) -> None:
    """Write encoder.safetensors (the net's state_dict, timm's own keys) and encoder.json into a folder.

    The folder is made if need be; each file is replaced as a whole. For a timm net, the weights load into
    `timm.create_model(name, num_classes=0, **arguments)` as they are, unless `small_stem` says that the first
    convolution must be made 3x3 with stride 1 and the max-pool removed first.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    architecture = encoder.backbone.architecture
    state = {
        name: value.detach().cpu().contiguous().clone() for name, value in encoder.backbone.net.state_dict().items()
    }
    description = {
        "name": architecture.name,
        "arguments": architecture.arguments,
        "small_stem": architecture.small_stem,
        "num_features": encoder.num_features,
        "image_size": encoder.image_size,
        "channels": encoder.channels,
        "mean": encoder.mean.flatten().tolist(),
        "std": encoder.std.flatten().tolist(),
        "nearfar": version("nearfar"),
    }
    partial = folder / f".{WEIGHTS}.partial"
    save_file(state, partial, metadata={"format": "pt"})
    os.replace(partial, folder / WEIGHTS)
    partial = folder / f".{DESCRIPTION}.partial"
    partial.write_text(json.dumps(description, indent=2) + "\n")
    os.replace(partial, folder / DESCRIPTION)


def load_encoder(folder: str | Path) -> Encoder:
    """Read the encoder of a run folder, on the CPU and in eval mode.

    Raises FileNotFoundError for a missing file and ValueError for a damaged one.
    """
    folder = Path(folder)
    for file in (DESCRIPTION, WEIGHTS):
        if not (folder / file).is_file():
            raise FileNotFoundError(f"no encoder in {folder}: {file} is missing (has the run finished?)")
    try:
        encoder = _described(json.loads((folder / DESCRIPTION).read_text()))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{folder / DESCRIPTION} does not describe an encoder: {_first_line(error)}") from error
    try:
        encoder.backbone.net.load_state_dict(load_file(folder / WEIGHTS))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise ValueError(f"{folder / WEIGHTS} is damaged or of another encoder: {_first_line(error)}") from error
    return encoder.eval()


def _described(description: dict[str, Any]) -> Encoder:
    architecture = Architecture(description["name"], description["arguments"], description["small_stem"])
    size, channels = description["image_size"], description["channels"]
    return Encoder(architecture.build(size), size, channels, description["mean"], description["std"])


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
