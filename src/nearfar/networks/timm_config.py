"""config.json: what an encoder is, in timm's own form, so that its folder is a timm model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import timm
from timm.models._hub import save_config_for_hf

from nearfar.atomic import replacing
from nearfar.networks import timm_entries  # noqa: F401  # registers our nets
from nearfar.networks.backbone import Backbone
from nearfar.networks.timm_names import timm_name

CONFIG = "config.json"
_OF_OTHERS = {"tag", "license", "origin_url", "paper_name", "paper_ids", "notes", "description"}
"""What timm says of its own weights, which these are not."""


def write_timm_config(
    folder: Path,
    backbone: Backbone,
    input_size: tuple[int, int, int],
    mean: Sequence[float],
    std: Sequence[float],
    license: str | None = None,
) -> None:
    """Write config.json, with which weights in the same folder load into `timm.create_model("local-dir:FOLDER")`.

    Written by timm: the architecture with its model_args, and the preprocessing as its pretrained_cfg. input_size:
    (channels, height, width). mean, std: one number for each channel. license: of the weights.
    Raises ValueError for a net that is an object of the user's own, which timm cannot build.
    """
    architecture = backbone.architecture
    if architecture is None:
        raise ValueError(f"the encoder {backbone.name} is an object of your own, which timm cannot build")
    name, arguments = timm_name(architecture.name, architecture.arguments, architecture.small_stem)
    net = backbone.net if hasattr(backbone.net, "pretrained_cfg") else timm.create_model(name, **arguments)
    preprocessing = dict(
        input_size=input_size, mean=mean, std=std, interpolation="bicubic", crop_pct=1.0, crop_mode="center"
    )
    with replacing(folder / CONFIG) as file:
        whose = {"pretrained_cfg": {"architecture": name}}
        save_config_for_hf(net, str(file), model_config=whose, model_args=arguments, data_config=preprocessing)
        written = json.loads(file.read_text())
        kept = {key: value for key, value in written["pretrained_cfg"].items() if key not in _OF_OTHERS}
        written["pretrained_cfg"] = kept if license is None else {**kept, "license": license}
        file.write_text(json.dumps(written, indent=2) + "\n")
