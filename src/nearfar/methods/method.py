"""Declarations of a method: its views, its networks, its loss, its recipes, and what changes over
training.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from torch import nn

from nearfar.losses import TeacherSCE, checks
from nearfar.messages import check_known
from nearfar.methods.pairing import Pairing, views_and_teacher
from nearfar.methods.recipe import Recipe, small_data

Own = TypeVar("Own", bound="Method")


@runtime_checkable
class Schedule(Protocol):
    """A value for a moment of training."""

    def __call__(self, epoch: float, epochs: float) -> Any:
        """Return the value `epoch` epochs (0 at the start, with fractions) into a run of
        `epochs`.
        """


@dataclass(frozen=True)
class Cosine:
    """From `start` to `end` along half a cosine (the momentum of BYOL's momentum encoder); constant
    without `end`.
    """

    start: float
    end: float | None = None

    def __call__(self, epoch: float, epochs: float) -> float:
        end = self.start if self.end is None else self.end
        return end + (self.start - end) * 0.5 * (1 + math.cos(math.pi * min(epoch / epochs, 1.0)))


@dataclass(frozen=True)
class Ramp:
    """`value` * (whole epochs begun) / epochs (JCL's lambda)."""

    value: float

    def __call__(self, epoch: float, epochs: float) -> float:
        return self.value * min(int(epoch) + 1, epochs) / epochs


@dataclass(frozen=True)
class Switch:
    """`before` until `fraction` of the epochs or, if given, `at_epoch` epochs have passed, then
    `after`.
    """

    before: Any
    after: Any
    fraction: float = 0.5
    at_epoch: float | None = None

    def __call__(self, epoch: float, epochs: float) -> Any:
        turn = self.fraction * epochs if self.at_epoch is None else self.at_epoch
        return self.before if epoch < turn else self.after


@dataclass(frozen=True)
class Head:
    """A projector or predictor: the widths of its linear layers, and where there is batch
    normalisation.

    `output_affine`: whether the normalisation of the output, if any, has a learnable scale and
    shift. `output_bias`: whether the last linear layer has a bias where no normalisation follows.
    No widths stand for the identity.

    The heads of the papers: with the defaults SCE (512, 256), VICReg and SACLR (8192, 8192, 8192),
    BYOL's projector and predictor (4096, 256); MoCo v2 (2048, 128) without `hidden_norm`; SimCLR
    with `output_norm`; SimSiam's projector (2048, 2048, 2048) with `output_norm` but no affine;
    MoCo v3's predictor (4096, 256) without bias.

    >>> Head((512, 128), output_norm=True).build(64)(torch.zeros(2, 64)).shape
    torch.Size([2, 128])
    """

    widths: Sequence[int]
    hidden_norm: bool = True
    output_norm: bool = False
    output_affine: bool = True
    output_bias: bool = True

    def build(self, in_features: int) -> nn.Sequential:
        """Stack the layers, with ReLU between them: [batch, in_features] -> [batch, widths[-1]].

        A linear layer has no bias where a normalisation follows, which would subtract it again.
        Raises ValueError for a width below 1.
        """
        checks.at_least(
            1, **{f"a head of widths {tuple(self.widths)}": min((in_features, *self.widths))}
        )
        layers: list[nn.Module] = []
        for number, width in enumerate(self.widths, start=1):
            last = number == len(self.widths)
            normalised = self.output_norm if last else self.hidden_norm
            layers.append(
                nn.Linear(
                    in_features, width, bias=not normalised and (self.output_bias or not last)
                )
            )
            if normalised:
                layers.append(nn.BatchNorm1d(width, affine=self.output_affine or not last))
            if not last:
                layers.append(nn.ReLU(inplace=True))
            in_features = width
        return nn.Sequential(*layers)


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """Use of the similarities that a frozen teacher sees between images in the loss; see
    `Method.setup_for`.

    weight: of the relational term, 0 to 1; the loss has the rest. temperature: of the softmax of
    the teacher's similarities. Raises ValueError for numbers out of range.

    >>> Teacher(weight=0.3).temperature
    0.05
    """

    weight: float = 0.5
    temperature: float = 0.05

    def __post_init__(self) -> None:
        checks.fraction(teacher_weight=self.weight)
        checks.positive(teacher_temperature=self.temperature)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Modules trained around a backbone: heads, momentum encoder, queue and loss, and which
    embeddings are compared.

    `pairing` names the arguments of the loss, and so the views that each branch sees. `momentum` is
    that of the momentum encoder over training, None without one; `schedules` holds attributes of
    the loss that change over training. `queue_size` is the number of keys kept in each queue, None
    for no queue; the loss gets them as `queue`. `needs_index`: the loss keeps numbers for each
    image and gets their numbers as `index`. `view_statistics`: each view passes through the
    networks alone, so that batch statistics are those of one view; else those of the backbone are
    of all views of a size, those of the heads of all views. `norm_groups` splits the batch
    statistics of the momentum encoder into that many groups of shuffled rows, over all processes;
    `online_norm_groups` those of the online networks, not shuffled. `constant_predictor_lr` keeps
    the predictor out of the schedule of the learning rate. `taught` is the loss in the place of
    this one where a teacher makes the targets; then there is no momentum encoder and no queue.
    `second_projector` stands on the backbone beside the projector and makes the rows "second".
    `beside` is a second loss, on the rows that the pairing names for it: with its weight w the
    whole is (1 - w) loss + w beside. Raises ValueError for a queue or groups below 1, a momentum
    outside 0 to 1, a predictor that does not end with the projector's width, or a pairing that does
    not fit the predictor, momentum encoder and queue that there are.

    >>> SimCLR(temperature=0.5).setup(num_images=100).loss.temperature
    0.5
    """

    loss: nn.Module
    pairing: Pairing
    projector: Head
    predictor: Head | None = None
    second_projector: Head | None = None
    momentum: Schedule | None = None
    queue_size: int | None = None
    needs_index: bool = False
    view_statistics: bool = False
    norm_groups: int = 1
    online_norm_groups: int = 1
    constant_predictor_lr: bool = False
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    taught: TeacherSCE | None = None
    beside: nn.Module | None = None
    beside_weight: float = 0.0

    def __post_init__(self) -> None:
        if self.queue_size is not None:
            checks.at_least(1, queue_size=self.queue_size)
        checks.at_least(1, norm_groups=self.norm_groups, online_norm_groups=self.online_norm_groups)
        for momentum in [] if self.momentum is None else [self.momentum(0, 1), self.momentum(1, 1)]:
            if not 0 <= momentum <= 1:
                raise ValueError(
                    f"the momentum encoder's momentum must be between 0 and 1, got {momentum}"
                )
        if self.predictor is not None and list(self.predictor.widths[-1:]) != list(
            self.projector.widths[-1:]
        ):
            widths = f"{tuple(self.predictor.widths)} after {tuple(self.projector.widths)}"
            raise ValueError(f"predictor must end with the same width as projector, got {widths}")
        available = {
            "projection": True,
            "prediction": self.predictor is not None,
            "second": self.second_projector is not None,
            "key": self.momentum is not None,
        }
        if missing := {
            name for name in self.pairing.names - {"teacher"} if not available.get(name)
        }:
            made = " and ".join(f"{name!r}" for name in available if available[name])
            raise ValueError(
                f"the pairing uses {min(missing)!r}, but these networks make only {made}"
            )
        if self.momentum is not None and not self.pairing.momentum_views:
            raise ValueError(
                "the pairing uses no 'key', so there is nothing for a momentum encoder to do"
            )
        if self.queue_size is not None and not (
            self.pairing.momentum_views or self.pairing.enqueued
        ):
            raise ValueError(
                "nothing enters the queue: the pairing has no 'key' and no enqueued rows"
            )


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """Hyperparameters of a method and what they declare; every subclass is a frozen dataclass.

    `views` names the distribution of each view of an image, for images of 64 pixels and more;
    `views.fit_views` fits them to smaller ones. `recipes` holds the defaults for small data under
    "small" and the papers' own under the name of their data. The docstring of a method explains its
    own hyperparameters; those that several methods have are:

    Args:
        projector: widths of the projector.
        predictor: widths of the predictor, which the online branch has on top of its projector.
        temperature: of the softmax.
        learn_temperature: train the temperature from this start, held in 0.01 to 100.
        hidden_norm: normalise the projector's hidden layers over the batch.
        output_norm: normalise the projector's output over the batch.
        view_statistics: pass each view through the networks alone, so that batch statistics are
            those of one view.
        large_views: crops of the full size, 2 or more.
        small_views: further small crops.
        group_size: images of a batch among which a row finds its negatives. Default: the whole
            batch.
        symmetric: pass both views through both branches.
        momentum: of the momentum encoder.
        final_momentum: of the momentum encoder at the end, to which it rises along half a cosine.
            Default: constant.
        norm_groups: groups of shuffled images with statistics of their own in the momentum encoder,
            over all processes (shuffling batch norm); 1 leaves the batch whole.
        online_norm_groups: groups with statistics of their own in the online networks, not
            shuffled.

    >>> SACLR.from_recipe("small", negatives=4).negatives
    4
    """

    paper: ClassVar[str] = ""
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "small": small_data("nearfar, not tuned for this method")
    }

    projector: tuple[int, ...] = (512, 128)

    def __post_init__(self) -> None:
        if not self.projector or min(self.projector) < 1:
            raise ValueError(
                f"projector must hold 1 width or more, each 1 or more, got {self.projector}"
            )

    @property
    @abstractmethod
    def views(self) -> tuple[str, ...]:
        """Name the distribution of each view of an image, in order: "strong", "weak", "small",
        ...
        """

    @abstractmethod
    def setup(self, num_images: int) -> Setup:
        """Declare networks and loss for a training set of `num_images` images."""

    @property
    def taught_views(self) -> tuple[str, ...]:
        """Name the distribution of each view with a teacher: none is weak, as both learn."""
        return tuple(self.views[0] if name == "weak" else name for name in self.views)

    def setup_for(self, num_images: int, teacher: Teacher | None) -> Setup:
        """Return `setup` with a teacher, if there is one: its loss in the place of the method's,
        where that declares one, or else beside it, on the first two views.

        Raises ValueError for a method with one view, and with more than two for a loss in its
        place.
        """
        setup, count = self.setup(num_images), len(self.views)
        if not isinstance(setup, Setup):
            raise TypeError(f"{type(self).__name__}.setup must return a Setup, not {setup!r}")
        if teacher is None:
            return setup
        if count < 2 or (setup.taught is not None and count > 2):
            small = "" if count < 2 else ": leave `small_views` out"
            raise ValueError(f"a teacher compares two views of an image, not {count}{small}")
        if setup.taught is None:
            return replace(
                setup,
                pairing=replace(setup.pairing, beside=views_and_teacher()),
                beside=TeacherSCE(target_temperature=teacher.temperature, lam=0.0),
                beside_weight=teacher.weight,
            )
        setup.taught.target_temperature = teacher.temperature
        query = "projection" if setup.predictor is None else "prediction"
        return replace(
            setup,
            loss=setup.taught,
            pairing=Pairing(terms=(views_and_teacher(query),)),
            momentum=None,
            queue_size=None,
            norm_groups=1,
        )

    @classmethod
    def hidden_parts(cls) -> list[str]:
        """Return the names of fields that hide a part of every method, such as `setup`."""
        own = {field.name for field in fields(Method)}
        return [
            field.name
            for field in fields(cls)
            if field.name not in own and hasattr(Method, field.name)
        ]

    @classmethod
    def recipe(cls, name: str) -> Recipe:
        """Return a recipe by name; raises ValueError for one that the method does not have."""
        check_known(f"recipe of {cls.__name__}", name, cls.recipes)
        return cls.recipes[name]

    @classmethod
    def from_recipe(cls: type[Own], recipe: str = "small", **hyperparameters: Any) -> Own:
        """Build the method with a recipe's hyperparameters, of which `hyperparameters` replace
        some.

        Raises ValueError for a recipe or hyperparameter that the method does not have.
        """
        chosen = cls.recipe(recipe)
        known = [field.name for field in fields(cls)]
        for name in hyperparameters:
            check_known(f"hyperparameter of {cls.__name__}", name, known)
        return cls(**{**chosen.hyperparameters, **hyperparameters})


def loss_default(loss: type[nn.Module], argument: str) -> Any:
    """Return the default of a loss's argument, for the hyperparameter of a method that passes it
    on.
    """
    return inspect.signature(loss).parameters[argument].default
