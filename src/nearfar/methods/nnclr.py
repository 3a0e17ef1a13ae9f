"""NNCLR as a method."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from nearfar.losses import NNCLR as Loss
from nearfar.methods.method import Embeddings, Head, Method, Networks
from nearfar.methods.recipe import Recipe, small_data


@dataclass(frozen=True, kw_only=True)
class NNCLR(Method):
    """NNCLR: the positive is the nearest neighbour of the other view in a queue of past projections.

    Args:
        projector: widths of the projector.
        predictor: widths of the predictor, which the online branch has on top of its projector.
        temperature: of the softmax.
        queue_size: projections kept.

    """

    paper = "Dwibedi et al., With a Little Help from My Friends, ICCV 2021"
    view_names = ("strong", "strong")
    recipes = {
        "small": small_data(),
        "imagenet": Recipe(
            source="NNCLR, section 4.1",
            epochs=1000,
            batch_size=4096,
            optimizer="lars",
            lr=0.3,
            weight_decay=1e-6,
            warmup_epochs=10,
            hyperparameters={"projector": (2048, 2048, 256), "predictor": (4096, 256), "queue_size": 98304},
        ),
    }

    predictor: tuple[int, ...] = (512, 128)
    temperature: float = 0.1
    queue_size: int = 4096

    def networks(self, num_images: int) -> Networks:
        return Networks(
            loss=Loss(self.temperature),
            projector=Head(self.projector, output_norm=True),
            predictor=Head(self.predictor),
            queue_size=self.queue_size,
        )

    def compute(self, loss: nn.Module, embeddings: Embeddings, index: Tensor, queue: Tensor | None) -> Tensor:
        projection, prediction = embeddings["projection"], embeddings["prediction"]
        return (loss(projection[0], prediction[1], queue) + loss(projection[1], prediction[0], queue)) / 2

    def enqueued_keys(self, embeddings: Embeddings) -> Tensor:
        return embeddings["projection"][0]
