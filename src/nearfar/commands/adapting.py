"""Settings that starting weights decide, and the gentle ones of `--adapt`."""

from __future__ import annotations

from dataclasses import replace

from nearfar.data import Images, Stream
from nearfar.methods import Recipe
from nearfar.networks import StartingWeights, find_weights
from nearfar.training import Settings

USUAL = "resnet18"  # the encoder of --init timm where none is given
MINUTES, LEAST_EPOCHS, WARMUP = 10.0, 10, 0.1  # of an adapting run; the last as a share of its epochs
LAYER_DECAY, FROZEN = 0.7, 2


def with_start(given: Settings) -> tuple[Settings, StartingWeights | None]:
    """Return the settings with the encoder that the starting weights are of, and the weights, unread.

    Raises ValueError for --adapt without weights, and what `find_weights` raises.
    """
    if given.init is None:
        if given.adapt:
            raise ValueError("--adapt goes on from weights that exist: give --init timm, hf:owner/name, a run or file")
        return given, None
    encoder = given.given("encoder")
    if given.init == "timm" and encoder is None:
        encoder = USUAL
    start = find_weights(given.init, encoder if isinstance(encoder, str) else None)
    if start.file is not None:
        start.read({})  # what cannot be read is refused before the images are looked at
    if given.init == "timm" and encoder is not None and not isinstance(encoder, str):
        raise ValueError("--init timm needs an encoder by its name, such as resnet18")
    return replace(given, encoder=start.encoder if encoder is None else encoder), start


def normalisation(
    given: Settings, start: StartingWeights | None, images: Images | Stream
) -> tuple[list[float] | None, list[float] | None]:
    """Return mean and std where they are given or the starting weights have some, else None for those of the images.

    Raises ValueError for one without the other, or another number of channels than that of the images.
    """
    if (given.mean is None) != (given.std is None):
        raise ValueError("--mean and --std go together: give both or none")
    theirs = start.moments(images.channels) if start is not None else None
    mean, std = (given.mean, given.std) if theirs is None or given.mean is not None else theirs
    if mean is not None and std is not None:
        images.normalised_by(mean, std)
    return mean, std


def gentle(recipe: Recipe) -> Recipe:
    """Return a recipe with the defaults of --adapt.

    The projector starts from nothing and learns at the whole rate, the encoder's last block at `LAYER_DECAY` of it.
    """
    return replace(recipe, optimizer="adamw", lr=3e-4, lr_scaling="sqrt", reference_batch=256, weight_decay=0.05)
