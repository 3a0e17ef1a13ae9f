"""An encoder, a backbone with its preprocessing: in memory and on disk, read without running
code.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from jaxtyping import Float, Shaped
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from timm.models._hub import save_config_for_hf
from torch import Tensor, nn

import nearfar
from nearfar.atomic import write_file
from nearfar.isolation import isolated
from nearfar.messages import raise_as_value_error
from nearfar.networks.backbone import Architecture, Backbone, own_backbone
from nearfar.networks.pretrained import CONFIG, WEIGHTS
from nearfar.networks.timm_entries import own_name, timm_name
from nearfar.views import check_value_range, from_range, resize_square, with_channels

SIDES = ("img_size", "image_size")
USUAL = {"in_chans", "dynamic_img_size", *SIDES}  # arguments that widen no net
LARGEST_SIDE, MOST_CHANNELS = 2**14, 2**12  # of an input; files that say more are damaged
OF_OTHERS = {"tag", "license", "origin_url", "paper_name", "paper_ids", "notes", "description"}
"""Entries of a pretrained_cfg about timm's own weights, which these are not."""


class Encoder(nn.Module):
    """Images as they come -> features: resizes, adapts the channels, normalises, applies the
    backbone.

    backbone: of `build_backbone`. image_size: pixels of a side. channels: that the backbone takes.
    mean, std: one number for each channel, in units of 0..1. value_range: low and high of every
    channel, the numbers that stand for 0 and 1 in images of more than 8 bits. Its own state_dict
    holds the backbone's weights alone. Raises ValueError where mean or std do not have one number
    for each channel, a std is not above 0, or a low of the value range is not below its high.

    >>> backbone = build_backbone("tiny", image_size=32, channels=3)
    >>> encoder = Encoder(backbone, image_size=32, channels=3, mean=[0.5] * 3, std=[0.25] * 3)
    >>> encoder(torch.zeros(2, 3, 40, 50, dtype=torch.uint8)).shape
    torch.Size([2, 128])
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: Backbone,
        image_size: int,
        channels: int,
        mean: Sequence[float],
        std: Sequence[float],
        value_range: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        mean, std = [float(x) for x in mean], [float(x) for x in std]
        fitting = len(mean) == len(std) == channels and all(map(isfinite, [*mean, *std]))
        if not fitting or min(std) <= 0:
            raise ValueError(
                f"{channels} channels need as many means and stds (above 0), got {mean} and {std}"
            )
        self.backbone, self.image_size, self.channels = backbone, image_size, channels
        self.value_range = None if value_range is None else check_value_range(value_range)
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)
        self.takes_shares = are_shares(mean, std)

    @property
    def name(self) -> str:
        """The backbone's name: "small" or timm's; for a user's module, its class."""
        return self.backbone.name

    @property
    def num_features(self) -> int:
        """Features of an image."""
        return self.backbone.num_features

    def forward(self, images: Shaped[Tensor, "*shape"]) -> Float[Tensor, "batch num_features"]:
        """Encode images [batch, channels, height, width], uint8 or float in 0..1, of any size,
        grayscale or colour.

        Whole numbers of other types, such as uint16, are those of the images' files: the value
        range that the encoder was trained with makes 0..1 of them. The centre square is resized to
        `image_size` (bicubic, antialiased). Grayscale is repeated for colour; colour becomes
        grayscale by its luma. The same functions made the training images, so full-size images and
        those that `open_images` made of them give the same features. Raises ValueError for other
        numbers of channels.
        """
        return self.backbone(self.preprocess(images))

    def preprocess(self, images: Shaped[Tensor, "*shape"]) -> Float[Tensor, "batch c size size"]:
        """Do everything that comes before the backbone; see `forward`."""
        if images.ndim != 4:
            raise ValueError(
                f"expected images [batch, channels, height, width], got a tensor "
                f"{list(images.shape)}"
            )
        if images.dtype != torch.uint8 and not images.is_floating_point():
            if self.value_range is None:
                raise ValueError(f"expected uint8 or float images, got {images.dtype}")
            images = from_range(
                with_channels(images.to(self.mean.dtype), self.channels), self.value_range
            )
        elif images.is_floating_point():
            _must_be_shares(images)
        images = resize_square(with_channels(images, self.channels), self.image_size)
        images = images.to(self.mean.dtype) / 255 if images.dtype == torch.uint8 else images
        return normalised(images, self.mean, self.std, self.takes_shares)


