"""Similarities to other images as soft targets: ReSSL, and SCE, which gives the positive a
share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from nearfar import losses
from nearfar.losses import checks
from nearfar.methods.method import Cosine, Head, Method, Schedule, Setup, loss_default
from nearfar.methods.pairing import queries_against_keys
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


def _small_crops(kind: str, count: int) -> tuple[str, ...]:
    """Name as many small crops: 6/7, 5/7, 4/7 and 3/7 of the side in turn."""
    return tuple(f"{kind}-{6 - number % 4}" for number in range(count))


def _ressl(lr: float, **settings: Any) -> Recipe:
    common: dict[str, Any] = dict(epochs=200, decay_all=False, warmup_epochs=5, protocol="linear")
    recipe = sgd("ReSSL, section 4", lr, **common | settings)
    return recipe.cites(weight_decay="ReSSL, section 4; released code leaves out biases and norms")


def _ressl_imagenet(**hyperparameters: Any) -> Recipe:
    recipe = _ressl(0.05, **IMAGENET)
    numbers = {
        "projector": (4096, 512),
        "hidden_norm": False,
        "queue_size": 131072,
        "momentum": 0.999,
    }
    processes = "released code: 8 GPUs of 32 images"
    groups = {"norm_groups": 8, "online_norm_groups": 8}
    sources = {"hidden_norm": "released code", **dict.fromkeys(groups, processes)}
    return recipe.sets(**numbers, **groups, **hyperparameters).cites(**sources)


@register_method("ressl")
@dataclass(frozen=True, kw_only=True)
class ReSSL(Method):
    """ReSSL: the strong view's similarities to a queue follow those of the weak view.

    Args:
        temperature: of the online branch.
        target_temperature: of the momentum encoder's branch; it should be the sharper one.
        queue_size: keys kept.
        small_views: further small crops for the online branch.

    Differs from the paper: (1) the projector's hidden layer is normalised unless the recipe says
    otherwise, as in SCE's comparison of both; the authors' code does without, and so do its recipes
    here.
    """

    paper = (
        "Zheng et al., ReSSL: Relational Self-Supervised Learning with Weak "
        "Augmentation, NeurIPS 2021"
    )
    recipes = {
        "small": small_data(),
        "cifar": _ressl(0.06, **CIFAR, weight_decay=5e-4).sets(
            projector=(512, 128), queue_size=4096
        ),
        "cifar-solo-learn": solo_learn(
            0.05, optimizer="sgd", decay_all=True, views="solo-ressl+solo-weak"
        )
        .sets(
            projector=(4096, 256),
            hidden_norm=False,
            queue_size=65536,
            momentum=0.99,
            final_momentum=1.0,
        )
        .cites(queue_size="solo-learn's default"),
        "imagenet": _ressl_imagenet(),
        "imagenet-sce": replace(_ressl_imagenet(), decay_all=True).cites(
            decay_all="SCE's code, for its comparison"
        ),
        "imagenet-multi-crop": _ressl_imagenet(small_views=4).cites(
            small_views="released code: 224 px and four more"
        ),
    }

    temperature: float = loss_default(losses.ReSSL, "temperature")
    learn_temperature: bool = loss_default(losses.ReSSL, "learn_temperature")
    target_temperature: float = loss_default(losses.ReSSL, "target_temperature")
    queue_size: int = 4096
    momentum: float = 0.99
    final_momentum: float | None = None
    norm_groups: int = 1
    online_norm_groups: int = 1
    symmetric: bool = False
    small_views: int = 0
    hidden_norm: bool = True

    @property
    def views(self) -> tuple[str, ...]:
        return ("strong", "weak", *_small_crops("local-strong", self.small_views))

    def setup(self, num_images: int) -> Setup:
        checks.at_least(0, small_views=self.small_views)
        return Setup(
            loss=losses.ReSSL(
                self.temperature,
                self.target_temperature,
                learn_temperature=self.learn_temperature,
            ),
            pairing=queries_against_keys(len(self.views), both_ways=self.symmetric),
            projector=Head(self.projector, hidden_norm=self.hidden_norm),
            view_statistics=True,
            momentum=Cosine(self.momentum, self.final_momentum),
            queue_size=self.queue_size,
            norm_groups=self.norm_groups,
            online_norm_groups=self.online_norm_groups,
            taught=losses.TeacherSCE(
                self.temperature,
                lam=0.0,
                mu=1.0,
                eta=0.0,
                learn_temperature=self.learn_temperature,
            ),
        )


_SMALL: dict[str, Any] = {"projector": (512, 256), "final_momentum": 0.99, "norm_groups": 8}
_MEDIUM: dict[str, Any] = {
    "encoder": "resnet18-small-stem",
    "projector": (512, 256),
    "queue_size": 16384,
    "momentum": 0.996,
    "final_momentum": 0.996,
    "norm_groups": 8,
}


def _small_images(name: str, encoder: str = "resnet18", **hyperparameters: Any) -> Recipe:
    """The recipe of SCE's paper for images of 32 to 96 pixels, with the numbers it gives for one
    data set.
    """
    recipe = Recipe(
        f"SCE, appendix E and Table 13 ({name})",
        encoder=encoder,
        epochs=200,
        decay_all=True,
        protocol="linear-sgd sce-cifar",
    )
    return recipe.sets(**hyperparameters).cites(
        norm_groups="released code: 8 splits of the keys' batch norm",
        weight_decay="SCE, appendix E; released code: of biases and norms too",
    )


def _two_views(source: str, lr: float) -> Recipe:
    """The recipe of SCE's ablations and comparison: one strong and one weak view."""
    recipe = Recipe(
        source,
        **IMAGENET,
        epochs=200,
        batch_size=512,
        lr=lr,
        weight_decay=1e-4,
        protocol="linear-sgd sce",
    )
    return recipe.sets(queue_size=65536, momentum=0.996, norm_groups=8).cites(
        norm_groups="released code: 8 GPUs"
    )


