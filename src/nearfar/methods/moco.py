"""A query finds its key among others: MoCo v1, v2 and v3, JCL (several keys) and NNCLR (a neighbour
as key).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nearfar import losses
from nearfar.losses import checks
from nearfar.methods.method import Cosine, Head, Method, Ramp, Setup, loss_default
from nearfar.methods.pairing import Pairing, both_ways, queries_against_keys
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


def _imagenet(source: str, **settings: Any) -> Recipe:
    """The recipe of MoCo on ImageNet, on which JCL builds: eight devices, each with batch
    statistics of its own.
    """
    common: dict[str, Any] = dict(
        epochs=200, warmup_epochs=0, protocol="linear-sgd moco", **IMAGENET
    )
    recipe = sgd(source, 0.03, **common | settings)
    numbers = {"queue_size": 65536, "momentum": 0.999, "norm_groups": 8, "online_norm_groups": 8}
    return recipe.sets(**numbers).cites(
        norm_groups="released code: 8 GPUs", online_norm_groups="released code: 8 GPUs"
    )


@dataclass(frozen=True, kw_only=True)
class _MoCo(Method):
    """Common part of MoCo v1 and v2; they differ in the projector, the temperature and the papers'
    recipes.

    Args:
        queue_size: keys kept, 4096 on CIFAR-10, 65536 on ImageNet.
        momentum: of the momentum encoder, 0.99 on CIFAR-10, 0.999 on ImageNet.
        symmetric: pass both views through both branches; the keys of both enter the queue.
        queue_per_view: with `symmetric`, keep the keys of each view in a queue of their own, each
            of `queue_size`.
    """

    temperature: float = loss_default(losses.MoCo, "temperature")
    learn_temperature: bool = loss_default(losses.MoCo, "learn_temperature")
    queue_size: int = 4096
    momentum: float = 0.99
    final_momentum: float | None = None
    norm_groups: int = 1
    online_norm_groups: int = 1
    symmetric: bool = False
    queue_per_view: bool = False
    hidden_norm: bool = False

    def setup(self, num_images: int) -> Setup:
        return Setup(
            loss=losses.MoCo(self.temperature, learn_temperature=self.learn_temperature),
            pairing=queries_against_keys(
                both_ways=self.symmetric, queue_per_view=self.queue_per_view
            ),
            projector=Head(self.projector, hidden_norm=self.hidden_norm),
            view_statistics=True,
            momentum=Cosine(self.momentum, self.final_momentum),
            queue_size=self.queue_size,
            norm_groups=self.norm_groups,
            online_norm_groups=self.online_norm_groups,
        )


@register_method("moco-v1")
@dataclass(frozen=True, kw_only=True)
class MoCoV1(_MoCo):
    """MoCo v1: a query finds its key, of a momentum encoder, among a queue of past keys.

    The first view is the query, the second the key. The momentum encoder moves after the
    optimiser's step: parameters by momentum, buffers (batch statistics) copied. The queue starts as
    Gaussian unit rows, is used before the batch's keys enter it and wraps at any length.
    """

    paper = (
        "He et al., Momentum Contrast for Unsupervised Visual Representation Learning, CVPR 2020"
    )
    views = ("moco-v1", "moco-v1")
    recipes = {
        "small": small_data(),
        "imagenet": _imagenet("MoCo, section 4", lr_drops=(120, 160), views="moco-v1"),
    }

    projector: tuple[int, ...] = (128,)
    temperature: float = 0.07  # the loss has v2's


@register_method("moco-v2")
@dataclass(frozen=True, kw_only=True)
class MoCoV2(_MoCo):
    """MoCo v2: MoCo with a deeper projector, stronger views and a higher temperature.

    As in v1, the first view is the query and the second the key.
    """

    paper = "Chen et al., Improved Baselines with Momentum Contrastive Learning, 2020"
    views = ("strong", "strong")
    recipes = {
        "small": small_data(),
        "cifar": sgd(
            "MoCo's CIFAR-10 notebook",
            0.03,
            **CIFAR,
            views="simclr-cifar",
            epochs=200,
            batch_size=512,
            weight_decay=5e-4,
            warmup_epochs=0,
            protocol="knn_200",
        ).sets(temperature=0.1, projector=(128,), norm_groups=8, online_norm_groups=8),
        "cifar-solo-learn": solo_learn(
            0.3, optimizer="sgd", decay_all=True, views="solo-moco"
        ).sets(
            projector=(2048, 256),
            queue_size=32768,
            momentum=0.99,
            final_momentum=0.999,
            symmetric=True,
            queue_per_view=True,
        ),
        "imagenet": _imagenet("MoCo v2, section 3").sets(projector=(2048, 128)),
    }


@register_method("moco-v3")
@dataclass(frozen=True, kw_only=True)
class MoCoV3(Method):
    """MoCo v3: predictions of each view find the other view's keys in the batch; no queue.

    Args:
        momentum: of the momentum encoder at the start; it rises to 1 along half a cosine.

    Differs from the paper: (1) heads are those of the authors' code for ResNets (neither
    normalisation nor bias after the predictor) for every backbone; its heads for ViTs are deeper.
    """

    paper = (
        "Chen et al., An Empirical Study of Training Self-Supervised Vision Transformers, ICCV 2021"
    )
    views = ("strong-alpha", "strong-beta")
    recipes = {
        "small": small_data(),
        "imagenet": lars_on_imagenet(
            "MoCo v3, released settings for ResNet-50", 0.6, epochs=100, batch_size=4096
        ).sets(projector=(4096, 256), predictor=(4096, 256), temperature=1.0),
    }

    predictor: tuple[int, ...] = (512, 128)
    temperature: float = loss_default(losses.MoCoV3, "temperature")
    learn_temperature: bool = loss_default(losses.MoCoV3, "learn_temperature")
    momentum: float = 0.99

    def setup(self, num_images: int) -> Setup:
        return Setup(
            loss=losses.MoCoV3(self.temperature, learn_temperature=self.learn_temperature),
            pairing=both_ways("prediction", "key", join="sum"),
            projector=Head(self.projector, output_norm=True, output_affine=False),
            predictor=Head(self.predictor, output_bias=False),
            momentum=Cosine(self.momentum, 1.0),
            view_statistics=True,
        )


@register_method("jcl")
@dataclass(frozen=True, kw_only=True)
class JCL(Method):
    """JCL: infinitely many keys of an image, sampled around the mean of a few, in closed form.

    The first view is the query, the others are keys, which pass through the momentum encoder
    together.

    Args:
        lam: weight of the keys' covariance at the end; it grows by equal steps over the epochs.
        key_views: views that the momentum encoder turns into keys.
        queue_size: mean keys kept.

    Differs from the paper: (1) the mean keys that enter the queue are scaled to length one; (2) the
    covariance stands inside the exponential of the positive, as in JCL's own derivation, where
    LORAC's Eq. 16 prints it outside.
    """

    paper = "Cai et al., Joint Contrastive Learning with Infinite Possibilities, NeurIPS 2020"
    recipes = {
        "small": small_data(),
        "imagenet": _imagenet("JCL, released script (its 10 multiplies 1 / t, this lam 1 / t^2)")
        .sets(projector=(2048, 128), lam=2.0, key_views=4)
        .cites(key_views="released script: k_crops 5 counts the query"),
    }

    temperature: float = loss_default(losses.JCL, "temperature")
    learn_temperature: bool = loss_default(losses.JCL, "learn_temperature")
    lam: float = loss_default(losses.JCL, "lam")
    key_views: int = 3
    queue_size: int = 4096
    momentum: float = 0.99
    norm_groups: int = 1
    online_norm_groups: int = 1

    @property
    def views(self) -> tuple[str, ...]:
        return ("strong",) * (1 + self.key_views)

    def setup(self, num_images: int) -> Setup:
        checks.at_least(1, key_views=self.key_views)
        keys = ("key", tuple(range(1, 1 + self.key_views)))
        return Setup(
            loss=losses.JCL(self.temperature, self.lam, learn_temperature=self.learn_temperature),
            pairing=Pairing(terms=((("projection", 0), keys),), enqueued=(keys,)),
            projector=Head(self.projector, hidden_norm=False),
            momentum=Cosine(self.momentum),
            queue_size=self.queue_size,
            schedules={"lam": Ramp(self.lam)},
            norm_groups=self.norm_groups,
            online_norm_groups=self.online_norm_groups,
        )


@register_method("nnclr")
@dataclass(frozen=True, kw_only=True)
class NNCLR(Method):
    """NNCLR: the positive is the other view's nearest neighbour in a queue of projections.

    Args:
        queue_size: projections kept.
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
        "imagenet": lars_on_imagenet("NNCLR, section 4.1", 0.3, epochs=1000, batch_size=4096).sets(
            projector=(2048, 2048, 256), predictor=(4096, 256), queue_size=98304
        ),
    }

    predictor: tuple[int, ...] = (512, 128)
    temperature: float = loss_default(losses.NNCLR, "temperature")
    learn_temperature: bool = loss_default(losses.NNCLR, "learn_temperature")
    queue_size: int = 4096
    view_statistics: bool = False

    def setup(self, num_images: int) -> Setup:
        return Setup(
            loss=losses.NNCLR(self.temperature, learn_temperature=self.learn_temperature),
            pairing=both_ways("projection", "prediction", enqueued=(("projection", 0),)),
            projector=Head(self.projector, output_norm=True),
            predictor=Head(self.predictor),
            queue_size=self.queue_size,
            view_statistics=self.view_statistics,
        )