def are_shares(mean: Sequence[float], std: Sequence[float]) -> bool:
    """Return whether a net with these takes the shares in 0..1 as they are."""
    return not any(mean) and all(number == 1 for number in std)


def normalised(
    images: Float[Tensor, "batch c height width"], mean: Tensor, std: Tensor, takes_shares: bool
) -> Float[Tensor, "batch c height width"]:
    """Return images minus a mean and divided by a std; a net that takes shares, in the type of the
    images, gets them without a pass over all pixels.
    """
    return images if takes_shares and images.dtype == mean.dtype else (images - mean) / std


def _must_be_shares(images: Tensor) -> None:
    """Raise ValueError for floats outside 0..1; not while a graph is made of the encoder, which has
    no numbers.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or not images.numel():
        return
    least, most = (float(value) for value in images.aminmax())
    if not (least >= 0 and most <= 1):
        raise ValueError(
            f"expected uint8 images or floats in 0..1, not normalised, got floats from "
            f"{least:.3g} to {most:.3g}"
        )


def save_encoder(folder: str | Path, encoder: Encoder) -> None:
    """Write encoder.safetensors (the net's state_dict, timm's own keys) and config.json into a
    folder.

    The folder is made if need be; each file is replaced as a whole. Together they are a timm model,
    which `timm.create_model("local-dir:FOLDER")` loads; see `describe_encoder`.

    >>> save_encoder("copied", load_encoder("runs/photos"))
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / WEIGHTS, save(state_of(encoder), metadata={"format": "pt"}))
    write_file(folder / CONFIG, json.dumps(describe_encoder(encoder), indent=2) + "\n")


def state_of(encoder: Encoder) -> dict[str, Tensor]:
    """Return copies of the net's tensors on the CPU, by timm's names."""
    state = encoder.backbone.net.state_dict()
    return {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}


def describe_encoder(encoder: Encoder, license: str | None = None) -> dict[str, Any]:
    """Return what it takes to build an encoder again, in plain values: the config.json of a timm
    model.

    Made by timm: the architecture with its model_args, and the preprocessing as its pretrained_cfg;
    besides, the value range and the version of nearfar. Of a user's own module only the class is
    noted, as "object". license: of the weights.
    """
    side, architecture = encoder.image_size, encoder.backbone.architecture
    preprocessing: dict[str, Any] = {
        "input_size": [encoder.channels, side, side],
        "mean": encoder.mean.flatten().tolist(),
        "std": encoder.std.flatten().tolist(),
    }
    extra: dict[str, Any] = {"nearfar": nearfar.__version__}
    if encoder.value_range is not None:
        extra["value_range"] = encoder.value_range
    if architecture is None:
        about = {
            "object": encoder.name,
            "num_features": encoder.num_features,
            "pretrained_cfg": preprocessing,
        }
        return about | extra
    name, arguments = timm_name(architecture.name, architecture.arguments, architecture.small_stem)
    net: Any = (
        timm.create_model(name, **arguments) if architecture.small_stem else encoder.backbone.net
    )
    preprocessing |= {"interpolation": "bicubic", "crop_pct": 1.0, "crop_mode": "center"}
    config = {"pretrained_cfg": {"architecture": name}, **extra}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / CONFIG
        save_config_for_hf(
            net, str(file), model_config=config, model_args=arguments, data_config=preprocessing
        )
        about = json.loads(file.read_text())
    own = {key: value for key, value in about["pretrained_cfg"].items() if key not in OF_OTHERS}
    about["pretrained_cfg"] = own if license is None else {**own, "license": license}
    return about


