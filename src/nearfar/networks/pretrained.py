"""Starting weights into a net: tensors from a local file, fitted where only the stem differs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from timm.layers import resample_patch_embed
from timm.models import adapt_input_conv
from torch import Tensor, nn

SHOWN = 4  # names of each kind in the report


def load_pretrained(backbone: nn.Module, file: str | Path) -> str:
    """Load what fits of a file's tensors into a backbone, in place, and return one line on what did and did not.

    file: .safetensors, a run folder that holds encoder.safetensors, or a .pt/.pth/.ckpt of plain tensors (read with
    weights_only, so that nothing in it can run). A dictionary under "state_dict" or "model" is opened, and a prefix of
    the names (as "module.backbone.") is taken off. See `load_tensors` for what does not fit as it is.
    Raises FileNotFoundError for a missing file, ValueError for one that cannot be read or of which nothing fits.
    """
    path = Path(file)
    path = path / "encoder.safetensors" if path.is_dir() else path
    return load_tensors(backbone, read_tensors(path), str(path))


def load_tensors(net: nn.Module, found: Mapping[str, Tensor], source: str) -> str:
    """Load what fits of the tensors into a net, in place, and return one line on what did and did not.

    A first convolution for other channels is adapted as timm does (for grey, the sum over the colours), and one with a
    larger kernel is resized: the 3x3 kernel is that which gives on a patch resized to 3x3 what the original gives on
    the patch itself, by least squares (FlexiViT, Beyer et al. 2023, Section 3.4). The position embedding of a timm
    transformer is resampled by timm. All else that has another shape is skipped and named.
    Raises ValueError where nothing fits, and for numbers that are not finite.
    """
    own = net.state_dict()
    found = _converted(net, _without_prefix(dict(found), own))
    first = next((name for name, weights in net.named_parameters() if weights.ndim == 4), None)
    adapted = []
    if first is not None and first in found and (fitted := _fitted_stem(found[first], own[first])) is not None:
        adapted = [f"{first} {list(found[first].shape)} to {list(own[first].shape)}"]
        found[first] = fitted
    fitting = {key: found[key] for key in own if key in found and found[key].shape == own[key].shape}
    learned = {name for name, _ in net.named_parameters()}
    if not learned & fitting.keys():
        raise ValueError(f"nothing in {source} fits the encoder: it holds {_names(sorted(found)) or 'no tensors'}")
    if bad := [name for name, value in fitting.items() if not value.isfinite().all()]:
        raise ValueError(f"the starting weights of {source} are not finite numbers: {_names(bad)}")
    net.load_state_dict(fitting, strict=False)
    misfits = [
        f"{key} {list(found[key].shape)} for {list(own[key].shape)}"
        for key in own
        if key in found and key not in fitting
    ]
    report = [f"starting weights from {source}: {len(fitting)} of {len(own)} tensors loaded"]
    for kind, names in (
        ("adapted", adapted),
        ("missing", [key for key in own if key not in found]),
        ("of another shape", misfits),
        ("not used", [key for key in found if key not in own]),
    ):
        if names:
            report.append(f"{len(names)} {kind} ({_names(names)})")
    return "; ".join(report)


def _fitted_stem(given: Tensor, own: Tensor) -> Tensor | None:
    """Fit the weights of a first convolution to other channels and a smaller kernel; None where there is no need."""
    if given.shape == own.shape or given.ndim != 4 or len(given) != len(own):
        return None
    if any(size < wanted for size, wanted in zip(given.shape[2:], own.shape[2:], strict=True)):
        return None
    given = adapt_input_conv(own.shape[1], given, base_chans=given.shape[1])
    return resample_patch_embed(given, list(own.shape[2:]))


def _converted(net: nn.Module, found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Let timm rename and resample the tensors of others' checkpoints, where it knows how to for this net."""
    convert = getattr(sys.modules[type(net).__module__], "checkpoint_filter_fn", None)
    if convert is None or not type(net).__module__.startswith("timm."):
        return found
    try:
        return convert(dict(found), net)
    except Exception:  # not such a checkpoint
        return found


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file without running anything in it; raises as `load_pretrained` does."""
    if not path.is_file():
        raise FileNotFoundError(f"no file with starting weights at {path}")
    try:
        content = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except Exception as error:  # anything, for what is no such file
        raise ValueError(f"cannot read weights from {path}: use .safetensors or a .pth of plain tensors") from error
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no dictionary of tensors")
    return {key: value for key, value in content.items() if isinstance(key, str) and _plain(value)}


def _plain(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta and not value.is_quantized


def _without_prefix(found: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Take off the prefix under which the most names of `own` are found; of equals the first."""
    first = next(iter(own))
    prefixes = ["", *(key.removesuffix(first) for key in found if key.endswith(first))]
    best = max(prefixes, key=lambda prefix: sum(prefix + key in found for key in own))
    return {key.removeprefix(best): value for key, value in found.items() if key.startswith(best)}


def _names(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
