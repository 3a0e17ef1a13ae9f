"""DCL as a method."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.losses import DCL as Loss
from nearfar.methods.method import Head, Method, Networks
from nearfar.methods.recipe import Recipe, small_data


@dataclass(frozen=True, kw_only=True)
class DCL(Method):
    """DCL: SimCLR with the positive left out of the denominator.

    Args:
        projector: widths of the projector.
        temperature: of the softmax.
    """

    paper = "Yeh et al., Decoupled Contrastive Learning, ECCV 2022"
    view_names = ("simclr", "simclr")
    recipes = {
        "small": small_data(),
        "cifar": Recipe(
            source="DCL, section 4", epochs=200, batch_size=512, lr=0.03, hyperparameters={"temperature": 0.07}
        ),
    }

    temperature: float = 0.2

    def networks(self, num_images: int) -> Networks:
        return Networks(loss=Loss(self.temperature), projector=Head(self.projector))
