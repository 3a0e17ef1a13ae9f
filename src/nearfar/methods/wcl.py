"""WCL: SimCLR beside a softmax, of a second projector, towards images of the same weak label."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar import losses
from nearfar.methods.method import Head, Method, Setup, loss_default
from nearfar.methods.pairing import Pairing
from nearfar.methods.recipe import lars_on_imagenet, small_data
from nearfar.methods.registry import register_method


@register_method("wcl")
@dataclass(frozen=True, kw_only=True)
class WCL(Method):
    """WCL: SimCLR, and beside it images of the same weak label attract each other.

    The labels are the groups of images that are joined by their nearest neighbours in the batch.

    Args:
        projector: widths of both projectors; the labels and their loss are of the second.

    Differs from the paper: (1) nearest neighbours add no small crops, as in the released code; (2)
    the ten epochs of warm-up have the views of the others, where the released code has weaker ones.
    """

    paper = "Zheng et al., Weakly Supervised Contrastive Learning, ICCV 2021"
    views = ("simclr", "simclr")
    recipes = {
        "small": small_data("nearfar, not tuned for this method"),
        "imagenet": lars_on_imagenet(
            "WCL, released code", 1.2, lr_scaling="sqrt", epochs=200, batch_size=4096
        )
        .sets(projector=(4096, 4096, 256))
        .cites(projector="released code; 2048 and 128 wide in the paper"),
    }

    temperature: float = loss_default(losses.WCL, "temperature")
    learn_temperature: bool = loss_default(losses.WCL, "learn_temperature")

    def setup(self, num_images: int) -> Setup:
        rows = [(name, view) for name in ("projection", "second") for view in (0, 1)]
        return Setup(
            loss=losses.WCL(self.temperature, learn_temperature=self.learn_temperature),
            pairing=Pairing(terms=(tuple(rows),)),
            projector=Head(self.projector),
            second_projector=Head(self.projector),
        )
