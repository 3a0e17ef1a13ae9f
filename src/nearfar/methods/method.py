"""What every method declares: its views, its networks, its loss and its recipes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from nearfar.losses import checks
from nearfar.methods.recipe import Recipe
from nearfar.methods.schedules import Schedule

Embeddings = dict[str, Tensor]
"""Embeddings of one batch, each [views, batch, dim]: "projection" (online projector), "prediction" (online predictor,
where there is one) and "key" (the momentum encoder's projector, without gradient)."""


@dataclass(frozen=True)
class Head:
    """A projector or predictor: widths of its linear layers, and where batch normalisation stands.

    `output_affine`: whether the normalisation of the output, if any, has a learnable scale and shift.
    """

    widths: Sequence[int]
    hidden_norm: bool = True
    output_norm: bool = False
    output_affine: bool = True


@dataclass(frozen=True, kw_only=True)
class Networks:
    """How the networks of a method are joined.

    `online_views` and `momentum_views` are the numbers of the views that go through the online branch and through the
    momentum encoder (`online_views=None`: all of them). `momentum` is that of the momentum encoder over training, None
    without one; `schedules` holds attributes of the loss that change over training. `queue_size` is the number of keys
    kept, None for no queue. `needs_index`: the loss keeps numbers for each image. `norm_groups` splits the batch
    statistics of the momentum encoder into that many groups.
    Raises ValueError for a queue or groups below 1, a momentum outside 0 to 1, or a predictor that does not end with
    the projector's width.
    """

    loss: nn.Module
    projector: Head
    predictor: Head | None = None
    momentum: Schedule | None = None
    online_views: Sequence[int] | None = None
    momentum_views: Sequence[int] = ()
    queue_size: int | None = None
    needs_index: bool = False
    constant_predictor_lr: bool = False
    norm_groups: int = 1
    schedules: Mapping[str, Schedule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.queue_size is not None:
            checks.at_least(1, queue_size=self.queue_size)
        checks.at_least(1, norm_groups=self.norm_groups)
        for momentum in [] if self.momentum is None else [self.momentum(0, 1), self.momentum(1, 1)]:
            if not 0 <= momentum <= 1:
                raise ValueError(f"the momentum encoder's momentum must be between 0 and 1, got {momentum}")
        if self.predictor is not None and list(self.predictor.widths[-1:]) != list(self.projector.widths[-1:]):
            widths = f"{tuple(self.predictor.widths)} after {tuple(self.projector.widths)}"
            raise ValueError(f"predictor must end with the same width as projector, got {widths}")


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """Hyper-parameters of a method and what they declare; final classes stand one to a file in this folder.

    `recipes` holds the tuned defaults for small data under "small" and the papers' own under their data's name.
    """

    paper: ClassVar[str]
    view_names: ClassVar[tuple[str, ...]] = ("strong", "strong")
    recipes: ClassVar[Mapping[str, Recipe]]

    projector: tuple[int, ...] = (512, 128)

    def __post_init__(self) -> None:
        if not self.projector or min(self.projector) < 1:
            raise ValueError(f"projector must hold 1 width or more, each 1 or more, got {self.projector}")

    @abstractmethod
    def networks(self, num_images: int) -> Networks:
        """Declare networks and loss for a training set of `num_images` images."""

    def crops(self) -> tuple[str, ...]:
        """Name the distribution of every view of an image, in order: "strong", "weak", "small", ..."""
        return self.view_names

    def compute(self, loss: nn.Module, embeddings: Embeddings, index: Tensor, queue: Tensor | None) -> Tensor:
        """Return the loss of a batch; `index` [batch] are the images' numbers, `queue` [K, dim] the stored keys."""
        first, second = embeddings["projection"]
        return loss(first, second)

    def enqueued_keys(self, embeddings: Embeddings) -> Tensor:
        """Return the rows [rows, dim] that enter the queue after the step: the momentum encoder's, of all its views."""
        return embeddings["key"].flatten(0, 1)


def fitted_views(crops: Sequence[str], image_size: int, channels: int) -> str:
    """Return the view plan of a method's crops for images of a size, as distributions joined by "+".

    From 64 px on these are the papers' distributions. Below, blur and tiny crops are left out; small grey images, such
    as digits, are not mirrored and move a little instead.
    """
    if channels == 1 and image_size <= 48:
        strong, weak, small = "grey", "grey-weak", "grey"
    elif image_size <= 24:
        strong, weak, small = "tiny", "tiny-weak", "tiny"
    elif image_size < 64:
        strong, weak, small = "saclr-cifar", "weak", "local-4"
    else:
        return "+".join(crops)
    fitted = {"weak": weak, "small": small, "local": small}
    return "+".join(fitted.get(name.split("-")[0], strong) for name in crops)
