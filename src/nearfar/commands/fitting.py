"""Defaults that fit few images, and a trial of heads and loss: what a user gave is refused, a default adapts itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from rich.console import Console
from torch import Tensor, nn

from nearfar.data import Images, Stream
from nearfar.messages import first_line
from nearfar.methods import Method, Model, Recipe
from nearfar.training import Settings

MOST_HELD_OUT, LEAST_HELD_OUT = 512, 2  # the health of one image is not defined
SHARE_HELD_OUT = 10
LEAST_WIDTH = 4  # of a projector's output that is made narrower
TRIAL = 256  # rows


def held_out_of(given: Settings, total: int, console: Console) -> int:
    """Return how many of the images to hold out; raises ValueError for a number that cannot be."""
    if given.held_out is None:
        share = min(MOST_HELD_OUT, total // SHARE_HELD_OUT)
        if share >= LEAST_HELD_OUT:
            return share
        console.print(f"{total} images are too few to hold some out: the health is not measured", highlight=False)
        return 0
    if given.held_out == 1:
        raise ValueError("--held-out 1: health is measured on two images or more; 0 holds none out")
    if given.held_out >= total:
        raise ValueError(f"--held-out {given.held_out} leaves none of the {total} images to train on")
    return given.held_out


def fitted_to(given: Settings, method: Method, recipe: Recipe, images: int, console: Console) -> tuple[Method, int]:
    """Return the method and a batch size that work on so many training images.

    The batch of the recipe is made smaller where there are fewer images: to half of them at most, or where the loss
    needs more, to all of them; then the output of the projector is made narrower. Neither where the user gave it.
    Raises ValueError, with what the loss says, where nothing works.
    """
    if images < 2:
        raise ValueError(f"{images} image to train on is too few: images are compared with others")
    if given.batch_size is not None and given.batch_size > images:
        raise ValueError(
            f"the batch of {given.batch_size} is larger than the {images} images to train on; "
            "set a smaller --batch-size"
        )
    whole = min(recipe.batch_size, images)
    half = recipe.batch_size if recipe.batch_size <= images else max(2, 1 << ((images // 2).bit_length() - 1))
    sizes = [given.batch_size] if given.batch_size is not None else list(dict.fromkeys([half, whole]))
    complaint: ValueError | None = None
    for fitted in _narrower(given, method):
        for size in sizes:
            try:
                _try(fitted, size, images)
            except _NotBuiltError:
                raise
            except ValueError as error:
                complaint = complaint or error
                continue
            changed = [] if size == (given.batch_size or recipe.batch_size) else [f"--batch-size {size}"]
            if fitted.projector != method.projector:
                changed.append(f"--projector {' '.join(map(str, fitted.projector))}")
            if changed:
                console.print(f"{' and '.join(changed)}, to suit {images} training images", highlight=False)
            return fitted, size
    raise ValueError(f"--batch-size {sizes[-1]} does not work: {complaint}")


def moments_of(images: Images | Stream, console: Console) -> tuple[list[float] | None, list[float] | None]:
    """Return mean and std to set for images with a channel that is the same everywhere, which cannot be divided by.

    None for all others. Raises ValueError where that is so for every channel.
    """
    if min(images.std) > 0:
        return None, None
    if max(images.std) == 0:
        raise ValueError(f"the {len(images)} images are all of one colour: there is nothing to learn from them")
    console.print("a channel is the same in all images: it is not scaled", highlight=False)
    return images.mean, [std or 1.0 for std in images.std]


def _narrower(given: Settings, method: Method) -> Iterator[Method]:
    """The method, and where its projector is not the user's, with an output that is halved again and again."""
    yield method
    if isinstance(given.method, str) and "projector" not in given.hyperparameters:
        *widths, last = method.projector
        while last >= 2 * LEAST_WIDTH:
            last //= 2
            yield replace(method, projector=(*widths, last))


class _Features(nn.Sequential):
    """In the place of a backbone: maps of features that are normalised as those of most are, and flattened."""

    shape, num_features = (16, 2, 2), 64

    def __init__(self) -> None:
        super().__init__(nn.BatchNorm2d(self.shape[0]), nn.Flatten())


class _NotBuiltError(ValueError):
    """Networks cannot be built, whatever the batch."""


def _try(method: Method, batch_size: int, images: int) -> None:
    """Raise ValueError where heads and loss cannot take a batch of so many images.

    A large batch is tried by a smaller one first, which costs less.
    """
    for rows in dict.fromkeys([min(batch_size, TRIAL), batch_size]):
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                model = _built(method, images)
                views: list[Tensor] = [torch.randn(rows, *_Features.shape) for _ in method.views]
                model.compute_loss(model(views), torch.arange(rows))
            return
        except _NotBuiltError:
            raise
        except (ValueError, RuntimeError) as error:
            complaint = ValueError(first_line(error))
    raise complaint


def _built(method: Method, images: int) -> Model:
    try:
        return Model(method, _Features(), images).train()
    except (TypeError, RuntimeError, OverflowError, MemoryError) as error:
        raise _NotBuiltError(f"the networks cannot be built with these settings: {first_line(error)}") from error
