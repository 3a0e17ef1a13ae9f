"""SimSiam as a method."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from nearfar.losses import NegativeCosine
from nearfar.methods.method import Embeddings, Head, Method, Networks
from nearfar.methods.recipe import Recipe, small_data


@dataclass(frozen=True, kw_only=True)
class SimSiam(Method):
    """SimSiam: the prediction from one view meets the projection of the other, which gets no gradient.

    Args:
        projector: widths of the projector.
        predictor: widths of the predictor, which the online branch has on top of its projector.

    The predictor's learning rate is held constant.

    Differs from the paper: (1) the value is 2 - 2 cos, as BYOL's, where the paper has -cos: the gradient is twice as
    large, so the papers' recipes stand here with half the learning rate and twice the weight decay, which makes the
    same steps.

    """

    paper = "Chen and He, Exploring Simple Siamese Representation Learning, CVPR 2021"
    view_names = ("strong", "strong")
    recipes = {
        "small": small_data(),
        "cifar": Recipe(
            source="SimSiam, appendix D (lr 0.03, weight decay 5e-4 on -cos)",
            epochs=800,
            batch_size=512,
            lr=0.015,
            weight_decay=1e-3,
            warmup_epochs=0,
            hyperparameters={"projector": (2048, 2048), "predictor": (512, 2048)},
        ),
        "imagenet": Recipe(
            source="SimSiam, section 3 (lr 0.05, weight decay 1e-4 on -cos)",
            epochs=100,
            batch_size=512,
            lr=0.025,
            weight_decay=2e-4,
            warmup_epochs=0,
            hyperparameters={"projector": (2048, 2048, 2048), "predictor": (512, 2048)},
        ),
    }

    projector: tuple[int, ...] = (256, 256)
    predictor: tuple[int, ...] = (64, 256)

    def networks(self, num_images: int) -> Networks:
        return Networks(
            loss=NegativeCosine(),
            projector=Head(self.projector, output_norm=True, output_affine=False),
            predictor=Head(self.predictor),
            constant_predictor_lr=True,
        )

    def compute(self, loss: nn.Module, embeddings: Embeddings, index: Tensor, queue: Tensor | None) -> Tensor:
        prediction, projection = embeddings["prediction"], embeddings["projection"]
        return (loss(prediction[0], projection[1]) + loss(prediction[1], projection[0])) / 2
