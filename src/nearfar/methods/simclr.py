"""The softmax over a batch: SimCLR, and DCL and DCLW, which leave the positive out of the
denominator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nearfar import losses
from nearfar.losses import checks
from nearfar.methods.method import Head, Method, Setup, loss_default
from nearfar.methods.pairing import pairs_with_large, two_views
from nearfar.methods.recipe import CIFAR, Recipe, lars, lars_on_imagenet, small_data, solo_learn
from nearfar.methods.registry import register_method

_DCL_RECIPES = {
    "small": small_data(),
    "cifar": Recipe(
        "DCL, section 4",
        **CIFAR,
        views="simclr-cifar",
        epochs=200,
        batch_size=512,
        lr=0.03,
        protocol="linear",
    ).sets(temperature=0.07),
}


_HALVED: dict[str, Any] = dict(vector_lr=2.0, weight_decay=5e-7)
_OF_THE_SUM = dict(
    vector_lr="1 in the released code, on twice the loss",
    weight_decay="1e-6 there, on twice the loss",
)


@register_method("simclr")
@dataclass(frozen=True, kw_only=True)
class SimCLR(Method):
    """SimCLR (Chen et al. 2020): each view must find the other among all rows of the batch.

    Args:
        temperature: of the softmax; 0.5 in the paper on CIFAR-10, 0.1 on ImageNet.
        large_views: crops of the full size, 2 or more; the loss is the mean over every two views.
        small_views: further small crops, each compared with the large ones alone (multi-crop, Caron
            et al. 2020).

    Differs from the paper: (1) the value is the mean over rows, half of what the authors' code
    prints; the papers' recipes stand here with numbers that make the same steps.
    """

    paper = (
        "Chen et al., A Simple Framework for Contrastive Learning of Visual "
        "Representations, ICML 2020"
    )
    recipes = {
        "small": small_data(),
        "cifar": lars(
            "SimCLR, appendix B.9",
            1.0,
            encoder="resnet50",
            views="simclr-cifar",
            epochs=1000,
            batch_size=512,
            **_HALVED,
            sync_batch_norm=True,
            protocol="linear",
        )
        .sets(temperature=0.5, projector=(2048, 128), output_norm=True)
        .cites(output_norm="released code", **_OF_THE_SUM),
        "cifar-solo-learn": solo_learn(0.4, views="solo-swav").sets(
            temperature=0.2, projector=(2048, 256), hidden_norm=False, view_statistics=True
        ),
        "imagenet": lars_on_imagenet(
            "SimCLR, section 2.2", 0.3, epochs=100, batch_size=4096, **_HALVED
        )
        .sets(temperature=0.1, projector=(2048, 128), output_norm=True)
        .cites(temperature="SimCLR, appendix B.7", output_norm="released code", **_OF_THE_SUM),
    }

    temperature: float = loss_default(losses.SimCLR, "temperature")
    learn_temperature: bool = loss_default(losses.SimCLR, "learn_temperature")
    hidden_norm: bool = True
    output_norm: bool = False
    view_statistics: bool = False
    group_size: int | None = None
    large_views: int = 2
    small_views: int = 0

    @property
    def views(self) -> tuple[str, ...]:
        return ("simclr",) * self.large_views + ("small",) * self.small_views

    def setup(self, num_images: int) -> Setup:
        checks.at_least(2, large_views=self.large_views)
        checks.at_least(0, small_views=self.small_views)
        return Setup(
            loss=losses.SimCLR(
                self.temperature,
                group_size=self.group_size,
                learn_temperature=self.learn_temperature,
            ),
            pairing=pairs_with_large(self.large_views, self.large_views + self.small_views),
            projector=Head(
                self.projector, hidden_norm=self.hidden_norm, output_norm=self.output_norm
            ),
            view_statistics=self.view_statistics,
        )


@register_method("dcl")
@dataclass(frozen=True, kw_only=True)
class DCL(Method):
    """DCL: SimCLR with the positive left out of the denominator."""

    paper = "Yeh et al., Decoupled Contrastive Learning, ECCV 2022"
    views = ("simclr", "simclr")
    recipes = _DCL_RECIPES

    temperature: float = loss_default(losses.DCL, "temperature")
    learn_temperature: bool = loss_default(losses.DCL, "learn_temperature")
    group_size: int | None = None

    def setup(self, num_images: int) -> Setup:
        loss = losses.DCL(
            self.temperature,
            group_size=self.group_size,
            learn_temperature=self.learn_temperature,
        )
        return Setup(loss=loss, pairing=two_views(), projector=Head(self.projector))


@register_method("dclw")
@dataclass(frozen=True, kw_only=True)
class DCLW(Method):
    """DCLW: DCL with each positive weighted by how hard it is, relative to its batch.

    Args:
        sigma: width of the weights; large values make them equal.
    """

    paper = "Yeh et al., Decoupled Contrastive Learning, ECCV 2022"
    views = ("simclr", "simclr")
    recipes = _DCL_RECIPES

    temperature: float = loss_default(losses.DCL, "temperature")
    learn_temperature: bool = loss_default(losses.DCL, "learn_temperature")
    sigma: float = loss_default(losses.DCL, "sigma")

    def setup(self, num_images: int) -> Setup:
        loss = losses.DCL(
            self.temperature,
            weighted=True,
            sigma=self.sigma,
            learn_temperature=self.learn_temperature,
        )
        return Setup(loss=loss, pairing=two_views(), projector=Head(self.projector))
