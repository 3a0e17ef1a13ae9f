"""SwAV: cluster codes, swapped between views."""

from __future__ import annotations

from dataclasses import dataclass

from nearfar import losses
from nearfar.losses import checks
from nearfar.methods.method import Head, Method, Setup, loss_default
from nearfar.methods.pairing import all_views
from nearfar.methods.recipe import IMAGENET, lars, small_data, solo_learn
from nearfar.methods.registry import register_method
from nearfar.methods.schedules import Switch


@register_method("swav")
@dataclass(frozen=True, kw_only=True)
class SwAV(Method):
    """SwAV: a view predicts the cluster codes of the other views, which are balanced over the batch.

    Args:
        projector: widths of the projector.
        num_prototypes: cluster centres.
        temperature: of the predictions.
        epsilon: smoothness of the codes.
        iterations: of Sinkhorn's algorithm.
        large_views: crops of the full size, 2 or more; the first two make codes, all predict.
        small_views: further small crops, which predict but make no codes.
        stored: embeddings of each view with codes kept to balance small batches; 0 keeps none.
        stored_from: epoch from which they are stored; once full they are used.
        frozen_epochs: epochs during which the prototypes stay as they are.
        view_statistics: pass each view through the networks alone, so that batch statistics are those of one view.

    As in the authors' code the projector normalises all crops together, of both sizes.
    """

    paper = "Caron et al., Unsupervised Learning of Visual Features by Contrasting Cluster Assignments, NeurIPS 2020"
    recipes = {
        "small": small_data().sets(num_prototypes=256),
        "cifar": solo_learn(0.6, weight_decay=1e-6, final_lr=0.001, views="solo-swav").sets(
            projector=(2048, 128),
            small_views=0,
            num_prototypes=3000,
            stored=3840,
            stored_from=50,
            frozen_epochs=2,
            view_statistics=True,
        ),
        "imagenet": lars(
            "SwAV, appendix A",
            0.3,
            **IMAGENET,
            optimizer="larc",
            epochs=200,
            batch_size=4096,
            final_lr=0.001,
            warmup_start=0.3 / 4.8,
            sync_batch_norm=True,
            protocol="linear",
        )
        .sets(projector=(2048, 128), small_views=6, num_prototypes=3000)
        .cites(
            optimizer="released code: apex's LARC adapts and decays all parameters",
            warmup_epochs="SwAV, appendix A; released scripts: 0.3 of 4.8 at the start",
        ),
    }

    num_prototypes: int = loss_default(losses.SwAV, "num_prototypes")
    temperature: float = loss_default(losses.SwAV, "temperature")
    epsilon: float = loss_default(losses.SwAV, "epsilon")
    iterations: int = loss_default(losses.SwAV, "iterations")
    large_views: int = 2
    small_views: int = 2
    stored: int = loss_default(losses.SwAV, "queue_size")
    stored_from: float = 15
    frozen_epochs: float = 1
    view_statistics: bool = False

    @property
    def views(self) -> tuple[str, ...]:
        return ("large",) * self.large_views + ("small",) * self.small_views

    def setup(self, num_images: int) -> Setup:
        checks.at_least(2, large_views=self.large_views)
        checks.at_least(0, small_views=self.small_views, stored=self.stored)
        checks.not_negative(stored_from=self.stored_from, frozen_epochs=self.frozen_epochs)
        loss = losses.SwAV(
            self.projector[-1], self.num_prototypes, self.temperature, self.epsilon, self.iterations, self.stored
        )
        return Setup(
            loss=loss,
            pairing=all_views(len(self.views)),
            projector=Head(self.projector),
            view_statistics=self.view_statistics,
            schedules={
                "freeze_prototypes": Switch(True, False, at_epoch=self.frozen_epochs),
                "use_queue": Switch(False, True, at_epoch=self.stored_from),
            },
        )
