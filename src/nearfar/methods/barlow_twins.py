"""Barlow Twins as a method."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.losses import BarlowTwins as Loss
from nearfar.methods.method import Head, Method, Networks
from nearfar.methods.recipe import Recipe, small_data


@dataclass(frozen=True, kw_only=True)
class BarlowTwins(Method):
    """Barlow Twins: the cross-correlation of the two views' features is pulled to the identity.

    Args:
        projector: widths of the projector.
        redundancy: weight of the off-diagonal terms.

    """

    paper = "Zbontar et al., Barlow Twins: Self-Supervised Learning via Redundancy Reduction, ICML 2021"
    view_names = ("strong-alpha", "strong-beta")
    recipes = {
        "small": small_data(optimizer="lars", lr=1.0),
        "imagenet": Recipe(
            source="Barlow Twins, section 2.2",
            epochs=1000,
            batch_size=2048,
            optimizer="lars",
            lr=0.2,
            weight_decay=1.5e-6,
            warmup_epochs=10,
            final_lr=0.001,
            hyperparameters={"projector": (8192, 8192, 8192)},
        ),
    }

    redundancy: float = 0.0051

    def networks(self, num_images: int) -> Networks:
        return Networks(loss=Loss(self.redundancy), projector=Head(self.projector))
