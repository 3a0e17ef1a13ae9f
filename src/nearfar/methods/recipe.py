"""Recipes: the whole of what a paper ran beside the loss, and the defaults for small data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal

OptimizerName = Literal["sgd", "adam", "adamw", "lars", "larc", "larc-clip", "muon"]


@dataclass(frozen=True)
class Recipe:
    """Encoder, views, optimiser, schedule and hyper-parameters of a method for one kind of data.

    source: where the numbers come from, but for those in `sources`, which names settings and where
    each is from. encoder, image_size, views: as the settings of a run; None: the images' own size,
    the method's own views. A paper's views are taken untouched, at every size. lr: for a batch of
    `reference_batch` images, scaled to the batch that is used by `lr_scaling` ("linear": lr * batch
    / reference, "sqrt": lr * sqrt(batch / reference), "none"); a rate that the user gives is never
    scaled. vector_lr: factor on the rate of biases and norms. decay_all: they decay as well.
    lr_drops: epochs at which the rate falls to `lr_drop` of what it was; without, it follows a
    cosine to `final_lr`, a share of the highest. warmup_start: rate at which the warm-up starts, as
    such a share. sync_batch_norm: batch statistics over all processes. protocol: the evaluation
    that the paper's numbers are from. hyperparameters: those of the method that differ from its
    class defaults.

    >>> SimCLR.recipe("imagenet").batch_size
    4096
    """

    source: str
    _: KW_ONLY
    epochs: int
    encoder: str = "small"
    image_size: int | None = None
    views: str | None = None
    batch_size: int = 256
    optimizer: OptimizerName = "sgd"
    lr: float = 0.06
    lr_scaling: Literal["linear", "sqrt", "none"] = "linear"
    reference_batch: int = 256
    vector_lr: float = 1.0
    weight_decay: float = 5e-4
    decay_all: bool = False
    lr_drops: tuple[float, ...] = ()
    lr_drop: float = 0.1
    final_lr: float = 0.0
    warmup_epochs: float = 5
    warmup_start: float = 0.0
    sync_batch_norm: bool = False
    protocol: str = ""
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def sets(self, **hyperparameters: Any) -> Recipe:
        """Return this recipe with the method's hyper-parameters set as well."""
        return replace(self, hyperparameters={**self.hyperparameters, **hyperparameters})

    def cites(self, **sources: str) -> Recipe:
        """Return this recipe with the sources of settings that are from elsewhere than the rest."""
        return replace(self, sources={**self.sources, **sources})


CIFAR: dict[str, Any] = dict(encoder="resnet18")
"""CIFAR as in SimCLR's appendix B.9: ResNet with a 3x3 stem and no max-pool, which 32 px bring
about by themselves.
"""
IMAGENET: dict[str, Any] = dict(encoder="resnet50", image_size=224)


def sgd(source: str, lr: float, **settings: Any) -> Recipe:
    """Return a recipe with torch's SGD as most released code calls it: momentum 0.9, and everything
    decays.
    """
    common: dict[str, Any] = dict(optimizer="sgd", lr=lr, decay_all=True, weight_decay=1e-4)
    return Recipe(source, **common | settings)


def lars(source: str, lr: float, **settings: Any) -> Recipe:
    """Return a recipe with LARS, and with the decay and warm-up that most papers use with it."""
    common: dict[str, Any] = dict(optimizer="lars", lr=lr, weight_decay=1e-6, warmup_epochs=10)
    return Recipe(source, **common | settings)


def lars_on_imagenet(source: str, lr: float, **settings: Any) -> Recipe:
    """Return a recipe with LARS for ResNet-50 on ImageNet, batch norm over all processes, evaluated
    linearly.
    """
    return lars(source, lr, **IMAGENET | dict(sync_batch_norm=True, protocol="linear") | settings)


def solo_learn(lr: float, **settings: Any) -> Recipe:
    """Return a recipe of solo-learn for CIFAR, from which papers take their baselines: LARS that is
    clipped, or SGD.
    """
    common: dict[str, Any] = dict(
        epochs=1000, batch_size=256, weight_decay=1e-4, optimizer="larc-clip", protocol="linear"
    )
    recipe = lars(
        "solo-learn (da Costa et al. 2022), released configuration", lr, **CIFAR | common | settings
    )
    return recipe.cites(protocol="there a linear classifier is trained along with the encoder")


def small_data(
    source: str = "nearfar, chosen on training images of digits, CIFAR-10, Imagenette",
) -> Recipe:
    """The default for small sets of images, minutes of training and a CPU or a small GPU; see
    docs/photographs.md.
    """
    return Recipe(
        source,
        epochs=100,
        optimizer="muon",
        lr=0.02,
        lr_scaling="sqrt",
        weight_decay=0.1,
        warmup_epochs=2,
    )
