"""A folder in timm's Hub format: weights, config.json and a model card, tried by timm before anyone sees it."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from nearfar.atomic import check_folder, check_text, replacing, told_clearly
from nearfar.commands.model_card import model_card
from nearfar.commands.run import Run
from nearfar.data import photographs
from nearfar.networks import Encoder, find_weights, write_timm_folder

TRIED = 8  # photographs


def check_new_folder(folder: Path) -> None:
    """Raise ValueError for a folder that exists already, OSError where none can be made."""
    check_text(folder)
    if os.path.lexists(folder):
        raise ValueError(f"{folder} exists already; choose another one")
    check_folder(folder.parent)


def licence_of_start(run: Run, online: bool = False) -> str | None:
    """Return the licence of the starting weights of a run; None without any, and where it is not known here.

    online: ask the Hub where they come from there.
    """
    settings = run.settings
    if settings.init is None or (settings.init.startswith("hf:") and not online):
        return None
    with contextlib.suppress(ValueError, OSError):  # what is no longer there, or cannot be reached
        return find_weights(settings.init, settings.encoder if isinstance(settings.encoder, str) else None).license
    return None


def write_hub_folder(
    folder: Path, run: Run, encoder: Encoder, name: str, licence: str | None, of_start: str | None
) -> float:
    """Write model.safetensors, config.json and README.md, and return the largest difference of features through timm.

    name: what the model card calls the model: "owner/name" on the Hub, else a folder. licence: of the model; of_start:
    of its starting weights. Nothing is left after an error: ValueError for an encoder that timm cannot build.
    """
    images = photographs(TRIED, encoder.image_size, encoder.channels)
    folder.mkdir(exist_ok=True)
    try:
        with told_clearly(folder):
            error = write_timm_folder(folder, encoder, images, licence)
        with replacing(folder / "README.md") as file:
            file.write_text(model_card(run, name, licence, of_start), encoding="utf-8")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return error
