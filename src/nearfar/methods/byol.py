"""Predictions without negatives: BYOL, and SimSiam, which does without a momentum encoder."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar import losses
from nearfar.methods.method import Head, Method, Setup
from nearfar.methods.pairing import both_ways
from nearfar.methods.recipe import CIFAR, IMAGENET, lars, sgd, small_data, solo_learn
from nearfar.methods.registry import register_method
from nearfar.methods.schedules import Cosine


@register_method("byol")
@dataclass(frozen=True, kw_only=True)
class BYOL(Method):
    """BYOL: one view predicts the momentum encoder's projection of the other, without negatives.

    Args:
        projector: widths of the projector.
        predictor: widths of the predictor, which the online branch has on top of its projector.
        momentum: of the momentum encoder at the start; it rises to 1 along half a cosine.

    Differs from the paper: (1) the value is the mean of the two directions, half of the paper's; the papers' recipes
    stand here with numbers that make the same steps.
    """

    paper = "Grill et al., Bootstrap Your Own Latent, NeurIPS 2020"
    views = ("byol-alpha", "byol-beta")
    recipes = {
        "small": small_data().sets(momentum=0.9),
        "cifar": solo_learn(2.0, weight_decay=5e-6, views="solo-alpha+solo-beta")
        .sets(projector=(4096, 256), predictor=(4096, 256), momentum=0.99)
        .cites(lr="1.0 and weight decay 1e-5 there, on the sum of both directions"),
        "imagenet": lars(
            "BYOL, section 3.3",
            0.2,
            **IMAGENET,
            epochs=1000,
            batch_size=4096,
            vector_lr=2.0,
            weight_decay=7.5e-7,
            sync_batch_norm=True,
            protocol="linear",
        )
        .sets(projector=(4096, 256), predictor=(4096, 256))
        .cites(vector_lr="1 there, on the sum of both directions", weight_decay="1.5e-6 there, on the sum"),
    }

    predictor: tuple[int, ...] = (512, 128)
    momentum: float = 0.996

    def setup(self, num_images: int) -> Setup:
        return Setup(
            loss=losses.NegativeCosine(),
            pairing=both_ways("prediction", "key"),
            projector=Head(self.projector),
            predictor=Head(self.predictor),
            momentum=Cosine(self.momentum, 1.0),
            view_statistics=True,
        )


@register_method("simsiam")
@dataclass(frozen=True, kw_only=True)
class SimSiam(Method):
    """SimSiam: one view predicts the projection of the other, which gets no gradient.

    Args:
        projector: widths of the projector.
        predictor: widths of the predictor, which the online branch has on top of its projector.

    The predictor's learning rate is held constant.

    Differs from the paper: (1) the value is 2 - 2 cos, as BYOL's, where the paper has -cos: the gradient is twice as
    large, so the papers' recipes stand here with half the learning rate and twice the weight decay, which makes the
    same steps.
    """

    paper = "Chen and He, Exploring Simple Siamese Representation Learning, CVPR 2021"
    views = ("strong", "strong")
    recipes = {
        "small": small_data(),
        "cifar": sgd(
            "SimSiam, appendix D (lr 0.03, weight decay 5e-4 on -cos)",
            0.015,
            **CIFAR,
            views="simsiam-cifar",
            epochs=800,
            batch_size=512,
            weight_decay=1e-3,
            warmup_epochs=0,
            protocol="knn linear-sgd simsiam-cifar",
        ).sets(projector=(2048, 2048), predictor=(512, 2048)),
        "cifar-solo-learn": solo_learn(0.25, optimizer="sgd", weight_decay=2e-5, decay_all=True, views="solo-moco")
        .sets(projector=(2048, 2048, 2048), predictor=(512, 2048))
        .cites(lr="lr 0.5 on -cos", weight_decay="1e-5 on -cos"),
        "imagenet": sgd(
            "SimSiam, section 3 (lr 0.05, weight decay 1e-4 on -cos)",
            0.025,
            **IMAGENET,
            epochs=100,
            batch_size=512,
            weight_decay=2e-4,
            warmup_epochs=0,
            sync_batch_norm=True,
            protocol="linear",
        ).sets(projector=(2048, 2048, 2048), predictor=(512, 2048)),
    }

    projector: tuple[int, ...] = (256, 256)
    predictor: tuple[int, ...] = (64, 256)

    def setup(self, num_images: int) -> Setup:
        return Setup(
            loss=losses.NegativeCosine(),
            pairing=both_ways("prediction", "projection"),
            projector=Head(self.projector, output_norm=True, output_affine=False),
            predictor=Head(self.predictor),
            constant_predictor_lr=True,
            view_statistics=True,
        )
