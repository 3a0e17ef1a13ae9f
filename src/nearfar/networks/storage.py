"""An encoder on disk: encoder.safetensors and encoder.json, read without running code."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from nearfar.atomic import replacing
from nearfar.messages import first_line
from nearfar.networks.backbone import Architecture, Backbone, own_backbone
from nearfar.networks.encoder import Encoder

WEIGHTS, DESCRIPTION = "encoder.safetensors", "encoder.json"


def save_encoder(folder: str | Path, encoder: Encoder) -> None:
    """Write encoder.safetensors (the net's state_dict, timm's own keys) and encoder.json into a folder.

    The folder is made if need be; each file is replaced as a whole. For a timm net, the weights load into
    `timm.create_model(name, num_classes=0, **arguments)` as they are, unless `small_stem` says that the first
    convolution must be made 3x3 with stride 1 and the max-pool removed first. Of a user's own module only the class is
    noted, under "object".
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        name: value.detach().cpu().contiguous().clone() for name, value in encoder.backbone.net.state_dict().items()
    }
    architecture = encoder.backbone.architecture
    kind: dict[str, Any] = {"object": encoder.backbone.name}
    if architecture is not None:
        kind = {
            "name": architecture.name,
            "arguments": architecture.arguments,
            "small_stem": architecture.small_stem,
        }
    description = kind | {
        "num_features": encoder.num_features,
        "image_size": encoder.image_size,
        "channels": encoder.channels,
        "mean": encoder.mean.flatten().tolist(),
        "std": encoder.std.flatten().tolist(),
        "nearfar": version("nearfar"),
    }
    with replacing(folder / WEIGHTS) as file:
        save_file(state, file, metadata={"format": "pt"})
    with replacing(folder / DESCRIPTION) as file:
        file.write_text(json.dumps(description, indent=2) + "\n")


def load_encoder(folder: str | Path, backbone: nn.Module | None = None) -> Encoder:
    """Read the encoder of a run folder, on the CPU and in eval mode.

    backbone: for an encoder that was a module of the user's own, such a module again: the weights are loaded into a
    copy of it. Raises FileNotFoundError for a missing file, and ValueError for a damaged one, for weights that do not
    fit, and where `backbone` is needed and missing, or not needed.
    """
    folder = Path(folder)
    for file in (DESCRIPTION, WEIGHTS):
        if not (folder / file).is_file():
            raise FileNotFoundError(f"no encoder in {folder}: {file} is missing (has the run finished?)")
    try:
        description = json.loads((folder / DESCRIPTION).read_text())
        own = description.get("object")
    except (AttributeError, ValueError) as error:
        raise ValueError(f"{folder / DESCRIPTION} does not describe an encoder: {first_line(error)}") from error
    if own is not None and backbone is None:
        short = str(own).rpartition(".")[2]
        raise ValueError(
            f"this run's encoder is an object of your own ({own}): give it again, "
            f"e.g. nearfar.load(run, encoder={short}())"
        )
    if own is None and backbone is not None:
        raise ValueError(
            f"this run's encoder is {description.get('name')!r}, which is built by its name: give no other"
        )
    try:
        encoder = _described(description, backbone)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        what = f"{folder / DESCRIPTION} does not describe an encoder" if own is None else "the encoder given here fails"
        raise ValueError(f"{what}: {first_line(error)}") from error
    try:
        encoder.backbone.net.load_state_dict(load_file(folder / WEIGHTS))
    except (SafetensorError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{folder / WEIGHTS} is damaged or of another encoder than {encoder.name}: {reason}"
        ) from error
    return encoder.eval()


def _described(description: dict[str, Any], own: nn.Module | None) -> Encoder:
    size, channels = description["image_size"], description["channels"]
    backbone: Backbone
    if own is not None:
        backbone = own_backbone(own, size, channels)
    else:
        backbone = Architecture(description["name"], description["arguments"], description["small_stem"]).build(size)
    return Encoder(backbone, size, channels, description["mean"], description["std"])
