"""SwAV as a method."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from nearfar.losses import SwAV as Loss
from nearfar.losses import checks
from nearfar.methods.method import Embeddings, Head, Method, Networks
from nearfar.methods.recipe import Recipe, small_data
from nearfar.methods.schedules import Switch


@dataclass(frozen=True, kw_only=True)
class SwAV(Method):
    """SwAV: a view predicts the cluster codes of the other views, which are balanced over the batch.

    Args:
        projector: widths of the projector.
        num_prototypes: cluster centres.
        temperature: of the predictions.
        epsilon: smoothness of the codes.
        iterations: of Sinkhorn's algorithm.
        small_views: further small crops, which predict but make no codes.
        stored: embeddings of each global view kept to balance small batches; 0 keeps none.
        stored_from: epoch from which they are used.
        frozen_epochs: epochs during which the prototypes stay as they are.
    """

    paper = "Caron et al., Unsupervised Learning of Visual Features by Contrasting Cluster Assignments, NeurIPS 2020"
    recipes = {
        "small": small_data(),
        "imagenet": Recipe(
            source="SwAV, appendix A",
            epochs=200,
            batch_size=4096,
            optimizer="lars",
            lr=0.3,
            final_lr=0.001,
            weight_decay=1e-6,
            warmup_epochs=10,
            hyperparameters={"projector": (2048, 128), "num_prototypes": 3000, "small_views": 6},
        ),
    }

    num_prototypes: int = 256
    temperature: float = 0.1
    epsilon: float = 0.05
    iterations: int = 3
    small_views: int = 2
    stored: int = 0
    stored_from: float = 15
    frozen_epochs: float = 1

    def crops(self) -> tuple[str, ...]:
        return ("large", "large") + ("small",) * self.small_views

    def networks(self, num_images: int) -> Networks:
        checks.at_least(0, small_views=self.small_views, stored=self.stored)
        checks.not_negative(stored_from=self.stored_from, frozen_epochs=self.frozen_epochs)
        loss = Loss(
            self.projector[-1], self.num_prototypes, self.temperature, self.epsilon, self.iterations, self.stored
        )
        return Networks(
            loss=loss,
            projector=Head(self.projector),
            schedules={
                "freeze_prototypes": Switch(True, False, at_epoch=self.frozen_epochs),
                "use_queue": Switch(False, True, at_epoch=self.stored_from),
            },
        )

    def compute(self, loss: nn.Module, embeddings: Embeddings, index: Tensor, queue: Tensor | None) -> Tensor:
        return loss(embeddings["projection"])
