"""Starting weights from a local file."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

SHOWN = 4  # names of each kind in the report


def load_pretrained(backbone: nn.Module, file: str | Path) -> str:
    """Load what fits of a file's tensors into a backbone, in place, and return one line on what did and did not.

    file: .safetensors, a run folder that holds encoder.safetensors, or a .pt/.pth/.ckpt of plain tensors (read with
    weights_only, so that nothing in it can run). A dictionary under "state_dict" or "model" is opened, and a prefix of
    the names (as "module.backbone.") is taken off. Tensors of another shape, as a first convolution for other
    channels, are skipped and named.
    Raises FileNotFoundError for a missing file, ValueError for one that cannot be read or of which nothing fits.
    """
    path = Path(file)
    path = path / "encoder.safetensors" if path.is_dir() else path
    found = _read(path)
    own = backbone.state_dict()
    found = _without_prefix(found, own)
    fitting = {key: found[key] for key in own if key in found and found[key].shape == own[key].shape}
    learned = {name for name, _ in backbone.named_parameters()}
    if not learned & fitting.keys():
        raise ValueError(f"nothing in {path} fits the encoder: it holds {_names(sorted(found)) or 'no tensors'}")
    backbone.load_state_dict(fitting, strict=False)
    misfits = [
        f"{key} {list(found[key].shape)} for {list(own[key].shape)}"
        for key in own
        if key in found and key not in fitting
    ]
    report = [f"starting weights from {path}: {len(fitting)} of {len(own)} tensors loaded"]
    for kind, names in (
        ("missing", [key for key in own if key not in found]),
        ("of another shape", misfits),
        ("not used", [key for key in found if key not in own]),
    ):
        if names:
            report.append(f"{len(names)} {kind} ({_names(names)})")
    return "; ".join(report)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"no file with starting weights at {path}")
    try:
        content = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError, OSError) as error:
        raise ValueError(f"cannot read weights from {path}: use .safetensors or a .pth of plain tensors") from error
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no dictionary of tensors")
    return {key: value for key, value in content.items() if isinstance(value, Tensor)}


def _without_prefix(found: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Take off the prefix under which the most names of `own` are found; of equals the first."""
    first = next(iter(own))
    prefixes = ["", *(key.removesuffix(first) for key in found if key.endswith(first))]
    best = max(prefixes, key=lambda prefix: sum(prefix + key in found for key in own))
    return {key.removeprefix(best): value for key, value in found.items() if key.startswith(best)}


def _names(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
