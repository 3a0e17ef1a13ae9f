"""SigCLR: a logistic loss on every pair."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar import losses
from nearfar.methods.method import Head, Method, Setup, loss_default
from nearfar.methods.pairing import two_views
from nearfar.methods.recipe import CIFAR, lars, small_data
from nearfar.methods.registry import register_method


@register_method("sigclr")
@dataclass(frozen=True, kw_only=True)
class SigCLR(Method):
    """SigCLR: every pair is classified on its own, as positive or negative, by a logistic loss.

    Args:
        temperature: of the logits.
        bias: bias of the logits at the start; null for none.
        learn_bias: train the bias.

    Differs from the paper: (1) the sum over pairs is divided by the 2B rows, as in the formula,
    where the pseudocode averages over all 4B^2 entries.
    """

    paper = "SigCLR: Sigmoid Contrastive Learning of Visual Representations"
    views = ("sigclr-alpha", "sigclr-beta")
    recipes = {
        "small": small_data(),
        "cifar": lars(
            "SigCLR, section 3",
            0.3,
            **CIFAR,
            epochs=1000,
            batch_size=128,
            reference_batch=64,
            protocol="linear",
        )
        .sets(projector=(1024, 1024, 128))
        .cites(batch_size="SigCLR, Tables 1 and 2"),
    }

    temperature: float = loss_default(losses.SigCLR, "temperature")
    bias: float | None = loss_default(losses.SigCLR, "bias")
    learn_temperature: bool = loss_default(losses.SigCLR, "learn_temperature")
    learn_bias: bool = loss_default(losses.SigCLR, "learn_bias")
    group_size: int | None = None

    def setup(self, num_images: int) -> Setup:
        learned = self.learn_temperature, self.learn_bias
        loss = losses.SigCLR(self.temperature, self.bias, *learned, group_size=self.group_size)
        return Setup(loss=loss, pairing=two_views(), projector=Head(self.projector))
