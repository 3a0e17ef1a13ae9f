"""Two published ranks of embeddings that need no labels: RankMe and LiDAR."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

EPSILON = 1e-7  # added to every share, in both papers
DELTA = 1e-4  # added to the covariance of views, as in the LiDAR paper


def rankme(z: Float[Tensor, "rows dim"]) -> float:
    """RankMe: exp of the entropy of the singular values of the embeddings, scaled to sum to 1.

    Garrido et al., "RankMe: Assessing the downstream performance of pretrained self-supervised representations by
    their rank", ICML 2023, equation 1. The rows are taken as they are, neither centred nor scaled: unlike in
    `effective_rank` a common offset counts as one direction, a long one. Between 1 and min(rows, dim); 1 where all is
    zero, NaN where anything is not finite.
    The paper takes 25 600 rows; of few rows it finds a lower rank, so compare runs of the same number of rows.
    """
    return _perplexity(torch.linalg.svdvals(_spanned(z.double()))) if z.isfinite().all() else math.nan


def lidar(z: Float[Tensor, "views images dim"], delta: float = DELTA) -> float:
    """LiDAR: the rank of what tells images apart, measured against what differs among views of one image.

    Thilak et al., "LiDAR: Sensing linear probing performance in joint embedding SSL architectures", ICLR 2024: exp of
    the entropy of the eigenvalues, scaled to sum to 1, of Sw^(-1/2) Sb Sw^(-1/2). Sb is the covariance of the images'
    means over views, Sw that of views about the mean of their image, plus delta on the diagonal. A direction in which
    an image's views differ as much as images do adds little, so unlike RankMe it is not misled by noise.
    Between 1 and min(images - 1, dim); 1 where all images have one mean, NaN where anything is not finite.
    The paper takes 50 views of each of 1000 images; compare runs of the same numbers.

    Raises ValueError for fewer than two views or images.
    """
    views, images, dim = z.shape
    if views < 2 or images < 2:
        raise ValueError(f"LiDAR needs at least two views of two images, got {views} of {images}")
    if not z.isfinite().all():
        return math.nan
    of_image = _spanned(z.double().flatten(0, 1)).view(views, images, -1)
    means = of_image.mean(0)
    within = (of_image - means).flatten(0, 1)
    covariance = within.T @ within / len(within)
    covariance.diagonal().add_(delta)
    between = (means - means.mean(0)).T / math.sqrt(images)
    # With Sw = L L', the eigenvalues of Sw^(-1/2) B B' Sw^(-1/2) are the squared singular values of L^-1 B.
    whitened = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), between, upper=False)
    values = torch.linalg.svdvals(whitened).square()
    return _perplexity(F.pad(values, (0, dim - len(values))))


def _spanned(rows: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows spanned"]:
    """The rows in coordinates of the space that they span, where that is smaller: all inner products stay."""
    return torch.linalg.qr(rows.T).R.T if rows.shape[1] > len(rows) else rows


def _perplexity(values: Float[Tensor, " values"]) -> float:
    if not values.any():
        return 1.0
    return float(torch.special.entr(values / values.sum() + EPSILON).sum().exp())
