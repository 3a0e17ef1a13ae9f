"""Methods without negatives: BYOL and SimSiam predict, Barlow Twins, VICReg and W-MSE decorrelate,
LeJEPA makes embeddings normally distributed, SwAV swaps codes.
"""

from __future__ import annotations

from dataclasses import dataclass

from nearfar import losses
from nearfar.losses import checks
from nearfar.methods.method import Cosine, Head, Method, Setup, Switch, loss_default
from nearfar.methods.pairing import all_views, both_ways, two_views
from nearfar.methods.recipe import (
    CIFAR,
    IMAGENET,
    Recipe,
    lars_on_imagenet,
    sgd,
    small_data,
    solo_learn,
)
from nearfar.methods.registry import register_method


@register_method("byol")
@dataclass(frozen=True, kw_only=True)
class BYOL(Method):
    """BYOL: one view predicts the momentum encoder's projection of the other, without negatives.

    Args:
        momentum: of the momentum encoder at the start; it rises to 1 along half a cosine.

    Differs from the paper: (1) the value is the mean of the two directions, half of the paper's;
    the papers' recipes stand here with numbers that make the same steps.
    """

    paper = "Grill et al., Bootstrap Your Own Latent, NeurIPS 2020"
    views = ("byol-alpha", "byol-beta")
    recipes = {
        "small": small_data().sets(momentum=0.9),
        "cifar": solo_learn(2.0, weight_decay=5e-6, views="solo-alpha+solo-beta")
        .sets(projector=(4096, 256), predictor=(4096, 256), momentum=0.99)
        .cites(lr="1.0 and weight decay 1e-5 there, on the sum of both directions"),
        "imagenet": lars_on_imagenet(
            "BYOL, section 3.3",
            0.2,
            epochs=1000,
            batch_size=4096,
            vector_lr=2.0,
            weight_decay=7.5e-7,
        )
        .sets(projector=(4096, 256), predictor=(4096, 256))
        .cites(
            vector_lr="1 there, on the sum of both directions",
            weight_decay="1.5e-6 there, on the sum",
        ),
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

    The predictor's learning rate is held constant.

    Differs from the paper: (1) the value is 2 - 2 cos, as BYOL's, where the paper has -cos: the
    gradient is twice as large, so the papers' recipes stand here with half the learning rate and
    twice the weight decay, which makes the same steps.
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
        "cifar-solo-learn": solo_learn(
            0.25, optimizer="sgd", weight_decay=2e-5, decay_all=True, views="solo-moco"
        )
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


@register_method("barlow-twins")
@dataclass(frozen=True, kw_only=True)
class BarlowTwins(Method):
    """Barlow Twins: the cross-correlation of the two views' features is pulled to the identity.

    Args:
        redundancy: weight of the off-diagonal terms.
    """

    paper = (
        "Zbontar et al., Barlow Twins: Self-Supervised Learning via Redundancy Reduction, ICML 2021"
    )
    views = ("byol-alpha", "byol-beta")
    recipes = {
        "small": small_data(),
        "cifar": solo_learn(0.03, weight_decay=1e-3, views="solo-alpha+solo-beta")
        .sets(projector=(2048, 2048, 2048))
        .cites(lr="0.3 and weight decay 1e-4 there, on a tenth of the loss"),
        "imagenet": lars_on_imagenet(
            "Barlow Twins, section 2.2",
            0.2,
            epochs=1000,
            batch_size=2048,
            vector_lr=0.024,
            weight_decay=1.5e-6,
            final_lr=0.001,
        )
        .sets(projector=(8192, 8192, 8192))
        .cites(vector_lr="released code: 0.0048 for biases and norms", final_lr="released code"),
    }

    redundancy: float = loss_default(losses.BarlowTwins, "redundancy")

    def setup(self, num_images: int) -> Setup:
        loss = losses.BarlowTwins(self.redundancy)
        return Setup(
            loss=loss, pairing=two_views(), projector=Head(self.projector), view_statistics=True
        )


@register_method("vicreg")
@dataclass(frozen=True, kw_only=True)
class VICReg(Method):
    """VICReg: invariance between views, variance of every feature, no covariance between features.

    Args:
        invariance: weight of the distance between views.
        variance: weight of the hinge on every feature's deviation.
        covariance: weight of the covariances.

    Differs from the paper: (1) the hinges of the two views are averaged, as in the authors' code,
    where Eq. 6 adds them; (2) the squared distance is the mean over the features, as in the code,
    where Eq. 5 has the sum.
    """

    paper = "Bardes et al., VICReg: Variance-Invariance-Covariance Regularization, ICLR 2022"
    views = ("byol-alpha", "byol-beta")
    recipes = {
        "small": small_data(),
        "cifar": solo_learn(0.3, views="solo-vicreg")
        .sets(projector=(2048, 2048, 2048), variance=50.0)
        .cites(variance="25 there, on the sum of both views' hinges"),
        "imagenet": lars_on_imagenet(
            "VICReg, section 4.2", 0.2, epochs=1000, batch_size=2048, final_lr=0.001
        )
        .sets(projector=(8192, 8192, 8192))
        .cites(final_lr="released code"),
    }

    invariance: float = loss_default(losses.VICReg, "invariance")
    variance: float = loss_default(losses.VICReg, "variance")
    covariance: float = loss_default(losses.VICReg, "covariance")

    def setup(self, num_images: int) -> Setup:
        loss = losses.VICReg(self.invariance, self.variance, self.covariance)
        return Setup(
            loss=loss, pairing=two_views(), projector=Head(self.projector), view_statistics=True
        )


@register_method("wmse")
@dataclass(frozen=True, kw_only=True)
class WMSE(Method):
    """W-MSE: views are compared after their features are whitened, which rules out collapse.

    Args:
        sub_batch: images whitened together. Default: twice the projector's output.
        iterations: random partitions of the batch that are averaged.

    Differs from the paper: (1) left-over images join the other sub-batches, where the authors' code
    needs a batch that divides; (2) the covariance is regularised in proportion to the mean variance
    and factored in float64.
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


@register_method("lejepa")
@dataclass(frozen=True, kw_only=True)
class LeJEPA(Method):
    """LeJEPA: views predict their mean, and embeddings keep to a standard normal distribution.

    Args:
        lam: share of the distance from the normal distribution in the loss; the rest is the
            prediction.
        num_directions: random directions on which the distribution is compared, drawn at each step.
        large_views: crops of the full size, 2 or more; their mean is predicted.
        small_views: further small crops, which predict alone.

    Differs from the paper: (1) the squared distance is the mean over the features, as in the
    authors' code, where the equation has the sum; (2) two views by default, where the paper adds
    six small crops.
    """

    paper = (
        "Balestriero and LeCun, LeJEPA: Provable and Scalable Self-Supervised Learning Without the "
        "Heuristics, arXiv 2025"
    )

    lam: float = loss_default(losses.LeJEPA, "lam")
    num_directions: int = loss_default(losses.LeJEPA, "num_directions")
    large_views: int = loss_default(losses.LeJEPA, "large_views")
    small_views: int = 0

    @property
    def views(self) -> tuple[str, ...]:
        return ("lejepa",) * self.large_views + ("local-lejepa",) * self.small_views

    def setup(self, num_images: int) -> Setup:
        checks.at_least(2, large_views=self.large_views)
        checks.at_least(0, small_views=self.small_views)
        loss = losses.LeJEPA(self.lam, self.num_directions, self.large_views)
        pairing = all_views(len(self.views))
        return Setup(loss=loss, pairing=pairing, projector=Head(self.projector))


@register_method("swav")
@dataclass(frozen=True, kw_only=True)
class SwAV(Method):
    """SwAV: a view predicts the other views' cluster codes, which are balanced over the batch.

    Args:
        num_prototypes: cluster centres.
        temperature: of the predictions.
        epsilon: smoothness of the codes.
        iterations: of Sinkhorn's algorithm.
        large_views: crops of the full size, 2 or more; the first two make codes, all predict.
        small_views: further small crops, which predict but make no codes.
        stored: embeddings of each view with codes kept to balance small batches; 0 keeps none.
        stored_from: epoch from which they are stored; once full they are used.
        frozen_epochs: epochs during which the prototypes stay as they are.

    As in the authors' code the projector normalises all crops together, of both sizes.
    """

    paper = (
        "Caron et al., Unsupervised Learning of Visual Features by Contrasting Cluster "
        "Assignments, NeurIPS 2020"
    )
    recipes = {
        "small": small_data().sets(num_prototypes=256),
        "cifar": solo_learn(0.6, weight_decay=1e-6, final_lr=0.001, views="solo-swav").sets(
            projector=(2048, 128),
            small_views=0,
            num_prototypes=3000,
            stored=3840,
            stored_from=50,
            frozen_epochs=2,
            view_statistics=True,
        ),
        "imagenet": lars_on_imagenet(
            "SwAV, appendix A",
            0.3,
            optimizer="larc",
            epochs=200,
            batch_size=4096,
            final_lr=0.001,
            warmup_start=0.3 / 4.8,
        )
        .sets(projector=(2048, 128), small_views=6, num_prototypes=3000)
        .cites(
            optimizer="released code: apex's LARC adapts and decays all parameters",
            warmup_epochs="SwAV, appendix A; released scripts: 0.3 of 4.8 at the start",
        ),
    }

    num_prototypes: int = loss_default(losses.SwAV, "num_prototypes")
    temperature: float = loss_default(losses.SwAV, "temperature")
    epsilon: float = loss_default(losses.SwAV, "epsilon")
    iterations: int = loss_default(losses.SwAV, "iterations")
    large_views: int = 2
    small_views: int = 2
    stored: int = loss_default(losses.SwAV, "queue_size")
    stored_from: float = 15
    frozen_epochs: float = 1
    view_statistics: bool = False

    @property
    def views(self) -> tuple[str, ...]:
        return ("large",) * self.large_views + ("small",) * self.small_views

    def setup(self, num_images: int) -> Setup:
        checks.at_least(2, large_views=self.large_views)
        checks.at_least(0, small_views=self.small_views, stored=self.stored)
        checks.not_negative(stored_from=self.stored_from, frozen_epochs=self.frozen_epochs)
        loss = losses.SwAV(
            self.projector[-1],
            self.num_prototypes,
            self.temperature,
            self.epsilon,
            self.iterations,
            self.stored,
        )
        return Setup(
            loss=loss,
            pairing=all_views(len(self.views)),
            projector=Head(self.projector),
            view_statistics=self.view_statistics,
            schedules={
                "freeze_prototypes": Switch(True, False, at_epoch=self.frozen_epochs),
                "use_queue": Switch(False, True, at_epoch=self.stored_from),
            },
        )
