"""Where starting weights come from: timm, the Hugging Face Hub, a folder in timm's form, a run of ours, or a file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
from timm.models import load_model_config_from_hf
from timm.models._hub import load_model_config_from_path
from torch import Tensor

from nearfar.messages import first_line, one_line
from nearfar.networks.pretrained import read_tensors
from nearfar.networks.timm_names import own_name

WEIGHTS, DESCRIPTION = "encoder.safetensors", "encoder.json"


@dataclass(frozen=True)
class StartingWeights:
    """Weights that exist, and what they say of their net; nothing is read yet.

    source: as it was given. encoder: the name of their net, None where they do not say. arguments, small_stem: what it
    was built with, the latter None where the image size decides. mean, std: one number for each of their channels, in
    units of 0..1; None where images are to be normalised by their own. in_timm: the name that `timm.create_model` knows
    them by; None for those in `file`. license: what they say of theirs.
    """

    source: str
    encoder: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    small_stem: bool | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    in_timm: str | None = None
    file: Path | None = None
    license: str | None = None

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the tensors, fitted by timm to a net with these arguments where they are timm's.

        Raises ValueError for what cannot be read, or not be fetched.
        """
        if self.in_timm is None:
            assert self.file is not None
            return read_tensors(self.file)
        try:
            net = timm.create_model(self.in_timm, pretrained=True, num_classes=0, **arguments)
        except Exception as error:  # the network, the Hub and timm fail in many ways
            raise _unavailable(self.source, self.in_timm, error) from error
        return net.state_dict()

    def moments(self, channels: int) -> tuple[list[float], list[float]] | None:
        """Return mean and std for images of so many channels, None where images are normalised by their own.

        As timm does with the weights: grey gets the mean over the channels, other numbers repeat them in turn.
        """
        if self.mean is None or self.std is None:
            return None
        if channels == 1:
            return [sum(self.mean) / len(self.mean)], [sum(self.std) / len(self.std)]
        turns = [i % len(self.mean) for i in range(channels)]
        return [self.mean[i] for i in turns], [self.std[i] for i in turns]


def find_weights(init: str, encoder: str | None = None) -> StartingWeights:
    """Find starting weights by what a user gives.

    init: "timm" (its default weights of the encoder), "hf:owner/name" (a timm model on the Hub), a folder in timm's
    form (config.json beside the weights, as `hf download` leaves it), a run folder, or a file. Only the first two touch
    the network. encoder: its name where one is given; it must be that of the weights.
    Raises ValueError for an encoder that they do not fit and for weights that cannot be fetched, FileNotFoundError for
    a missing file.
    """
    if init == "timm":
        return _timms(encoder)
    path = Path(init)
    if init.startswith("hf:"):
        found = _described(init, f"hf-hub:{init.removeprefix('hf:')}")
    elif (path / "config.json").is_file() and not (path / DESCRIPTION).is_file():
        found = _described(init, f"local-dir:{path}")
    elif path.is_dir():
        found = _of_run(path)
    elif path.is_file():
        return StartingWeights(init, file=path)
    else:
        raise FileNotFoundError(f"no starting weights at {path}: give timm, hf:owner/name, a run folder or a file")
    if encoder and found.encoder and encoder.partition(".")[0] != found.encoder.partition(".")[0]:
        raise ValueError(f"the weights of {init} are of {found.encoder!r}, not of {encoder!r}: leave --encoder out")
    return found


def _timms(encoder: str | None) -> StartingWeights:
    about = None
    if encoder is not None and timm.is_model(encoder):
        with contextlib.suppress(RuntimeError):  # for a tag that there is not
            about = timm.get_pretrained_cfg(encoder)
    if about is None or not about.has_weights:
        raise ValueError(f"timm has no weights for the encoder {encoder!r}: give one such as --encoder resnet18")
    return StartingWeights(
        "timm", encoder, mean=about.mean, std=about.std, in_timm=encoder, license=about.license or None
    )


def _described(init: str, in_timm: str) -> StartingWeights:
    """Read the config.json of a timm model, from the Hub or a folder."""
    place, _, name = in_timm.partition(":")
    read = load_model_config_from_hf if place == "hf-hub" else load_model_config_from_path
    try:
        about, encoder, arguments = read(name)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{init} is not in timm's form: its config.json names no architecture of timm's") from error
    except Exception as error:  # the network and the Hub fail in many ways
        raise _unavailable(init, in_timm, error) from error
    arguments = {key: value for key, value in arguments.items() if key not in ("num_classes", "in_chans")}
    if about.get("global_pool") is not None:
        arguments.setdefault("global_pool", about["global_pool"])
    encoder, arguments, small_stem = own_name(encoder, arguments)
    mean, std, license = about.get("mean"), about.get("std"), about.get("license")
    return StartingWeights(init, encoder, arguments, small_stem, mean, std, in_timm, license=license)


def _of_run(folder: Path) -> StartingWeights:
    file, description = folder / WEIGHTS, folder / DESCRIPTION
    if not file.is_file():
        raise FileNotFoundError(f"no file with starting weights at {file} (has the run finished?)")
    with one_line(f"{description} does not describe an encoder", AttributeError, ValueError):
        about = json.loads(description.read_text()) if description.is_file() else {}
        name, arguments, small_stem = about.get("name"), about.get("arguments") or {}, about.get("small_stem")
        mean, std = about.get("mean"), about.get("std")
    return StartingWeights(str(folder), name, arguments, small_stem, mean, std, file=file)


def _unavailable(init: str, in_timm: str, error: Exception) -> ValueError:
    """Say what is missing, and what to do where there is no network."""
    why = f"cannot get the weights of {in_timm} for --init {init}: {first_line(error)[:200]}"
    if in_timm.startswith("local-dir:"):
        return ValueError(why)
    about = None if ":" in in_timm else timm.get_pretrained_cfg(in_timm)
    name = about.hf_hub_id if about is not None and about.hf_hub_id else in_timm.removeprefix("hf-hub:")
    return ValueError(
        f"{why} Without a network here: `hf download {name} --local-dir FOLDER` where there is one, then --init FOLDER"
    )
