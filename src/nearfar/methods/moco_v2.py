"""MoCo v2 as a method."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from nearfar.losses import MoCo as Loss
from nearfar.methods.method import Embeddings, Head, Method, Networks
from nearfar.methods.recipe import Recipe, small_data
from nearfar.methods.schedules import Constant


@dataclass(frozen=True, kw_only=True)
class MoCoV2(Method):
    """MoCo v2: MoCo with a deeper projector, stronger views and a higher temperature.

    The first view is the query, the second the key. The momentum encoder moves after the optimiser's step: parameters
    by momentum, buffers (batch statistics) copied. The queue starts as Gaussian unit rows, is used before the batch's
    keys enter it and wraps at any length.

    Args:
        projector: widths of the projector.
        temperature: of the softmax.
        queue_size: keys kept, 4096 on CIFAR-10, 65536 on ImageNet.
        momentum: of the momentum encoder, 0.99 on CIFAR-10, 0.999 on ImageNet.
        norm_groups: groups of the batch with statistics of their own in the momentum encoder, in place of shuffled
            batch statistics over devices; 1 leaves the batch whole.

    Differs from the paper: (1) on one device batch statistics are not shuffled; `norm_groups` offers what that does.

    """

    paper = "Chen et al., Improved Baselines with Momentum Contrastive Learning, 2020"
    view_names = ("strong", "strong")
    recipes = {
        "small": small_data(),
        "cifar": Recipe(
            source="MoCo's CIFAR-10 notebook",
            epochs=200,
            batch_size=512,
            lr=0.03,
            weight_decay=5e-4,
            warmup_epochs=0,
            hyperparameters={"temperature": 0.1},
        ),
        "imagenet": Recipe(
            source="MoCo v2, section 3",
            epochs=200,
            lr=0.03,
            weight_decay=1e-4,
            warmup_epochs=0,
            hyperparameters={"projector": (2048, 128), "queue_size": 65536, "momentum": 0.999},
        ),
    }

    temperature: float = 0.2
    queue_size: int = 4096
    momentum: float = 0.99
    norm_groups: int = 1

    def networks(self, num_images: int) -> Networks:
        return Networks(
            loss=Loss(self.temperature),
            projector=Head(self.projector, hidden_norm=False),
            momentum=Constant(self.momentum),
            online_views=(0,),
            momentum_views=(1,),
            queue_size=self.queue_size,
            norm_groups=self.norm_groups,
        )

    def compute(self, loss: nn.Module, embeddings: Embeddings, index: Tensor, queue: Tensor | None) -> Tensor:
        return loss(embeddings["projection"][0], embeddings["key"][0], queue)
