"""New points on a map that has no net: by their nearest neighbours."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.maps.affinities import entropic_affinities, nearest_squared
from nearfar.neighbours.nearest import Metric

NEIGHBOURS, PERPLEXITY = 25, 5.0
ROUNDS = 30  # after which a place moves by less than a thousandth of its neighbours' spread


class NeighbourPlacement(nn.Module):
    """Features [new, dim] -> places [new, 2] among old points, which stay; one new point does not see another.

    features, places: of the old points. A new point takes p_j|i of perplexity 5 over its 25 nearest old ones (fewer
    where there are fewer), starts at their median (both as openTSNE does: Policar, Strazar & Zupan 2019) and then goes
    where sum_j p_j|i log(1 + |y - y_j|^2), the attraction of cluster embedding, is stationary: the mean of the y_j with
    weights p_j|i q_j, repeated. The repulsion is left out: one point more changes it by 1 / n.
    """

    features: Tensor
    places: Tensor

    def __init__(
        self, features: Float[Tensor, "old dim"], places: Float[Tensor, "old 2"], metric: Metric = "cosine"
    ) -> None:
        super().__init__()
        self.metric = metric
        self.register_buffer("features", features)
        self.register_buffer("places", places)

    @torch.no_grad()
    def forward(self, features: Float[Tensor, "new dim"]) -> Float[Tensor, "new 2"]:
        k = min(NEIGHBOURS, len(self.places))
        squared, index = nearest_squared(self.features.float(), features, k, self.metric)
        probability = entropic_affinities(squared, min(PERPLEXITY, k))
        around = self.places[index]  # [new, k, 2]
        places = around.median(1).values
        for _ in range(ROUNDS):
            weights = probability / (1 + (places[:, None] - around).square().sum(2))
            places = (weights[..., None] * around).sum(1) / weights.sum(1, keepdim=True)
        return places
