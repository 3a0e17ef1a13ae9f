"""A denominator for each image, averaged over its visits: SogCLR, and iSogCLR with a temperature
for each image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nearfar import losses
from nearfar.losses import checks
from nearfar.methods.method import Head, Method, Setup, loss_default
from nearfar.methods.pairing import two_views
from nearfar.methods.recipe import CIFAR, IMAGENET, Recipe, lars, lars_on_imagenet, small_data
from nearfar.methods.registry import register_method


def _released(source: str, lr: float, **settings: Any) -> Recipe:
    """Return a recipe with the settings of the released script of iSogCLR beside the loss, for
    SogCLR too.
    """
    common: dict[str, Any] = dict(
        optimizer="larc",
        views="strong",
        epochs=400,
        lr_scaling="none",
        final_lr=0.001,
        protocol="linear",
    )
    return lars(source, lr, **common | settings).sets(projector=(8192, 8192, 8192))


def _cifar(share: float) -> Recipe:
    """The recipe on CIFAR, where theirs has `share` times the gradient of ours: the decay that
    makes the same steps.
    """
    recipe = _released(
        "iSogCLR, released script for CIFAR-100",
        0.8,
        **CIFAR,
        batch_size=128,
        weight_decay=5e-4 / share,
    )
    return recipe.cites(weight_decay=f"5e-4 there, on {share:g} times the gradient")


@register_method("sogclr")
@dataclass(frozen=True, kw_only=True)
class SogCLR(Method):
    """SogCLR: DCL with the denominator of each image averaged over its visits, for small batches.

    Args:
        temperature: of the softmax; 0.1 on ImageNet, 0.3 on CIFAR.
        gamma: weight of the present batch in the running average, 0 to 1; at 1 this is DCL.
        output_norm: normalise the projector's output over the batch without scale and shift, as the
            authors' code.

    Differs from the paper: (1) the value is the mean over rows and the gradient is not multiplied
    by the temperature: the authors' code has 2 * temperature times this gradient, and its recipes
    stand here with numbers that make the same steps; (2) an image's first visit is known by a flag
    for each image.
    """

    paper = (
        "Yuan et al., Provable Stochastic Optimization for Global Contrastive Learning, ICML 2022"
    )
    views = ("simclr", "simclr")
    recipes = {
        "small": small_data().sets(temperature=0.2),
        "cifar": _cifar(2 * 0.3).sets(temperature=0.3).cites(temperature="SogCLR"),
        "imagenet": lars_on_imagenet(
            "SogCLR, section 5",
            0.075,
            epochs=400,
            batch_size=256,
            lr_scaling="sqrt",
            reference_batch=1,
            views="byol-alpha",
            vector_lr=0.2,
            weight_decay=5e-6,
        )
        .sets(projector=(2048, 128), output_norm=True)
        .cites(
            output_norm="released code",
            views="released code",
            vector_lr="1 there, on a fifth of the gradient (twice the temperature)",
            weight_decay="1e-6 there, on a fifth of the gradient",
        ),
    }

    temperature: float = loss_default(losses.SogCLR, "temperature")
    learn_temperature: bool = loss_default(losses.SogCLR, "learn_temperature")
    gamma: float = loss_default(losses.SogCLR, "gamma")
    output_norm: bool = False
    group_size: int | None = None

    def setup(self, num_images: int) -> Setup:
        loss = losses.SogCLR(
            num_images,
            self.temperature,
            self.gamma,
            group_size=self.group_size,
            learn_temperature=self.learn_temperature,
        )
        return Setup(
            loss=loss,
            pairing=two_views(),
            projector=Head(self.projector, output_norm=self.output_norm, output_affine=False),
            needs_index=True,
        )


@register_method("isogclr")
@dataclass(frozen=True, kw_only=True)
class ISogCLR(Method):
    """iSogCLR: SogCLR with a temperature for each image, learned beside the network.

    Args:
        temperature: every image's temperature at the start.
        lowest: smallest temperature.
        highest: largest temperature.
        lr_temperature: step size of the temperatures.
        rho: robustness term; larger values lead to higher temperatures.
        beta: weight of the present gradient in the moving average that moves the temperatures, 0 to
            1.
        gamma: weight of the present batch in the running average of the denominators, 0 to 1.
        gradient_limit: largest gradient of a temperature, 3 in the authors' code; infinity for
            none.

    Differs from the paper: (1) the exponent is the negative's similarity alone, as in the authors'
    code, where the paper subtracts the positive's; (2) the value is the mean over rows, half of
    that of the authors' code, whose recipes stand here with half the weight decay.
    """

    paper = "Qiu et al., Not All Semantics are Created Equal (iSogCLR), ICML 2023"
    views = ("simclr", "simclr")
    recipes = {
        "small": small_data(),
        "cifar": _cifar(2).sets(
            rho=0.4, beta=0.5, gamma=0.8, lr_temperature=0.03, highest=1.0, gradient_limit=3.0
        ),
        "imagenet": _released(
            "the script of iSogCLR as released by SACLR's authors for ImageNet100",
            1.2,
            **IMAGENET,
            batch_size=256,
            weight_decay=5e-5,
        )
        .sets(
            temperature=0.7,
            rho=0.4,
            beta=0.8,
            gamma=0.8,
            lr_temperature=0.001,
            highest=1.0,
            gradient_limit=3.0,
        )
        .cites(
            batch_size="SACLR, Table 1; one log of theirs has 128",
            weight_decay="1e-4 there, on twice the gradient",
        ),
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
