"""The optimisation defaults that go with a method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal


@dataclass(frozen=True)
class Recipe:
    """Optimiser, schedule and hyper-parameters of a method for one kind of data; `source` is where they come from.

    `lr` is for a batch of `reference_batch` images and is scaled to the batch that is used by `lr_scaling` ("linear":
    lr * batch / reference, "sqrt": lr * sqrt(batch / reference), "none"); a rate that the user gives is never scaled.
    `final_lr` is the last learning rate as a share of the highest. `hyperparameters` holds those of the method that
    differ from its class defaults.
    """

    source: str
    _: KW_ONLY
    epochs: int
    batch_size: int = 256
    optimizer: Literal["sgd", "adamw", "lars"] = "sgd"
    lr: float = 0.06
    lr_scaling: Literal["linear", "sqrt", "none"] = "linear"
    reference_batch: int = 256
    final_lr: float = 0.0
    weight_decay: float = 5e-4
    warmup_epochs: float = 5
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)

    def sets(self, **hyperparameters: Any) -> Recipe:
        """Return this recipe with the method's hyper-parameters set as well."""
        return replace(self, hyperparameters=hyperparameters)


def lars(source: str, lr: float, **settings: Any) -> Recipe:
    """Return a recipe with LARS, and with the decay and warm-up that most papers use with it."""
    common: dict[str, Any] = dict(optimizer="lars", lr=lr, weight_decay=1e-6, warmup_epochs=10)
    return Recipe(source, **common | settings)


def small_data(source: str = "nearfar, tuned on held-out digits", **settings: Any) -> Recipe:
    """The default for up to some ten thousand images and tens of epochs on a CPU or a small GPU."""
    common: dict[str, Any] = dict(epochs=100, lr=0.12, weight_decay=5e-4, warmup_epochs=2)
    return Recipe(source, **common | settings)
