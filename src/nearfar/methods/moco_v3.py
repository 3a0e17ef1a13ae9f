"""MoCo v3 as a method."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from nearfar.losses import MoCoV3 as Loss
from nearfar.methods.method import Embeddings, Head, Method, Networks
from nearfar.methods.recipe import Recipe, small_data
from nearfar.methods.schedules import Cosine


@dataclass(frozen=True, kw_only=True)
class MoCoV3(Method):
    """MoCo v3: predictions of one view find the other view's keys among those of the batch, both ways; no queue.

    Args:
        projector: widths of the projector.
        predictor: widths of the predictor, which the online branch has on top of its projector.
        temperature: of the softmax.
        momentum: of the momentum encoder at the start; it rises to 1 along half a cosine.

    Differs from the paper: (1) heads are those of the authors' code for ResNets (no normalisation after the predictor)
    for every backbone; its heads for ViTs are deeper.

    """

    paper = "Chen et al., An Empirical Study of Training Self-Supervised Vision Transformers, ICCV 2021"
    view_names = ("strong-alpha", "strong-beta")
    recipes = {
        "small": small_data(),
        "imagenet": Recipe(
            source="MoCo v3, section 4 (ResNet-50)",
            epochs=100,
            batch_size=4096,
            optimizer="lars",
            lr=0.6,
            weight_decay=1e-6,
            warmup_epochs=10,
            hyperparameters={"projector": (4096, 256), "predictor": (4096, 256), "temperature": 1.0},
        ),
    }

    predictor: tuple[int, ...] = (512, 128)
    temperature: float = 0.2
    momentum: float = 0.99

    def networks(self, num_images: int) -> Networks:
        return Networks(
            loss=Loss(self.temperature),
            projector=Head(self.projector, output_norm=True, output_affine=False),
            predictor=Head(self.predictor),
            momentum=Cosine(self.momentum, 1.0),
            momentum_views=(0, 1),
        )

    def compute(self, loss: nn.Module, embeddings: Embeddings, index: Tensor, queue: Tensor | None) -> Tensor:
        prediction, target = embeddings["prediction"], embeddings["key"]
        return loss(prediction[0], target[1]) + loss(prediction[1], target[0])
