"""VICReg as a method."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.losses import VICReg as Loss
from nearfar.methods.method import Head, Method, Networks
from nearfar.methods.recipe import Recipe, small_data


@dataclass(frozen=True, kw_only=True)
class VICReg(Method):
    """VICReg: invariance between views, variance of every feature, no covariance between features.

    Args:
        projector: widths of the projector.
        invariance: weight of the distance between views.
        variance: weight of the hinge on every feature's deviation.
        covariance: weight of the covariances.

    Differs from the paper: (1) the hinges of the two views are averaged, as in the authors' code, where Eq. 6 adds
    them; (2) the squared distance is the mean over the features, as in the code, where Eq. 5 has the sum.

    """

    paper = "Bardes et al., VICReg: Variance-Invariance-Covariance Regularization, ICLR 2022"
    view_names = ("strong-alpha", "strong-beta")
    recipes = {
        "small": small_data(lr=0.01),
        "imagenet": Recipe(
            source="VICReg, section 4.2",
            epochs=1000,
            batch_size=2048,
            optimizer="lars",
            lr=0.2,
            weight_decay=1e-6,
            warmup_epochs=10,
            final_lr=0.001,
            hyperparameters={"projector": (8192, 8192, 8192)},
        ),
    }

    invariance: float = 25.0
    variance: float = 25.0
    covariance: float = 1.0

    def networks(self, num_images: int) -> Networks:
        loss = Loss(self.invariance, self.variance, self.covariance)
        return Networks(loss=loss, projector=Head(self.projector))