@isolated()
def load_encoder(folder: str | Path, backbone: nn.Module | None = None) -> Encoder:
    """Read the encoder of a run folder, on the CPU and in eval mode.

    backbone: for an encoder that was a module of the user's own, such a module again: the weights
    are loaded into a copy of it. Raises FileNotFoundError for a missing file, and ValueError for a
    damaged one, for weights that do not fit, and where `backbone` is needed and missing, or not
    needed.

    >>> load_encoder("runs/photos").image_size
    32
    """
    folder = Path(folder)
    for file in (CONFIG, WEIGHTS):
        if not (folder / file).is_file():
            missing = f"no encoder in {folder}: {file} is missing"
            raise FileNotFoundError(
                f"{missing}; a run that was stopped goes on with `nearfar.resume({str(folder)!r})`"
            )
    wrong = f"{folder / CONFIG} does not describe an encoder"
    with raise_as_value_error(wrong, AttributeError, ValueError, RecursionError):
        about = json.loads((folder / CONFIG).read_text())
        own = about.get("object")
    if own is not None and backbone is None:
        short = str(own).rpartition(".")[2]
        raise ValueError(
            f"this run's encoder is an object of your own ({own}): give it again, "
            f"e.g. nearfar.load(run, encoder={short}())"
        )
    if own is None and backbone is not None:
        raise ValueError(
            f"this run's encoder is {about.get('architecture')!r}, built by its name: give no other"
        )
    kinds = (
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
        RuntimeError,
        ArithmeticError,
    )
    with raise_as_value_error(wrong if own is None else "the encoder given here fails", *kinds):
        encoder = _described(about, backbone, (folder / WEIGHTS).stat().st_size)
    try:
        load_weights(encoder.backbone.net, load_file(folder / WEIGHTS))
    except (SafetensorError, ValueError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{folder / WEIGHTS} is damaged or not of {encoder.name}: {reason}"
        ) from error
    return encoder.eval()


def load_weights(net: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a state_dict from a file into a net, in place.

    Raises ValueError, which names a tensor, for names, shapes or kinds of numbers other than the
    net's, and for numbers that are not finite where the net's own are.
    """
    own = net.state_dict()
    if others := sorted(own.keys() ^ state.keys()):
        problem = "missing" if others[0] in own else "not of this net"
        raise ValueError(f"{others[0]} is {problem} ({len(others)} such tensors)")
    for name, value in state.items():
        here = own[name]
        if value.shape != here.shape:
            raise ValueError(f"{name} is {list(value.shape)} and not {list(here.shape)}")
        if value.layout != torch.strided or value.is_meta or kind_of(value) != kind_of(here):
            raise ValueError(f"{name} holds {value.dtype} and not {here.dtype}")
        wrong = ~value.isfinite()
        if wrong.any() and (wrong & here.isfinite().to(value.device)).any():
            raise ValueError(f"{name} holds numbers that are not finite")
    net.load_state_dict(dict(state))


def kind_of(tensor: Tensor) -> str:
    """Return whether a tensor holds real, complex or whole numbers, or truth values."""
    if tensor.is_floating_point():
        return "real"
    if tensor.is_complex():
        return "complex"
    return "truth" if tensor.dtype == torch.bool else "whole"


def _described(about: dict[str, Any], own: nn.Module | None, weights: int) -> Encoder:
    """The encoder of a config.json, with random weights; `weights`: the bytes of their file."""
    preprocessing = about["pretrained_cfg"]
    channels, size, _ = preprocessing["input_size"]
    for label, number, most in (
        ("size", size, LARGEST_SIDE),
        ("channels", channels, MOST_CHANNELS),
    ):
        if type(number) is not int or not 1 <= number <= most:
            raise ValueError(f"the {label} of its input must be 1 to {most}, not {number!r:.40}")
    if (value_range := about.get("value_range")) is not None:
        value_range = check_value_range(value_range)
        if len(value_range) not in (2, 2 * channels):
            raise ValueError(f"{channels} channels do not fit the value range {value_range!s:.60}")
    if own is None:
        name, arguments, small_stem = own_name(about["architecture"], about["model_args"])
        sides = np.ravel([arguments[key] for key in SIDES if arguments.get(key) is not None])
        if arguments.get("in_chans", 3) != channels or max(sides, default=0) > LARGEST_SIDE:
            raise ValueError(f"its net is for other images: {arguments}"[:200])
        form = Architecture(name, arguments, bool(small_stem))
        if any(not isinstance(value, str) for key, value in arguments.items() if key not in USUAL):
            form.check_size(weights)
        backbone = form.build(size)
    else:
        backbone = own_backbone(own, size, channels)
    return Encoder(
        backbone,
        size,
        channels,
        preprocessing["mean"],
        preprocessing["std"],
        value_range,
    )
