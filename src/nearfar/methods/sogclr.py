"""A denominator for each image, averaged over its visits: SogCLR, and iSogCLR with a temperature for each image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nearfar import losses
from nearfar.losses import checks
from nearfar.methods.method import Head, Method, Setup, loss_default
from nearfar.methods.pairing import two_views
from nearfar.methods.recipe import CIFAR, IMAGENET, Recipe, lars, small_data
from nearfar.methods.registry import register_method


def _released(source: str, lr: float, **settings: Any) -> Recipe:
    """What the released script of iSogCLR has beside the loss, for SogCLR too."""
    common: dict[str, Any] = dict(
        optimizer="larc",
        views="strong",
        epochs=400,
        lr_scaling="none",
        final_lr=0.001,
        protocol="linear",
    )
    return lars(source, lr, **common | settings).sets(projector=(8192, 8192, 8192))


_CIFAR = _released("iSogCLR, released script for CIFAR-100", 0.8, **CIFAR, batch_size=128, weight_decay=5e-4)


@register_method("sogclr")
@dataclass(frozen=True, kw_only=True)
class SogCLR(Method):
    """SogCLR: DCL with the denominator of each image averaged over its visits, for small batches.

    Args:
        projector: widths of the projector.
        temperature: of the softmax; 0.1 on ImageNet, 0.3 on CIFAR.
        gamma: weight of the present batch in the running average, 0 to 1; at 1 this is DCL.
        output_norm: normalise the projector's output over the batch, as the authors' code does.

    Differs from the paper: (1) the gradient is not multiplied by the temperature, as the authors' code does;
    (2) an image's first visit is known by a flag for each image.
    """

    paper = "Yuan et al., Provable Stochastic Optimization for Global Contrastive Learning, ICML 2022"
    views = ("simclr", "simclr")
    recipes = {
        "small": small_data().sets(temperature=0.2),
        "cifar": _CIFAR.sets(temperature=0.3).cites(temperature="SogCLR"),
        "imagenet": lars(
            "SogCLR, section 5",
            0.075,
            **IMAGENET,
            epochs=400,
            batch_size=256,
            lr_scaling="sqrt",
            reference_batch=1,
            sync_batch_norm=True,
            protocol="linear",
        )
        .sets(projector=(2048, 128), output_norm=True)
        .cites(output_norm="released code"),
    }

    temperature: float = loss_default(losses.SogCLR, "temperature")
    gamma: float = loss_default(losses.SogCLR, "gamma")
    output_norm: bool = False

    def setup(self, num_images: int) -> Setup:
        loss = losses.SogCLR(num_images, self.temperature, self.gamma)
        return Setup(
            loss=loss,
            pairing=two_views(),
            projector=Head(self.projector, output_norm=self.output_norm),
            needs_index=True,
        )


@register_method("isogclr")
@dataclass(frozen=True, kw_only=True)
class ISogCLR(Method):
    """iSogCLR: SogCLR with a temperature for each image, learned beside the network.

    Args:
        projector: widths of the projector.
        temperature: every image's temperature at the start.
        lowest: smallest temperature.
        highest: largest temperature.
        lr_temperature: step size of the temperatures.
        rho: robustness term; larger values lead to higher temperatures.
        beta: weight of the present gradient in the moving average that moves the temperatures, 0 to 1.
        gamma: weight of the present batch in the running average of the denominators, 0 to 1.
        gradient_limit: largest gradient of a temperature, 3 in the authors' code; infinity for none.
        output_norm: normalise the projector's output over the batch.

    Differs from the paper: (1) the exponent is the negative's similarity alone, as in the authors' code, where the
    paper subtracts the positive's.
    """

    paper = "Qiu et al., Not All Semantics are Created Equal (iSogCLR), ICML 2023"
    views = ("simclr", "simclr")
    recipes = {
        "small": small_data(),
        "cifar": _CIFAR.sets(rho=0.4, beta=0.5, gamma=0.8, lr_temperature=0.03, highest=1.0, gradient_limit=3.0),
        "imagenet": _released(
            "the script of iSogCLR as released by SACLR's authors for ImageNet100",
            1.2,
            **IMAGENET,
            batch_size=256,
            weight_decay=1e-4,
        )
        .sets(temperature=0.7, rho=0.4, beta=0.8, gamma=0.8, lr_temperature=0.001, highest=1.0, gradient_limit=3.0)
        .cites(batch_size="SACLR, Table 1; one log of theirs has 128"),
    }

    temperature: float = loss_default(losses.ISogCLR, "temperature")
    lowest: float = loss_default(losses.ISogCLR, "temperature_range")[0]
    highest: float = loss_default(losses.ISogCLR, "temperature_range")[1]
    lr_temperature: float = loss_default(losses.ISogCLR, "lr")
    rho: float = loss_default(losses.ISogCLR, "rho")
    beta: float = loss_default(losses.ISogCLR, "beta")
    gamma: float = loss_default(losses.ISogCLR, "gamma")
    gradient_limit: float = loss_default(losses.ISogCLR, "gradient_limit")
    output_norm: bool = False

    def setup(self, num_images: int) -> Setup:
        checks.not_negative(lr_temperature=self.lr_temperature)
        loss = losses.ISogCLR(
            num_images,
            temperature=self.temperature,
            temperature_range=(self.lowest, self.highest),
            lr=self.lr_temperature,
            rho=self.rho,
            beta=self.beta,
            gamma=self.gamma,
            gradient_limit=self.gradient_limit,
        )
        return Setup(
            loss=loss,
            pairing=two_views(),
            projector=Head(self.projector, output_norm=self.output_norm),
            needs_index=True,
        )
