"""ReSSL as a method."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from nearfar.losses import ReSSL as Loss
from nearfar.methods.method import Embeddings, Head, Method, Networks
from nearfar.methods.recipe import Recipe, small_data
from nearfar.methods.schedules import Constant


@dataclass(frozen=True, kw_only=True)
class ReSSL(Method):
    """ReSSL: the strong view's similarities to a queue follow those of the weak view.

    Args:
        projector: widths of the projector.
        temperature: of the online branch.
        target_temperature: of the momentum encoder's branch; it should be the sharper one.
        queue_size: keys kept.
        momentum: of the momentum encoder.

    Differs from the paper: (1) the projector's hidden layer is normalised, as in SCE's comparison of both; the authors'
    code does without.

    """

    paper = "Zheng et al., ReSSL: Relational Self-Supervised Learning with Weak Augmentation, NeurIPS 2021"
    view_names = ("strong", "weak")
    recipes = {
        "small": small_data(),
        "cifar": Recipe(
            source="ReSSL, section 4",
            epochs=200,
            lr=0.06,
            weight_decay=5e-4,
            warmup_epochs=5,
            hyperparameters={"projector": (512, 128), "queue_size": 4096},
        ),
        "imagenet": Recipe(
            source="ReSSL, section 4",
            epochs=200,
            lr=0.05,
            weight_decay=1e-4,
            warmup_epochs=5,
            hyperparameters={"projector": (4096, 512), "queue_size": 131072, "momentum": 0.999},
        ),
    }

    temperature: float = 0.1
    target_temperature: float = 0.04
    queue_size: int = 4096
    momentum: float = 0.99

    def networks(self, num_images: int) -> Networks:
        return Networks(
            loss=Loss(self.temperature, self.target_temperature),
            projector=Head(self.projector),
            momentum=Constant(self.momentum),
            online_views=(0,),
            momentum_views=(1,),
            queue_size=self.queue_size,
        )

    def compute(self, loss: nn.Module, embeddings: Embeddings, index: Tensor, queue: Tensor | None) -> Tensor:
        return loss(embeddings["projection"][0], embeddings["key"][0], queue)
