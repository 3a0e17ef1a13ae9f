"""The encoder that a run saves: its trained net with the readout of its last map, and what stands
beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from nearfar.data import Images
from nearfar.messages import check_known, listed
from nearfar.networks import OWN_NETS, Encoder, join_encoders, load_encoder
from nearfar.networks.backbone import with_grid
from nearfar.networks.inception_score import class_probabilities, inception_score
from nearfar.networks.pretrained import INSTALL, PRETRAINED, installed_weights
from nearfar.training.run_folder import STARTING
from nearfar.training.settings import Settings

NONE, START = "none", "start"
GRID, PLACING = 3, ("small", "medium")
"""Cells of a side by default, and the nets that have them; "tiny" stays as tables compare by it."""
LEAST_SIDE = 28  # pixels: smaller images tell nets that are made for photographs too little
EDGES = "edges"
BESIDE = {PRETRAINED: 1.0, START: 1.0, EDGES: 0.5, "colours": 0.5, "pixels": 0.5}
"""What may stand beside the trained net, by its weight."""
TRAINED, TRAINED_LESS = 0.7, 0.35
"""Weights of the trained net beside another one, the second where `KNOWN`; 1 elsewhere."""
KNOWN, SCORED = 25.0, 256
"""Inception score from which a pretrained net knows many kinds of things among images, and of how
many images it is taken at most (docs/starting-weights.md)."""


def check_beside(given: Settings) -> None:
    """Raise ValueError for words that name nothing, and for weights that are not there."""
    words = _words(given.beside or NONE)
    for word in words:
        check_known("`beside`", word, [*BESIDE, NONE])
    if words and not isinstance(given.encoder, (str, type(None))):
        raise ValueError("`beside` is for encoders by name, not for a module of your own")
    if PRETRAINED in words and installed_weights() is None:
        raise ValueError(
            f"`beside={given.beside!r}`: no pretrained weights are installed: {INSTALL}"
        )
    if START in words and given.init is None:
        raise ValueError(f"`beside={given.beside!r}`: without `init` there are no starting weights")


def _words(beside: str) -> list[str]:
    return [] if beside == NONE else beside.split("+")


def chosen_readout(
    given: Settings, encoder: Any, channels: int, image_size: int, weights: bool
) -> tuple[int, str]:
    """Return the settings "grid" and "beside", which are chosen where they are not given.

    encoder: its name, or a module. channels, image_size: of the images. weights: whether pretrained
    ones are installed. Raises ValueError for a grid of other nets than ours, and for a weight of a
    net that stands alone.
    """
    beside = given.beside
    if beside is None:
        usual = isinstance(encoder, str) and given.recipe == "small" and channels in (1, 3)
        usual = usual and image_size >= LEAST_SIDE
        before = START if given.adapt else PRETRAINED if weights else None
        beside = f"{before}+{EDGES}" if usual and before else NONE
    if given.trained_weight is not None and not _words(beside):
        raise ValueError("`trained_weight` is for a net with others beside it, see `beside`")
    places = encoder in PLACING and given.recipe == "small" and EDGES not in _words(beside)
    grid = given.grid or (GRID if places else 1)
    if grid != 1 and encoder not in OWN_NETS:
        raise ValueError(f"`grid={grid}` is for the encoders {', '.join(OWN_NETS)}")
    return grid, beside


def trained_weight(given: Settings, beside: str, images: Images) -> tuple[float | None, list[str]]:
    """Return the setting "trained_weight", which is chosen where it is not given, and a note on
    what the images have chosen. None where nothing stands beside the trained net.
    """
    words = _words(beside)
    if given.trained_weight is not None or not words:
        return given.trained_weight, []
    if PRETRAINED not in words:
        return TRAINED if START in words else 1.0, []
    rows = torch.linspace(0, len(images) - 1, min(SCORED, len(images))).long()
    score = inception_score(class_probabilities(images.gather(rows)))
    if score < KNOWN:
        return TRAINED, []
    return TRAINED_LESS, [
        f"the pretrained net knows many kinds of things among these images (Inception score "
        f"{score:.0f}): beside it the trained net counts half as much as elsewhere"
    ]


def saved_encoder(trained: Encoder, settings: Settings) -> Encoder:
    """Return what a run saves: the net as it was trained, read out and joined as its settings say.

    The trained net comes first. Raises ValueError for weights that are no longer there.
    """
    trained.backbone = with_grid(trained.backbone, settings.grid)
    words = _words(settings.beside)
    if not words:
        return trained
    weight = settings.trained_weight
    if weight is None:  # of a run from before this setting
        weight = TRAINED if {PRETRAINED, START} & set(words) else 1.0
    others: list[tuple[Encoder | str, float]] = [
        (load_encoder(Path(settings.out) / STARTING) if word == START else word, BESIDE[word])
        for word in words
    ]
    return join_encoders([(trained, weight), *others], channels=trained.channels)


def beside_words(beside: str) -> str:
    """Say what stands beside the trained net, for a sentence; "" for nothing."""
    names = {
        PRETRAINED: "a net pretrained on ImageNet",
        START: "the starting weights as they were",
    }
    return listed([names.get(word, word) for word in beside.split("+") if word and word != NONE])
