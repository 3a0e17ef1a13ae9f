"""Methods that keep what views take away, as trials beside `--keep-colour`
(benchmarks/encoders.py).

The embeddings of both are a linear layer of the trunk's features; their heads are in the loss. They
read the parameters of the views as they are sampled, so they serve one process without
micro-batches.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearfar.losses import SimCLR as SimCLRLoss
from nearfar.methods import Head, Method, Setup
from nearfar.methods.pairing import all_views
from nearfar.views import make
from nearfar.views.sampling import ViewParameters

COLUMNS = 11  # of the parameters of a view
WIDTH = 256  # of the small net's features
SAMPLED: deque[ViewParameters] = deque(maxlen=2)  # of the last two views
_sample = make.sample_view


def _recorded(*given: object) -> ViewParameters:
    SAMPLED.append(_sample(*given))  # type: ignore[arg-type]
    return SAMPLED[-1]


make.sample_view = _recorded  # type: ignore[assignment]


def targets(view: ViewParameters) -> Tensor:
    """Return what AugSelf predicts differences of, each with a spread near 1: crop, flip, colour,
    blur.
    """
    crop = view.box.float() / view.box.float().sum(1).mean()
    colour = torch.cat(
        [view.factors - 1, 4 * view.hue[:, None], view.grayscale.float()[:, None]], 1
    )
    blur = torch.where(view.blur, view.sigma, 0.0)[:, None]
    return torch.cat([4 * crop, view.flip.float()[:, None], 4 * colour, blur], 1)


def of_batch(views: Tensor) -> list[Tensor]:
    """Return the targets of two views of this batch, and forget them; zeros where a loss is tried
    on no views.
    """
    found = [targets(view) for view in SAMPLED if len(view.flip) == views.shape[1]]
    SAMPLED.clear()
    return found if len(found) == 2 else [torch.zeros(views.shape[1], COLUMNS)] * 2


class AugSelfLoss(nn.Module):
    """SimCLR on a projector, and the squared error of a head that predicts the difference of two
    views' parameters.

    Source: AugSelf (Lee et al., NeurIPS 2021), equation 4.
    """

    def __init__(self, temperature: float, weight: float, features: int) -> None:
        super().__init__()
        self.contrast, self.weight = SimCLRLoss(temperature), weight
        self.projector = Head((512, 128)).build(features)
        self.head = Head((512, 512, COLUMNS)).build(2 * features)

    def forward(self, views: Tensor) -> Tensor:
        projected = self.projector(views.flatten(0, 1).float()).chunk(2)
        first, second = of_batch(views)
        predicted = self.head(torch.cat([views[0], views[1]], 1).float())
        return self.contrast(*projected) + self.weight * F.mse_loss(predicted, first - second)


class TwoSpacesLoss(nn.Module):
    """SimCLR on two projectors: on one with the pairs whose colours differ, on the other with those
    that keep theirs.

    After leave-one-out contrastive spaces (Xiao et al., ICLR 2021). Of two views, images that keep
    their colours are in the second space alone; of four, the first two are in the first space and
    the others in the second.
    """

    def __init__(self, temperature: float, features: int) -> None:
        super().__init__()
        self.contrast = SimCLRLoss(temperature)
        self.spaces = nn.ModuleList(Head((512, 128)).build(features) for _ in range(2))

    def forward(self, views: Tensor) -> Tensor:
        if len(views) == 4:
            parts = [views[:2], views[2:]]
        else:
            first, second = of_batch(views)
            changed = (first[:, 5:10].any(1)) | (second[:, 5:10].any(1))
            parts = [views[:, changed], views[:, ~changed]]
        losses = [
            self.contrast(*space(part.flatten(0, 1).float()).chunk(2))
            * part.shape[1]
            / views.shape[1]
            for space, part in zip(self.spaces, parts, strict=True)
            if part.shape[1] > 1
        ]
        return torch.stack(losses).sum() * 2 / len(views)


@dataclass(frozen=True, kw_only=True)
class AugSelf(Method):
    """SimCLR with AugSelf, for the small net."""

    views = ("simclr", "simclr")
    temperature: float = 0.2
    weight: float = 1.0

    def setup(self, num_images: int) -> Setup:
        loss = AugSelfLoss(self.temperature, self.weight, WIDTH)
        return Setup(loss=loss, pairing=all_views(2), projector=Head((WIDTH,)))


@dataclass(frozen=True, kw_only=True)
class TwoSpaces(Method):
    """SimCLR in two spaces, for the small net."""

    temperature: float = 0.2
    pairs: int = 1

    @property
    def views(self) -> tuple[str, ...]:
        return ("simclr", "simclr") * self.pairs

    def setup(self, num_images: int) -> Setup:
        loss = TwoSpacesLoss(self.temperature, WIDTH)
        return Setup(loss=loss, pairing=all_views(2 * self.pairs), projector=Head((WIDTH,)))
