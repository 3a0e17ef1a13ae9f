"""Many crops of an image against its keys: MoCo-M, and LORAC and LORAC-bs, which add a low-rank
prior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from nearfar import losses
from nearfar.losses import checks
from nearfar.methods.method import Cosine, Head, Method, Schedule, Setup, Switch, loss_default
from nearfar.methods.pairing import Pairing, Rows
from nearfar.methods.recipe import Recipe, lars_on_imagenet, small_data
from nearfar.methods.registry import register_method


def _recipes(**prior: Any) -> dict[str, Recipe]:
    """The recipes of all three, with the numbers of the prior on ImageNet."""
    imagenet = (
        lars_on_imagenet(
            "LORAC, section 6.1",
            1.8,
            optimizer="larc",
            epochs=200,
            lr_scaling="none",
            final_lr=0.01,
            warmup_epochs=0,
            protocol="linear-sgd lorac",
        )
        .sets(projector=(2048, 128), queue_size=65536, momentum=0.999, large_views=3, small_views=5)
        .sets(norm_groups=4, **prior)
        .cites(
            optimizer="released code: apex's LARC adapts and decays all parameters",
            momentum="MoCo",
            norm_groups="released code: keys shuffled over 4 GPUs, 128 of both crops on each",
            sync_batch_norm="released code: for the queries' encoder alone",
        )
    )
    return {"small": small_data(), "imagenet": imagenet}


@dataclass(frozen=True, kw_only=True)
class _ManyCrops(Method):
    """Common part of the three: large and small crops as queries, keys of the first two large
    crops, and two queues.

    Args:
        queue_size: keys kept in each of two queues, one for each large crop with a key.
        norm_groups: groups of shuffled crops, of both keys together, with statistics of their own
            in the momentum encoder, over all processes (shuffling batch norm); 1 leaves the batch
            whole.
    """

    paper = (
        "Wang et al., A Low Rank Promoting Prior for Unsupervised Contrastive Learning "
        "(LORAC), TPAMI 2022"
    )

    temperature: float = loss_default(losses.LORAC, "temperature")
    learn_temperature: bool = loss_default(losses.LORAC, "learn_temperature")
    large_views: int = 3
    small_views: int = 2
    queue_size: int = 4096
    momentum: float = 0.99
    norm_groups: int = 1

    @property
    def views(self) -> tuple[str, ...]:
        return ("large",) * self.large_views + ("small",) * self.small_views

    def _setup(
        self, loss: losses.LORAC, prior: tuple[Rows, ...] = (), **schedules: Schedule
    ) -> Setup:
        """Set up around a loss whose prior is on the rows named; each key meets the negatives of
        the other's queue.
        """
        checks.at_least(2, large_views=self.large_views)
        checks.at_least(0, small_views=self.small_views)
        others = [tuple(view for view in range(len(self.views)) if view != key) for key in range(2)]
        pairing = Pairing(
            terms=tuple((("projection", others[key]), ("key", key)) for key in range(2)),
            named={"large": prior} if prior else {},
            queues=(1, 0),
        )
        return Setup(
            loss=loss,
            pairing=pairing,
            projector=Head(self.projector, hidden_norm=False),
            momentum=Cosine(self.momentum),
            queue_size=self.queue_size,
            norm_groups=self.norm_groups,
            schedules=schedules,
        )


@register_method("moco-m")
@dataclass(frozen=True, kw_only=True)
class MoCoM(_ManyCrops):
    """MoCo-M: MoCo with several queries of an image against its key.

    The momentum encoder makes keys of the first two large crops; each is paired with the queries of
    all other crops.

    Differs from the paper: (1) a crop is not paired with its own key, where the authors' code pairs
    both keys with the queries of all crops but the second; (2) a key's negatives are the other
    key's queue, as in the authors' code of LORAC, where that of MoCo-M takes the key's own.
    """

    recipes = _recipes()

    def setup(self, num_images: int) -> Setup:
        return self._setup(
            losses.LORAC(self.temperature, beta=math.inf, learn_temperature=self.learn_temperature)
        )


@dataclass(frozen=True, kw_only=True)
class _LowRank(_ManyCrops):
    """Common part of LORAC and LORAC-bs: a prior that starts later.

    Args:
        beta: width of the prior, which weakens as it grows: 2 for ResNet-18, 4 for ResNet-50;
            infinity switches it off.
        prior_start: fraction of the epochs after which the prior is switched on.
    """

    recipes = _recipes(beta=4.0)

    beta: float = loss_default(losses.LORAC, "beta")
    prior_start: float = 0.5

    def _setup_with_prior(self, loss: losses.LORAC, *keys: Rows) -> Setup:
        """Set up around a loss whose prior is on the queries of all large crops and on these
        keys.
        """
        checks.fraction(prior_start=self.prior_start)
        large = ("projection", tuple(range(self.large_views)))
        return self._setup(loss, (large, *keys), beta=Switch(math.inf, self.beta, self.prior_start))


@register_method("lorac")
@dataclass(frozen=True, kw_only=True)
class LORAC(_LowRank):
    """LORAC: MoCo-M with a prior that favours views of an image that span few dimensions.

    The momentum encoder makes keys of the first two large crops; each is paired with the queries of
    all other crops. The prior sees the queries of all large crops and both keys; small crops stay
    out of it.

    Args:
        prior: "laplace", "gaussian" or "constant".

    Differs from the paper: (1) the prior is divided by the temperature throughout, as in Eq. 12,
    which the authors' code leaves out once the prior is on; (2) a crop is not paired with its own
    key, as in the code; (3) the logits are joined for each query, where Algorithm 1 joins them
    along the batch.
    """

    prior: Literal["laplace", "gaussian", "constant"] = loss_default(losses.LORAC, "prior")

    def setup(self, num_images: int) -> Setup:
        return self._setup_with_prior(
            losses.LORAC(
                self.temperature, self.beta, self.prior, learn_temperature=self.learn_temperature
            ),
            ("key", (0, 1)),
        )


@register_method("lorac-bs")
@dataclass(frozen=True, kw_only=True)
class LORACbs(_LowRank):
    """LORAC-bs: LORAC with one nuclear norm for the variation of all large crops of the batch.

    The momentum encoder makes keys of the first two large crops; each is paired with the queries of
    all other crops.

    Differs from the paper: (1) a crop is not paired with its own key, as in the authors' code of
    LORAC.
    """

    def setup(self, num_images: int) -> Setup:
        return self._setup_with_prior(
            losses.LORAC(
                self.temperature,
                self.beta,
                batchwise=True,
                learn_temperature=self.learn_temperature,
            )
        )
