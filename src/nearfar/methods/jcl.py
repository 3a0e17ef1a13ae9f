"""JCL: many keys of an image, by their mean and covariance."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar import losses
from nearfar.losses import checks
from nearfar.methods.method import Head, Method, Setup, loss_default
from nearfar.methods.pairing import Pairing
from nearfar.methods.recipe import Recipe, small_data
from nearfar.methods.registry import register_method
from nearfar.methods.schedules import Constant, Ramp


@register_method("jcl")
@dataclass(frozen=True, kw_only=True)
class JCL(Method):
    """JCL: infinitely many keys of an image, sampled around the mean of a few, in closed form.

    The first view is the query, the others are keys.

    Args:
        projector: widths of the projector.
        temperature: of the softmax.
        lam: weight of the keys' covariance at the end; it grows by equal steps over the epochs.
        key_views: views that the momentum encoder turns into keys.
        queue_size: mean keys kept.
        momentum: of the momentum encoder.

    Differs from the paper: (1) the mean keys that enter the queue are scaled to length one; (2) the covariance stands
    inside the exponential of the positive, as in JCL's own derivation, where LORAC's Eq. 16 prints it outside.
    """

    paper = "Cai et al., Joint Contrastive Learning with Infinite Possibilities, NeurIPS 2020"
    recipes = {
        "small": small_data(),
        "imagenet": Recipe(
            "JCL, released script (its 10 multiplies 1 / t, this lam 1 / t^2)",
            epochs=200,
            lr=0.03,
            weight_decay=1e-4,
            warmup_epochs=0,
        ).sets(projector=(2048, 128), queue_size=65536, momentum=0.999, lam=2.0, key_views=5),
    }

    temperature: float = loss_default(losses.JCL, "temperature")
    lam: float = loss_default(losses.JCL, "lam")
    key_views: int = 3
    queue_size: int = 4096
    momentum: float = 0.99

    @property
    def views(self) -> tuple[str, ...]:
        return ("strong",) * (1 + self.key_views)

    def setup(self, num_images: int) -> Setup:
        checks.at_least(1, key_views=self.key_views)
        keys = ("key", tuple(range(1, 1 + self.key_views)))
        return Setup(
            loss=losses.JCL(self.temperature, self.lam),
            pairing=Pairing(terms=((("projection", 0), keys),), enqueued=(keys,)),
            projector=Head(self.projector, hidden_norm=False),
            momentum=Constant(self.momentum),
            queue_size=self.queue_size,
            schedules={"lam": Ramp(self.lam)},
        )
