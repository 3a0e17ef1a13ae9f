"""DCLW as a method."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.losses import DCL
from nearfar.methods.method import Head, Method, Networks
from nearfar.methods.recipe import Recipe, small_data


@dataclass(frozen=True, kw_only=True)
class DCLW(Method):
    """DCLW: DCL with each positive weighted by how hard it is, relative to its batch.

    Args:
        projector: widths of the projector.
        temperature: of the softmax.
        sigma: width of the weights; large values make them equal.
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
    sigma: float = 0.5

    def networks(self, num_images: int) -> Networks:
        loss = DCL(self.temperature, weighted=True, sigma=self.sigma)
        return Networks(loss=loss, projector=Head(self.projector))
