"""The batch size of a run: the recipe's, or one that few images and the loss allow."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor, nn

from nearfar.messages import first_line, raise_as_value_error
from nearfar.methods import Method, Model, Recipe, Teacher
from nearfar.training.settings import Settings
from nearfar.training.teacher import teacher_of

LEAST_WIDTH = 4  # of a projector's output that is made narrower
TRIAL = 256  # rows of a trial of heads and loss
TEACHER_DIM = 512  # features of a teacher in a trial


def check_enough_images(images: int) -> None:
    """Raise ValueError for fewer than two images to train on."""
    if images < 2:
        raise ValueError(f"{images} image to train on is too few: images are compared with others")


def check_batch_size(given: Settings, images: int) -> None:
    """Raise ValueError for a batch of more than the images to train on, and fewer than two."""
    check_enough_images(images)
    if given.batch_size is not None and given.batch_size > images:
        raise ValueError(
            f"`batch_size={given.batch_size}` is larger than the {images} images to train on"
        )


def choose_batch(
    given: Settings, method: Method, recipe: Recipe, images: int
) -> tuple[Method, int, list[str]]:
    """Return the method and a batch size that work on this many training images, and a note on what
    was changed.

    With few images the recipe's batch becomes smaller: at most half of them, or all if the loss
    needs more; then the projector's output becomes narrower. Neither changes where the user gave
    it. Raises ValueError, with the complaint of the loss, where nothing works.
    """
    check_batch_size(given, images)
    whole = min(recipe.batch_size, images)
    half = (
        recipe.batch_size
        if recipe.batch_size <= images
        else max(2, 1 << ((images // 2).bit_length() - 1))
    )
    sizes = (
        [given.batch_size] if given.batch_size is not None else list(dict.fromkeys([half, whole]))
    )
    complaint = ""
    *widths, last = method.projector
    halvable = isinstance(given.method, str) and "projector" not in given.hyperparameters
    halved = [
        last >> times
        for times in range(1, last.bit_length())
        if last >> times >= LEAST_WIDTH and halvable
    ]
    for fitted in (method, *(replace(method, projector=(*widths, width)) for width in halved)):
        for size in sizes:
            if problem := _problem(fitted, size, images, teacher_of(given)):
                complaint = complaint or problem
                continue
            changed = (
                [] if size == (given.batch_size or recipe.batch_size) else [f"`batch_size={size}`"]
            )
            if fitted.projector != method.projector:
                changed.append(f"`projector={fitted.projector}`")
            note = f"{' and '.join(changed)}, for {images} training images"
            return fitted, size, [note] if changed else []
    raise ValueError(f"`batch_size={sizes[-1]}` does not work: {complaint}")


def buildable() -> AbstractContextManager[None]:
    """Turn the errors of networks that cannot be built into one line."""
    kinds = (TypeError, RuntimeError, OverflowError, MemoryError)
    return raise_as_value_error("the networks cannot be built with these settings", *kinds)


class _Features(nn.Sequential):
    """In the place of a backbone: feature maps that are normalised as those of most are, and
    flattened.
    """

    shape, num_features = (16, 2, 2), 64

    def __init__(self) -> None:
        super().__init__(nn.BatchNorm2d(self.shape[0]), nn.Flatten())


def with_teacher_rows(model: Model, images: int) -> Model:
    """Return a model for a trial, with a teacher's features of its images where it needs some."""
    if "teacher" in model.setup.pairing.names:
        model.teacher_rows = torch.randn(images, TEACHER_DIM)
    return model


def _problem(method: Method, batch_size: int, images: int, teacher: Teacher | None) -> str:
    """Return why heads and loss cannot take a batch of this size, empty where they can.

    A large batch is tried by a smaller one first, which costs less and divides into groups as it
    does. Raises ValueError for networks that cannot be built, whatever the batch.
    """
    problem = ""
    with buildable():
        setup = method.setup_for(images, teacher)
    groups = math.lcm(
        setup.norm_groups, setup.online_norm_groups, getattr(method, "group_size", None) or 1
    )
    less = max(0, batch_size - TRIAL) // groups * groups
    for rows in dict.fromkeys([batch_size - less, batch_size]):
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            with buildable():
                model = with_teacher_rows(Model(method, _Features(), images, teacher), rows).train()
            try:
                views: list[Tensor] = [torch.randn(rows, *_Features.shape) for _ in method.views]
                model.compute_loss(model(views), torch.arange(rows))
                return ""
            except (ValueError, RuntimeError) as error:
                problem = first_line(error)
    return problem
