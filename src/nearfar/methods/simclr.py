"""SimCLR as a method."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.losses import SimCLR as Loss
from nearfar.methods.method import Head, Method, Networks
from nearfar.methods.recipe import Recipe, small_data


@dataclass(frozen=True, kw_only=True)
class SimCLR(Method):
    """SimCLR (Chen et al. 2020): each view must find the other among all rows of the batch.

    Args:
        projector: widths of the projector.
        temperature: of the softmax; 0.5 in the paper on CIFAR-10, 0.1 on ImageNet.

    Differs from the paper: (1) the value is the mean over rows, half of what the authors' code prints.
    """

    paper = "Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, ICML 2020"
    view_names = ("simclr", "simclr")
    recipes = {
        "small": small_data(),
        "cifar": Recipe(
            source="SimCLR, appendix B.9",
            epochs=1000,
            batch_size=512,
            optimizer="lars",
            lr=1.0,
            weight_decay=1e-6,
            warmup_epochs=10,
            hyperparameters={"temperature": 0.5},
        ),
        "imagenet": Recipe(
            source="SimCLR, section 2.2",
            epochs=100,
            batch_size=4096,
            optimizer="lars",
            lr=0.3,
            weight_decay=1e-6,
            warmup_epochs=10,
            hyperparameters={"temperature": 0.1, "projector": (2048, 128)},
        ),
    }

    temperature: float = 0.2

    def networks(self, num_images: int) -> Networks:
        return Networks(loss=Loss(self.temperature), projector=Head(self.projector))
