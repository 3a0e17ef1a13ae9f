"""SigCLR as a method."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.losses import SigCLR as Loss
from nearfar.methods.method import Head, Method, Networks
from nearfar.methods.recipe import Recipe, small_data


@dataclass(frozen=True, kw_only=True)
class SigCLR(Method):
    """SigCLR: every pair is classified on its own, as positive or negative, by a logistic loss.

    Args:
        projector: widths of the projector.
        temperature: of the logits.
        bias: bias of the logits at the start; null for none.
        learn_temperature: train the temperature.
        learn_bias: train the bias.

    Differs from the paper: (1) the sum over pairs is divided by the 2B rows, as in the formula, where the
    pseudocode averages over all 4B^2 entries.
    """

    paper = "SigCLR: Sigmoid Contrastive Learning of Visual Representations"
    view_names = ("sigclr-alpha", "sigclr-beta")
    recipes = {
        "small": small_data(),
        "cifar": Recipe(
            source="SigCLR, section 4",
            epochs=1000,
            batch_size=512,
            optimizer="lars",
            lr=0.3,
            reference_batch=64,
            weight_decay=1e-6,
            warmup_epochs=10,
            hyperparameters={"projector": (1024, 1024, 128)},
        ),
    }

    temperature: float = 0.2
    bias: float | None = -10.0
    learn_temperature: bool = False
    learn_bias: bool = True

    def networks(self, num_images: int) -> Networks:
        loss = Loss(self.temperature, self.bias, self.learn_temperature, self.learn_bias)
        return Networks(loss=loss, projector=Head(self.projector))
