"""Features that neither collapse nor repeat each other, without negatives: Barlow Twins, VICReg and W-MSE."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar import losses
from nearfar.methods.method import Head, Method, Setup, loss_default
from nearfar.methods.pairing import two_views
from nearfar.methods.recipe import CIFAR, IMAGENET, Recipe, lars, small_data, solo_learn
from nearfar.methods.registry import register_method


@register_method("barlow-twins")
@dataclass(frozen=True, kw_only=True)
class BarlowTwins(Method):
    """Barlow Twins: the cross-correlation of the two views' features is pulled to the identity.

    Args:
        projector: widths of the projector.
        redundancy: weight of the off-diagonal terms.
    """

    paper = "Zbontar et al., Barlow Twins: Self-Supervised Learning via Redundancy Reduction, ICML 2021"
    views = ("byol-alpha", "byol-beta")
    recipes = {
        "small": small_data(),
        "cifar": solo_learn(0.03, weight_decay=1e-3, views="solo-alpha+solo-beta")
        .sets(projector=(2048, 2048, 2048))
        .cites(lr="0.3 and weight decay 1e-4 there, on a tenth of the loss"),
        "imagenet": lars(
            "Barlow Twins, section 2.2",
            0.2,
            **IMAGENET,
            epochs=1000,
            batch_size=2048,
            vector_lr=0.024,
            weight_decay=1.5e-6,
            final_lr=0.001,
            sync_batch_norm=True,
            protocol="linear",
        )
        .sets(projector=(8192, 8192, 8192))
        .cites(vector_lr="released code: 0.0048 for biases and norms", final_lr="released code"),
    }

    redundancy: float = loss_default(losses.BarlowTwins, "redundancy")

    def setup(self, num_images: int) -> Setup:
        loss = losses.BarlowTwins(self.redundancy)
        return Setup(loss=loss, pairing=two_views(), projector=Head(self.projector), view_statistics=True)


@register_method("vicreg")
@dataclass(frozen=True, kw_only=True)
class VICReg(Method):
    """VICReg: invariance between views, variance of every feature, no covariance between features.

    Args:
        projector: widths of the projector.
        invariance: weight of the distance between views.
        variance: weight of the hinge on every feature's deviation.
        covariance: weight of the covariances.

    Differs from the paper: (1) the hinges of the two views are averaged, as in the authors' code, where Eq. 6 adds
    them; (2) the squared distance is the mean over the features, as in the code, where Eq. 5 has the sum.
    """

    paper = "Bardes et al., VICReg: Variance-Invariance-Covariance Regularization, ICLR 2022"
    views = ("byol-alpha", "byol-beta")
    recipes = {
        "small": small_data(),
        "cifar": solo_learn(0.3, views="solo-vicreg")
        .sets(projector=(2048, 2048, 2048), variance=50.0)
        .cites(variance="25 there, on the sum of both views' hinges"),
        "imagenet": lars(
            "VICReg, section 4.2",
            0.2,
            **IMAGENET,
            epochs=1000,
            batch_size=2048,
            final_lr=0.001,
            sync_batch_norm=True,
            protocol="linear",
        )
        .sets(projector=(8192, 8192, 8192))
        .cites(final_lr="released code"),
    }

    invariance: float = loss_default(losses.VICReg, "invariance")
    variance: float = loss_default(losses.VICReg, "variance")
    covariance: float = loss_default(losses.VICReg, "covariance")

    def setup(self, num_images: int) -> Setup:
        loss = losses.VICReg(self.invariance, self.variance, self.covariance)
        return Setup(loss=loss, pairing=two_views(), projector=Head(self.projector), view_statistics=True)


@register_method("wmse")
@dataclass(frozen=True, kw_only=True)
class WMSE(Method):
    """W-MSE: views are compared after their features are whitened, which rules out collapse.

    Args:
        projector: widths of the projector.
        sub_batch: images whitened together. Default: twice the projector's output.
        iterations: random partitions of the batch that are averaged.

    Differs from the paper: (1) left-over images join the other sub-batches, where the authors' code needs a batch that
    divides; (2) the covariance is regularised in proportion to the mean variance and factored in float64.
    """

    paper = "Ermolov et al., Whitening for Self-Supervised Representation Learning, ICML 2021"
    views = ("strong", "strong")
    recipes = {
        "small": small_data(),
        "cifar": Recipe(
            "W-MSE, section 4",
            **CIFAR,
            views="saclr-cifar",
            epochs=1000,
            batch_size=512,
            optimizer="adam",
            lr=3e-3,
            lr_scaling="none",
            lr_drops=(950, 975),
            lr_drop=0.2,
            weight_decay=1e-6,
            decay_all=True,
            warmup_epochs=5.12,
            protocol="knn linear",
        )
        .sets(projector=(1024, 64), sub_batch=128)
        .cites(
            final_lr="W-MSE, section 4; released code: to a fifth",
            warmup_epochs="released code: 500 steps of 512 images",
            optimizer="released code: Adam with L2 decay",
        ),
    }

    projector: tuple[int, ...] = (512, 64)
    sub_batch: int | None = loss_default(losses.WMSE, "sub_batch")
    iterations: int = loss_default(losses.WMSE, "iterations")

    def setup(self, num_images: int) -> Setup:
        loss = losses.WMSE(self.sub_batch, self.iterations)
        return Setup(loss=loss, pairing=two_views(), projector=Head(self.projector))
