"""Losses and nets over several views of an image, as trials of accuracy a minute
(benchmarks/photographs.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearfar.losses import SimCLR as SimCLRLoss
from nearfar.methods import Model, SimCLR
from nearfar.methods.method import Setup
from nearfar.methods.pairing import Embeddings, Pairing, all_views


class Averaged(nn.Module):
    """SimCLR of each view [views, batch, dim] against the mean of the others' unit rows; mean over
    the views.

    The averaged target is FastSiam's (Pototzky et al. 2022), with negatives in place of a
    predictor.
    """

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.contrast = SimCLRLoss(temperature)

    def forward(self, views: Tensor) -> Tensor:
        unit = F.normalize(views, dim=2)
        others = unit.sum(0) - unit
        return torch.stack([self.contrast(*pair) for pair in zip(unit, others, strict=True)]).mean()


class FroSSL(nn.Module):
    """Squared distance of unit rows to their mean over the views, and the log of each view's
    Frobenius norm.

    views [views, batch, dim]. Source: Skean et al., FroSSL, ECCV 2024.
    """

    def forward(self, views: Tensor) -> Tensor:
        unit = F.normalize(views, dim=2)
        norms = [(rows.T @ rows / len(rows)).square().sum().log() for rows in unit]
        return torch.stack(norms).mean() + 2 * (unit - unit.mean(0)).square().sum(2).mean()


class EMPSSL(nn.Module):
    """Coding rate of each view's unit rows, to be large, and cosine with the mean over the views,
    200 times.

    views [views, batch, dim]. Source: Tong et al., EMP-SSL, 2023, equation 3, with its 0.2 for the
    squared error.
    """

    def forward(self, views: Tensor) -> Tensor:
        unit = F.normalize(views, dim=2)
        _, batch, dim = unit.shape
        gram = torch.eye(dim) + unit.mT @ unit * (dim / (batch * 0.2))
        similar = F.cosine_similarity(unit, unit.mean(0, keepdim=True), dim=2).mean()
        return -0.5 * torch.logdet(gram).mean() - 200 * similar


OVER_VIEWS = {"averaged": Averaged, "frossl": FroSSL, "emp-ssl": EMPSSL}


@dataclass(frozen=True, kw_only=True)
class SeveralViews(SimCLR):
    """SimCLR on several large views, with a loss of `OVER_VIEWS`, or all pairs of them; and on
    small crops.

    Each small crop meets all large ones.
    """

    large: int = 2
    small: int = 0
    over: str = "pairs"

    @property
    def views(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("large",) * self.large + ("small",) * self.small

    def setup(self, num_images: int) -> Setup:
        setup = super().setup(num_images)
        if self.over in OVER_VIEWS:
            loss = (
                Averaged(self.temperature) if self.over == "averaged" else OVER_VIEWS[self.over]()
            )
            return replace(setup, loss=loss, pairing=all_views(self.large + self.small))
        pairs = [*combinations(range(self.large), 2)]
        pairs += [
            (big, self.large + little) for little in range(self.small) for big in range(self.large)
        ]
        return replace(
            setup,
            pairing=Pairing(terms=tuple((("projection", a), ("projection", b)) for a, b in pairs)),
        )


@dataclass(frozen=True, kw_only=True)
class Combined(SimCLR):
    """SimCLR of a whole view against the six means of two of the four patches of another.

    The patches pass through the net apart, and their features are averaged in front of the
    projector. Source: Fast-MoCo (Ci et al., ECCV 2022), without its momentum encoder.
    """

    views = ("whole",) + ("two patches",) * 6

    def setup(self, num_images: int) -> Setup:
        terms = tuple((("projection", 0), ("projection", 1 + number)) for number in range(6))
        return replace(super().setup(num_images), pairing=Pairing(terms=terms))


class CombinedModel(Model):
    """The model of `Combined`, which takes its two views and makes the patches of the second."""

    def forward(self, views: Sequence[Tensor], with_keys: bool = True) -> Embeddings:
        backbone, projector = self.online
        patches = [part for rows in views[1].chunk(2, 2) for part in rows.chunk(2, 3)]
        whole, parts = backbone(views[0]), backbone(torch.cat(patches)).chunk(4)
        seen = [whole, *((a + b) / 2 for a, b in combinations(parts, 2))]
        return {"projection": torch.stack(projector(torch.cat(seen)).chunk(7))}
