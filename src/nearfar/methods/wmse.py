"""W-MSE as a method."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.losses import WMSE as Loss
from nearfar.methods.method import Head, Method, Networks
from nearfar.methods.recipe import Recipe, small_data


@dataclass(frozen=True, kw_only=True)
class WMSE(Method):
    """W-MSE: views meet after their features are whitened, which rules out collapse.

    Args:
        projector: widths of the projector.
        sub_batch: images whitened together. Default: twice the projector's output.
        iterations: random partitions of the batch that are averaged.

    Differs from the paper: (1) left-over images join the other sub-batches, where the authors' code needs a batch that
    divides; (2) the covariance is regularised in proportion to the mean variance and factored in float64.

    """

    paper = "Ermolov et al., Whitening for Self-Supervised Representation Learning, ICML 2021"
    recipes = {
        "small": small_data(),
        "cifar": Recipe(
            source="W-MSE, section 4",
            epochs=1000,
            batch_size=512,
            optimizer="adamw",
            lr=3e-3,
            lr_scaling="none",
            weight_decay=1e-6,
            warmup_epochs=2,
            hyperparameters={"projector": (1024, 64), "sub_batch": 128},
        ),
    }

    projector: tuple[int, ...] = (512, 64)
    sub_batch: int | None = None
    iterations: int = 1

    def networks(self, num_images: int) -> Networks:
        loss = Loss(self.sub_batch, self.iterations)
        return Networks(loss=loss, projector=Head(self.projector))
