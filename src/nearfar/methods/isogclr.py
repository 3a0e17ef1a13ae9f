"""iSogCLR as a method."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from nearfar.losses import ISogCLR as Loss
from nearfar.losses import checks
from nearfar.methods.method import Embeddings, Head, Method, Networks
from nearfar.methods.recipe import Recipe, small_data


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
        beta: momentum of the temperatures' gradient.
        gamma: weight of the present batch in the running average of the denominators, 0 to 1.

    Differs from the paper: (1) the exponent is the negative's similarity alone, as in the authors' code, where the
    paper subtracts the positive's.
    """

    paper = "Qiu et al., Not All Semantics are Created Equal (iSogCLR), ICML 2023"
    view_names = ("simclr", "simclr")
    recipes = {
        "small": small_data(),
        "cifar": Recipe(
            source="iSogCLR, released script for CIFAR-100",
            epochs=400,
            batch_size=128,
            optimizer="lars",
            lr=0.8,
            lr_scaling="none",
            final_lr=0.001,
            weight_decay=5e-4,
            warmup_epochs=10,
            hyperparameters={"rho": 0.4, "beta": 0.5, "gamma": 0.8, "lr_temperature": 0.03},
        ),
    }

    temperature: float = 0.1
    lowest: float = 0.05
    highest: float = 0.7
    lr_temperature: float = 0.01
    rho: float = 0.3
    beta: float = 0.9
    gamma: float = 0.9

    def networks(self, num_images: int) -> Networks:
        checks.not_negative(lr_temperature=self.lr_temperature)
        loss = Loss(
            num_images,
            temperature=self.temperature,
            temperature_range=(self.lowest, self.highest),
            lr=self.lr_temperature,
            rho=self.rho,
            beta=self.beta,
            gamma=self.gamma,
        )
        return Networks(loss=loss, projector=Head(self.projector), needs_index=True)

    def compute(self, loss: nn.Module, embeddings: Embeddings, index: Tensor, queue: Tensor | None) -> Tensor:
        first, second = embeddings["projection"]
        return loss(first, second, index)