def _state_of_the_art(**hyperparameters: Any) -> Recipe:
    """The recipe of SCE's section 4.3 and Tables 7 and 8, for 200 epochs."""
    recipe = lars_on_imagenet(
        "SCE, section 4.3", 0.3, epochs=200, batch_size=4096, protocol="linear-sgd sce-imagenet"
    )
    heads = {"projector": (4096, 256), "predictor": (4096, 256), "output_norm": True}
    return recipe.sets(**heads | hyperparameters, symmetric=True, queue_size=65536).cites(
        projector="MoCo v3, as section 4.3 says", predictor="MoCo v3, as section 4.3 says"
    )


@register_method("sce")
@dataclass(frozen=True, kw_only=True)
class SCE(Method):
    """SCE: soft targets, lam for the positive, the rest for images that the key finds similar.

    Args:
        output_norm: normalise the projector's output over the batch, without scale and shift.
        predictor: widths of a predictor on the online branch, whose last layer has no bias; none by
            default.
        temperature: of the online branch.
        target_temperature: of the momentum encoder's branch; it should be the sharper one.
        lam: weight of the contrastive term, 0 to 1.
        final_lam: of the contrastive term at the end, which `lam` reaches along half a cosine; the
            other two weights follow where they are 1 - lam. Default: constant.
        mu: weight of the relational term. Default: 1 - lam.
        eta: weight of the ceiling term. Default: 1 - lam.
        small_views: further small crops for the online branch; with any, both global views pass
            through both branches.
        queue_size: keys kept; 0 compares with the batch's own keys.
        momentum: of the momentum encoder at the start; it rises along half a cosine.
        final_momentum: of the momentum encoder at the end; the same as `momentum` keeps it
            constant, as in the CIFAR recipes.

    Differs from the paper: (1) the positive's weight among the soft targets is masked to exactly 0,
    where released code gives it the logit 0.
    """

    paper = (
        "Denize et al., Similarity Contrastive Estimation for Self-Supervised Soft "
        "Contrastive Learning, WACV 2023"
    )
    recipes = {
        "small": small_data(),
        "cifar": _small_images("CIFAR-10", **_SMALL, temperature=0.2, target_temperature=0.1),
        "cifar100": _small_images("CIFAR-100", **_SMALL, target_temperature=0.08),
        "stl10": _small_images("STL-10", **_MEDIUM, target_temperature=0.05),
        "tiny-imagenet": _small_images("Tiny ImageNet", **_MEDIUM, target_temperature=0.07),
        "imagenet100": _two_views("SCE, section 4.1", lr=0.3)
        .sets(projector=(4096, 256), hidden_norm=False)
        .cites(hidden_norm="released code's head of two layers"),
        "imagenet": _two_views("SCE, sections 4.1 and 4.2", lr=0.5).sets(
            projector=(2048, 2048, 256), output_norm=True
        ),
        "imagenet-lars": _state_of_the_art(),
        "imagenet-lars-released": _state_of_the_art(projector=(2048, 2048, 256)).cites(
            projector="released code"
        ),
        "imagenet-multi-crop": _state_of_the_art(small_views=4).cites(
            small_views="SCE, section 4.3, multi-crop"
        ),
        "imagenet-multi-crop-released": _state_of_the_art(
            small_views=4, projector=(4096, 4096, 256)
        ).cites(small_views="SCE, section 4.3, multi-crop", projector="released code"),
    }

    hidden_norm: bool = True
    output_norm: bool = False
    predictor: tuple[int, ...] = ()
    temperature: float = loss_default(losses.SCE, "temperature")
    learn_temperature: bool = loss_default(losses.SCE, "learn_temperature")
    target_temperature: float = loss_default(losses.SCE, "target_temperature")
    lam: float = loss_default(losses.SCE, "lam")
    final_lam: float | None = None
    mu: float | None = loss_default(losses.SCE, "mu")
    eta: float | None = loss_default(losses.SCE, "eta")
    symmetric: bool = False
    small_views: int = 0
    queue_size: int = 4096
    momentum: float = 0.99
    final_momentum: float = 1.0
    norm_groups: int = 1

    @property
    def _both_ways(self) -> bool:
        return self.symmetric or self.small_views > 0

    @property
    def views(self) -> tuple[str, ...]:
        pair = ("strong-alpha", "strong-beta") if self._both_ways else ("strong", "weak")
        return pair + _small_crops("local", self.small_views)

    def setup(self, num_images: int) -> Setup:
        checks.at_least(0, small_views=self.small_views, queue_size=self.queue_size)
        query = "prediction" if self.predictor else "projection"
        return Setup(
            loss=losses.SCE(
                self.temperature,
                self.target_temperature,
                self.lam,
                self.mu,
                self.eta,
                learn_temperature=self.learn_temperature,
            ),
            pairing=queries_against_keys(len(self.views), query, both_ways=self._both_ways),
            projector=Head(
                self.projector,
                hidden_norm=self.hidden_norm,
                output_norm=self.output_norm,
                output_affine=False,
            ),
            predictor=Head(self.predictor, output_bias=False) if self.predictor else None,
            view_statistics=True,
            momentum=Cosine(self.momentum, self.final_momentum),
            queue_size=self.queue_size or None,
            norm_groups=self.norm_groups,
            schedules=self._weights_over_training(),
            taught=losses.TeacherSCE(
                self.temperature,
                lam=self.lam,
                mu=self.mu,
                eta=self.eta,
                learn_temperature=self.learn_temperature,
            ),
        )

    def _weights_over_training(self) -> dict[str, Schedule]:
        """The schedules of the loss's weights; none where they are constant."""
        if self.final_lam is None:
            return {}
        checks.fraction(lam=self.lam, final_lam=self.final_lam)
        rest = Cosine(1 - self.lam, 1 - self.final_lam)
        given = {"mu": self.mu, "eta": self.eta}
        following = {name: rest for name, weight in given.items() if weight is None}
        return {"lam": Cosine(self.lam, self.final_lam), **following}
