"""SogCLR as a method."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from nearfar.losses import SogCLR as Loss
from nearfar.methods.method import Embeddings, Head, Method, Networks
from nearfar.methods.recipe import Recipe, small_data


@dataclass(frozen=True, kw_only=True)
class SogCLR(Method):
    """SogCLR: DCL with the denominator of each image averaged over its visits, for small batches.

    Args:
        projector: widths of the projector.
        temperature: of the softmax; 0.1 on ImageNet, 0.3 on CIFAR.
        gamma: weight of the present batch in the running average, 0 to 1; at 1 this is DCL.

    Differs from the paper: (1) the gradient is not multiplied by the temperature, as the authors' code does;
    (2) an image's first visit is known by a flag for each image.
    """

    paper = "Yuan et al., Provable Stochastic Optimization for Global Contrastive Learning, ICML 2022"
    view_names = ("simclr", "simclr")
    recipes = {
        "small": small_data(hyperparameters={"temperature": 0.2}),
        "cifar": Recipe(
            source="iSogCLR, released script for CIFAR-100",
            epochs=400,
            batch_size=128,
            optimizer="lars",
            lr=0.8,
            lr_scaling="none",
            final_lr=0.001,
            weight_decay=5e-4,
            warmup_epochs=10,
            hyperparameters={"temperature": 0.3},
        ),
        "imagenet": Recipe(
            source="SogCLR, section 5",
            epochs=400,
            batch_size=256,
            optimizer="lars",
            lr=0.075,
            lr_scaling="sqrt",
            reference_batch=1,
            weight_decay=1e-6,
            warmup_epochs=10,
            hyperparameters={"projector": (2048, 128)},
        ),
    }

    temperature: float = 0.1
    gamma: float = 0.9

    def networks(self, num_images: int) -> Networks:
        loss = Loss(num_images, self.temperature, self.gamma)
        return Networks(loss=loss, projector=Head(self.projector), needs_index=True)

    def compute(self, loss: nn.Module, embeddings: Embeddings, index: Tensor, queue: Tensor | None) -> Tensor:
        first, second = embeddings["projection"]
        return loss(first, second, index)
