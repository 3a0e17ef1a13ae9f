"""Map quality: whether points that are near on a map are near in feature space, and the other way
round.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, Int64
from sklearn.neighbors import NearestNeighbors
from torch import Tensor
from torch.nn import functional as F

from nearfar.data.resources import usable_cores
from nearfar.neighbours import nearest_rows

NEIGHBOURS = 15
# images whose neighbours on the map are ranked in feature space: time is images x ranked
MOST_RANKED = 2000
CHUNK_OF_PAIRS = 2**24


@dataclass(frozen=True)
class MapQuality:
    """Quality metrics of a map, 0..1 except for counts; accuracies are None without labels.

    neighbours: k, 15, or fewer for few images. kept: the share of the k nearest others of each
    image in feature space (cosine) that are among its k nearest on the map; neighbours_kept: its
    mean. trustworthiness: Venna & Kaski 2001, as in scikit-learn, over `ranked` images (all, or a
    random 2000), each ranked among all others. knn_map, knn_features: leave-one-out accuracy of the
    vote of the k nearest others.

    >>> quality = map_quality(torch.rand(50, 8), torch.rand(50, 2))
    >>> quality.images, quality.neighbours
    (50, 15)
    """

    images: int
    neighbours: int
    kept: Float32[np.ndarray, " images"]
    trustworthiness: float
    ranked: int
    knn_map: float | None = None
    knn_features: float | None = None

    @property
    def neighbours_kept(self) -> float:
        return float(self.kept.mean())

    @property
    def words(self) -> str:
        """One line of text."""
        line = (
            f"keeps {100 * self.neighbours_kept:.0f} % of the {self.neighbours} nearest "
            f"neighbours, "
            f"trustworthiness {self.trustworthiness:.3f}"
        )
        if self.knn_map is None or self.knn_features is None:
            return line
        accuracies = (
            f"{100 * self.knn_map:.1f} % here, {100 * self.knn_features:.1f} % in the features"
        )
        return f"{line}, {self.neighbours}-NN accuracy {accuracies}"

    def numbers(self) -> dict[str, float | int | None]:
        """All but the shares of single images, for JSON."""
        numbers = asdict(self)
        del numbers["kept"]
        return {**numbers, "neighbours_kept": self.neighbours_kept}


def map_quality(
    features: Float[Tensor, "images dim"],
    coordinates: Float[Tensor, "images 2"],
    labels: Int64[np.ndarray, " images"] | None = None,
    *,
    near: Int64[Tensor, "images near"] | None = None,
    most_ranked: int = MOST_RANKED,
    seed: int = 0,
) -> MapQuality | None:
    """Measure a map; see `MapQuality`. None for fewer than three images.

    features are compared by cosine, coordinates by Euclidean distance. labels: -1 for none; such
    images neither vote nor count. near: the nearest others of each image in feature space, nearest
    first, if known: 15, or all of fewer. most_ranked: images over which trustworthiness is
    averaged; of more, a random sample (by `seed`), with a standard error of at most 0.011. Exact
    neighbours, in linear memory.

    >>> plane = torch.rand(50, 2)
    >>> map_quality(torch.cat([plane, torch.ones(50, 1)], 1), plane).neighbours_kept > 0.5
    True
    """
    count = len(coordinates)
    if count < 3:
        return None
    features, coordinates = features.detach().cpu().float(), coordinates.detach().cpu().float()
    k = min(NEIGHBOURS, (count - 1) // 2)
    near = nearest_rows(features, k=k).index if near is None else near[:, :k]
    tree = NearestNeighbors(n_neighbors=k, n_jobs=usable_cores()).fit(coordinates.numpy())
    on_map = torch.from_numpy(tree.kneighbors(return_distance=False))
    kept = (on_map[:, :, None] == near[:, None, :]).any(2).float().mean(1).numpy()
    chosen = torch.arange(count)
    if count > most_ranked:
        chosen = (
            torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:most_ranked]
            .sort()
            .values
        )
    quality = MapQuality(
        count, k, kept, trustworthiness(features, on_map[chosen], chosen), len(chosen)
    )
    if labels is None or not (labels >= 0).any():
        return quality
    truth = torch.from_numpy(labels)
    return replace(
        quality,
        knn_map=left_out_accuracy(on_map, truth),
        knn_features=left_out_accuracy(near, truth),
    )


def trustworthiness(
    features: Float[Tensor, "images dim"],
    on_map: Int[Tensor, "ranked k"],
    ranked: Int[Tensor, " ranked"],
) -> float:
    """1 - 2 / (k (2 n - 3 k - 1)) times the mean over images of sum_j max(0, rank_ij - k), j the k
    nearest on the map.

    The rank, from 1, is by cosine among all n - 1 others. ranked: the images whose rows `on_map`
    holds. Source: Venna & Kaski 2001, Eq. 1; sklearn.manifold.trustworthiness.
    """
    rows, count, k = F.normalize(features, dim=1), len(features), on_map.shape[1]
    excess = 0
    for some, those in zip(
        *(part.split(max(1, CHUNK_OF_PAIRS // count)) for part in (ranked, on_map)), strict=True
    ):
        cosine = rows[some] @ rows.T
        cosine[torch.arange(len(some)), some] = -torch.inf
        ends = cosine.gather(1, those).sort(1).values.numpy()
        for row, end in zip(cosine.numpy(), ends, strict=True):
            ranks = (1 + np.count_nonzero(row > cosine_of_neighbour) for cosine_of_neighbour in end)
            excess += sum(max(0, rank - k) for rank in ranks)
    return 1 - 2 * excess / (len(ranked) * k * (2 * count - 3 * k - 1))


def left_out_accuracy(near: Int[Tensor, "images k"], labels: Int[Tensor, " images"]) -> float:
    """Share of the labelled images whose label is that of most of their neighbours; the smaller
    class wins ties.
    """
    known = labels >= 0
    classes, number = labels[known].unique(return_inverse=True)
    vote = torch.full_like(
        labels, len(classes)
    )  # images without a label vote for a class that never wins
    vote[known] = number
    votes = torch.zeros(len(near), len(classes) + 1).scatter_add_(
        1, vote[near], torch.ones(near.shape)
    )
    return float((votes[:, :-1].argmax(1) == vote)[known].float().mean())
