"""NNCLR: nearest neighbours as positives."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar import losses
from nearfar.methods.method import Head, Method, Setup, loss_default
from nearfar.methods.pairing import both_ways
from nearfar.methods.recipe import IMAGENET, lars, small_data, solo_learn
from nearfar.methods.registry import register_method


@register_method("nnclr")
@dataclass(frozen=True, kw_only=True)
class NNCLR(Method):
    """NNCLR: the positive is the nearest neighbour of the other view in a queue of past projections.

    Args:
        projector: widths of the projector.
        predictor: widths of the predictor, which the online branch has on top of its projector.
        temperature: of the softmax.
        queue_size: projections kept.
        view_statistics: pass each view through the networks alone, so that batch statistics are those of one view.
    """

    paper = "Dwibedi et al., With a Little Help from My Friends, ICCV 2021"
    views = ("strong", "strong")
    recipes = {
        "small": small_data(),
        "cifar": solo_learn(0.4, weight_decay=1e-5, views="solo-alpha+solo-beta").sets(
            projector=(2048, 2048, 256),
            predictor=(4096, 256),
            queue_size=65536,
            temperature=0.2,
            view_statistics=True,
        ),
        "imagenet": lars(
            "NNCLR, section 4.1", 0.3, **IMAGENET, epochs=1000, batch_size=4096, sync_batch_norm=True, protocol="linear"
        ).sets(projector=(2048, 2048, 256), predictor=(4096, 256), queue_size=98304),
    }

    predictor: tuple[int, ...] = (512, 128)
    temperature: float = loss_default(losses.NNCLR, "temperature")
    queue_size: int = 4096
    view_statistics: bool = False

    def setup(self, num_images: int) -> Setup:
        return Setup(
            loss=losses.NNCLR(self.temperature),
            pairing=both_ways("projection", "prediction", enqueued=(("projection", 0),)),
            projector=Head(self.projector, output_norm=True),
            predictor=Head(self.predictor),
            queue_size=self.queue_size,
            view_statistics=self.view_statistics,
        )
