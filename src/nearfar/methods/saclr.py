"""SACLR: contrastive learning as matrix approximation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from nearfar import losses
from nearfar.methods.method import Head, Method, Setup, loss_default
from nearfar.methods.pairing import two_views
from nearfar.methods.recipe import CIFAR, IMAGENET, lars, sgd, small_data
from nearfar.methods.registry import register_method

_IMAGENET = lars(
    "SACLR, appendix A.1",
    0.075,
    **IMAGENET,
    protocol="linear-sgd saclr-imagenet",
    epochs=400,
    batch_size=128,
    lr_scaling="sqrt",
    reference_batch=1,
    weight_decay=1e-4,
    final_lr=0.001,
).sets(projector=(8192, 8192, 8192))


@register_method("saclr")
@dataclass(frozen=True, kw_only=True)
class SACLR(Method):
    """SACLR: attraction and repulsion balanced by a running estimate of the normaliser.

    Args:
        scale: "matrix" keeps one normaliser, "row" one for each image, found by its index.
        negatives: images that each image is compared with, a number or "all".
        alpha: weight of the positive in the normaliser, 0 to 1.
        rho: how much of the old normaliser is kept; 1 leaves it at its start. Default: 0.99 for
            matrix, 0.9 for row and on small data.
        kernel: "gaussian" or "cosine" on unit rows, "cauchy" on embeddings of any length.
        bandwidth: of the gaussian kernel, temperature of the cosine kernel.
        initial_partition: the normaliser at the start.
        count_positive: count the positive among all negatives, as Eq. 10 does.

    Differs from the paper: (1) the matrix form is made scale-consistent, since Eq. 6 read literally
    weighs the repulsion by 1/N and collapses; (2) alpha weighs the mean over the two views, as in
    the authors' code, and not their sum (Eq. 7-8); (3) M negatives are M images with both views,
    where the code for M = 1 takes one view; (4) the negatives leave out the positive, which the
    paper's sums hold (Eq. 3 and 10).
    """

    paper = "Stochastic Approximation to Contrastive Learning (SACLR)"
    views = ("simclr", "simclr")
    recipes = {
        "small": small_data().sets(rho=0.9),
        "cifar": sgd(
            "SACLR, appendix A.2, and SimSiam, appendix D, to which it refers",
            0.03,
            **CIFAR,
            views="saclr-cifar",
            epochs=1000,
            batch_size=128,
            weight_decay=5e-4,
            final_lr=0.001,
            warmup_epochs=10,
            protocol="linear-sgd saclr-cifar",
        )
        .sets(projector=(8192, 8192, 8192))
        .cites(
            projector="SACLR, appendix A.1",
            final_lr="released script",
            warmup_epochs="released script",
            views="released script",
        ),
        "imagenet": _IMAGENET,
        "imagenet-released": replace(_IMAGENET, views="byol-alpha+byol-beta").cites(
            views="released script"
        ),
        "imagenet-released-moco": replace(_IMAGENET, views="strong").cites(
            views="an earlier released script: MoCo v2's"
        ),
    }

    scale: Literal["matrix", "row"] = loss_default(losses.SACLR, "scale")
    negatives: int | Literal["all"] = loss_default(losses.SACLR, "negatives")
    alpha: float = loss_default(losses.SACLR, "alpha")
    rho: float | None = loss_default(losses.SACLR, "rho")
    kernel: Literal["gaussian", "cosine", "cauchy"] = loss_default(losses.SACLR, "kernel")
    bandwidth: float = loss_default(losses.SACLR, "bandwidth")
    initial_partition: float = loss_default(losses.SACLR, "initial_partition")
    group_size: int | None = None
    count_positive: bool = loss_default(losses.SACLR, "count_positive")

    def setup(self, num_images: int) -> Setup:
        loss = losses.SACLR(
            num_images,
            scale=self.scale,
            negatives=self.negatives,
            alpha=self.alpha,
            rho=self.rho,
            kernel=self.kernel,
            bandwidth=self.bandwidth,
            initial_partition=self.initial_partition,
            group_size=self.group_size,
            count_positive=self.count_positive,
        )
        needs_index = self.scale == "row"
        return Setup(
            loss=loss, pairing=two_views(), projector=Head(self.projector), needs_index=needs_index
        )
