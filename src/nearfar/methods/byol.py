"""BYOL as a method."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from nearfar.losses import NegativeCosine
from nearfar.methods.method import Embeddings, Head, Method, Networks
from nearfar.methods.recipe import Recipe, small_data
from nearfar.methods.schedules import Cosine


@dataclass(frozen=True, kw_only=True)
class BYOL(Method):
    """BYOL: the prediction from one view meets the momentum encoder's projection of the other, without negatives.

    Args:
        projector: widths of the projector.
        predictor: widths of the predictor, which the online branch has on top of its projector.
        momentum: of the momentum encoder at the start; it rises to 1 along half a cosine.

    Differs from the paper: (1) the value is the mean of the two directions, half of the paper's.
    """

    paper = "Grill et al., Bootstrap Your Own Latent, NeurIPS 2020"
    view_names = ("strong-alpha", "strong-beta")
    recipes = {
        "small": small_data(optimizer="adamw", lr=3e-3, hyperparameters={"momentum": 0.9}),
        "imagenet": Recipe(
            source="BYOL, section 3.3",
            epochs=1000,
            batch_size=4096,
            optimizer="lars",
            lr=0.2,
            weight_decay=1.5e-6,
            warmup_epochs=10,
            hyperparameters={"projector": (4096, 256), "predictor": (4096, 256)},
        ),
    }

    predictor: tuple[int, ...] = (512, 128)
    momentum: float = 0.996

    def networks(self, num_images: int) -> Networks:
        return Networks(
            loss=NegativeCosine(),
            projector=Head(self.projector),
            predictor=Head(self.predictor),
            momentum=Cosine(self.momentum, 1.0),
            momentum_views=(0, 1),
        )

    def compute(self, loss: nn.Module, embeddings: Embeddings, index: Tensor, queue: Tensor | None) -> Tensor:
        prediction, target = embeddings["prediction"], embeddings["key"]
        return (loss(prediction[0], target[1]) + loss(prediction[1], target[0])) / 2
