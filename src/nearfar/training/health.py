"""Is the representation healthy? Measured on held-out images without labels, and said in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from nearfar.data import Images
from nearfar.methods import Model
from nearfar.networks import Encoder
from nearfar.training.seeding import stream
from nearfar.views import Views, make_views

# measured at most: retrieval gets harder with each image, and the cost grows with the square
MAX_IMAGES = 1024
# of the rows' length: a deviation below this is rounding, all rows are one point, and their rank is
# 1
FLAT = 1e-5

EPSILON = 1e-7  # added to every share of RankMe and LiDAR, as in both papers
DELTA = 1e-4  # added to the covariance of views, as in the LiDAR paper
LIDAR_IMAGES, LIDAR_VIEWS = 128, 8
BATCH = 256  # images at a time
VOTING = 5  # nearest images

# Thresholds of the verdict, from runs of 20 seconds of a small convolutional net on digits, 397
# held-out images: SimCLR (8 variants: batch norm or not, temperatures 0.05 to 5, 8 or 64
# dimensions), attraction only (5), untrained. Two minutes of the small net on CIFAR-10 (1000
# held-out images) gave the same three verdicts.
# attraction only ended at 0.0005 to 0.04, up to 0.12 on the way; SimCLR at 0.98 and more
COLLAPSED_SPREAD = 0.15
CROWDED_SPREAD = 0.5  # |mean unit row| above 0.87: the images share three quarters of their length
# runs broken by the learning rate used 1.3 to 2.7 of 64 dimensions; the lowest good one used 12.7
LOW_RANK = 5.0
# of the dimensions there are, for projectors of a few dimensions; a good one of 8 used 7.9
LOW_RANK_SHARE = 0.25
# own-view retrieval that no untrained net reached (0.03 to 0.07): it counts as learned however it
# began
KNOWN = 0.5
UNTRAINED = 0.1  # own-view retrieval to exceed when the measures before training are not known
# standard errors by which retrieval must exceed chance, and what it was before training
SIGNIFICANT = 3.0
UNCHANGED = 0.05  # relative change of the spread that counts as none
FEW_IMAGES = 16  # below this retrieval says nothing


@dataclass(frozen=True)
class Health:
    """Measures of a representation on held-out images. "Embeddings" leave the projector, "features"
    the backbone.

    images: how many were measured. feature_dim, embedding_dim: the dimensions there are.
    effective_rank: of the features; see `effective_rank`. embedding_rank: of the embeddings on the
    unit sphere. feature_spread, embedding_spread: see `spread`; 0 when all images are one point, 1
    when directions cancel. alignment: mean |z1 - z2|^2 of two views on the unit sphere; 0 is
    perfect, 2 is unrelated (Wang and Isola 2020). uniformity: log mean exp(-2 |zi - zj|^2) over
    pairs of images; 0 when all are one point, about -4 when uniform. view_retrieval: share of
    images whose other view is nearer than every other image's, both ways; chance is 1 / images.
    rankme, lidar: of the embeddings, see below; None where not measured. knn: accuracy of a vote
    of each image's nearest others by features, see `neighbour_accuracy`; None without labels. These
    three are no part of the verdict.
    """

    images: int
    feature_dim: int
    embedding_dim: int
    effective_rank: float
    embedding_rank: float
    feature_spread: float
    embedding_spread: float
    alignment: float
    uniformity: float
    view_retrieval: float
    rankme: float | None = None
    lidar: float | None = None
    knn: float | None = None

    @property
    def chance(self) -> float:
        """Return what `view_retrieval` is for embeddings that know nothing of the images."""
        return 1 / self.images

    def finite(self) -> bool:
        """Return whether every measure is a finite number."""
        return all(math.isfinite(value) for value in asdict(self).values() if value is not None)


def measure_health(
    z1: Float[Tensor, "images dim"],
    z2: Float[Tensor, "images dim"],
    h: Float[Tensor, "images features"],
    views: Float[Tensor, "views some dim"] | None = None,
) -> Health:
    """Measure the health of the embeddings z1, z2 of two views of each image and of the first
    view's features h.

    views: embeddings of several views of some of the images, for LiDAR. Raw rows of any float
    dtype; the first 1024 images are used. Not-finite input gives not-finite measures. Raises
    ValueError for fewer than two images.
    """
    if len(z1) < 2:
        raise ValueError(f"health needs at least two images, got {len(z1)}")
    with torch.no_grad():
        z1, z2, h = (x[:MAX_IMAGES].detach().cpu().double() for x in (z1, z2, h))
        u1, u2 = F.normalize(z1, dim=1), F.normalize(z2, dim=1)
        return Health(
            images=len(z1),
            feature_dim=h.shape[1],
            embedding_dim=z1.shape[1],
            effective_rank=effective_rank(h),
            embedding_rank=effective_rank(u1),
            feature_spread=spread(h),
            embedding_spread=spread(u1),
            alignment=float((u1 - u2).square().sum(1).mean()),
            uniformity=float(torch.pdist(u1).square().mul(-2).exp().mean().log()),
            view_retrieval=(_view_retrieval(u1, u2) + _view_retrieval(u2, u1)) / 2,
            rankme=rankme(z1),
            lidar=None if views is None else lidar(views.detach().cpu()),
        )


def effective_rank(x: Float[Tensor, "rows dim"]) -> float:
    """Return how many dimensions the rows use: exp of the entropy of the singular values, scaled to
    sum to 1.

    The effective rank of Roy and Vetterli (2007) and RankMe (Garrido et al. 2023), here of the
    centred rows, so that a common offset does not count. Between 1 (one direction, or one point)
    and min(rows - 1, dim).
    """
    centred = (x - x.mean(0)).double()
    if not torch.isfinite(centred).all():
        return math.nan
    if float(centred.norm()) <= FLAT * float(x.norm()):
        return 1.0
    gram = centred.T @ centred if x.shape[1] <= len(x) else centred @ centred.T
    singular = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    share = singular / singular.sum()
    return float(torch.special.entr(share).sum().exp())


def spread(x: Float[Tensor, "rows dim"]) -> float:
    """Spread of the rows' directions: root mean square over dimensions of the unit rows' deviation,
    times sqrt(dim).

    0 when all rows point in one direction, about 1 when they cancel: it is sqrt(1 - |mean unit
    row|^2). SimSiam's check takes the plain mean over dimensions, which also falls when few
    dimensions are used; the rank measures that here.
    """
    unit = F.normalize(x.double(), dim=1)
    return float((unit - unit.mean(0)).square().sum(1).mean().sqrt())


def _view_retrieval(a: Float[Tensor, "images dim"], b: Float[Tensor, "images dim"]) -> float:
    """Share of rows of a that are nearer to their own row of b than to any other row of b; ties do
    not count.
    """
    similarity = a @ b.T  # [images, images], at most MAX_IMAGES squared
    own = similarity.diagonal().clone()
    other = similarity.fill_diagonal_(-math.inf).amax(1)
    return float((own > other).double().mean())


def neighbour_accuracy(
    features: Float[Tensor, "images dim"], labels: Int[Tensor, " images"]
) -> float | None:
    """Return the share of images whose class most of their five nearest other images have, by
    cosine similarity; of classes with as many votes the nearest counts.

    labels: -1 for none; such images neither vote nor count. None for fewer than two labelled images
    or one class. The vote is among few images: `evaluate` finds higher numbers among all.
    """
    known = labels >= 0
    features, labels = F.normalize(features[known].double(), dim=1), labels[known]
    if len(labels.unique()) < 2:
        return None
    similarity = (features @ features.T).fill_diagonal_(-math.inf)
    near = similarity.topk(min(VOTING, len(labels) - 1)).indices
    votes = F.one_hot(labels[near], int(labels.max()) + 1).double()
    closer = 1e-3 * torch.arange(near.shape[1], 0, -1, dtype=torch.float64)  # decides ties
    chosen = (votes * (1 + closer)[None, :, None]).sum(1).argmax(1)
    return float((chosen == labels).double().mean())


def rankme(z: Float[Tensor, "rows dim"]) -> float:
    """RankMe: exp of the entropy of the singular values of the embeddings, scaled to sum to 1.

    Garrido et al., "RankMe: Assessing the downstream performance of pretrained self-supervised
    representations by their rank", ICML 2023, equation 1. The rows are taken as they are, neither
    centred nor scaled: unlike in `effective_rank` a common offset counts as one direction, a long
    one. Between 1 and min(rows, dim); 1 where all is zero, NaN where anything is not finite. The
    paper takes 25 600 rows; of few rows it finds a lower rank, so compare runs of the same number
    of rows.
    """
    return (
        _perplexity(torch.linalg.svdvals(_spanned(z.double()))) if z.isfinite().all() else math.nan
    )


def lidar(z: Float[Tensor, "views images dim"]) -> float:
    """LiDAR: the rank of what tells images apart, measured against what differs among views of one
    image.

    Thilak et al., "LiDAR: Sensing linear probing performance in joint embedding SSL architectures",
    ICLR 2024: exp of the entropy of the eigenvalues, scaled to sum to 1, of Sw^(-1/2) Sb Sw^(-1/2).
    Sb is the covariance of the images' means over views, Sw that of views about the mean of their
    image, plus 0.0001 on the diagonal. A direction in which an image's views differ as much as
    images do adds little, so unlike RankMe it is not misled by noise. Between 1 and min(images - 1,
    dim); 1 where all images have one mean, NaN where anything is not finite or too long. The paper
    takes 50 views of each of 1000 images; compare runs of the same numbers.

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
    covariance.diagonal().add_(DELTA)
    between = (means - means.mean(0)).T / math.sqrt(images)
    # With Sw = L L', the eigenvalues of Sw^(-1/2) B B' Sw^(-1/2) are the squared singular values of
    # L^-1 B.
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if failed:  # embeddings so long that this is lost in rounding, as in a run that diverges
        return math.nan
    whitened = torch.linalg.solve_triangular(factor, between, upper=False)
    values = torch.linalg.svdvals(whitened).square()
    return _perplexity(F.pad(values, (0, dim - len(values))))


def _spanned(rows: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows spanned"]:
    """Return the rows in coordinates of the space that they span, where that is smaller: all inner
    products stay.
    """
    return torch.linalg.qr(rows.T).R.T if rows.shape[1] > len(rows) else rows


def _perplexity(values: Float[Tensor, " values"]) -> float:
    if not values.any():
        return 1.0
    return float(torch.special.entr(values / values.sum() + EPSILON).sum().exp())


def validation_health(
    model: Model, validation: Images, plan: Views, seed: int, *, with_lidar: bool = False
) -> Health:
    """Measure the health of a model on held-out images, from two views each that are the same at
    every call.

    with_lidar: LiDAR too, on 8 views of the first 128 images, made as the first two views are, in
    turn; with 512 images this is three quarters of the work again. Where the images have labels,
    the accuracy of their neighbours by features of the whole images.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()

    def embed(
        rows: slice, positions: Sequence[int], generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Embeddings [views, rows, dim], and the first view's features [rows, features]."""
        pixels = validation.gather(torch.arange(rows.start, rows.stop)).to(device)
        chosen = plan.pick(positions)
        with torch.no_grad():
            made = make_views(
                pixels, chosen, generator, validation.mean, validation.std, rows, len(validation)
            )
            features = [model.backbone(view) for view in made]
            return torch.stack([model.online[1](h) for h in features]).float().cpu(), features[
                0
            ].float().cpu()

    parts = [
        slice(start, min(start + BATCH, len(validation)))
        for start in range(0, len(validation), BATCH)
    ]
    pairs, features = zip(
        *[embed(rows, (0, 1), stream(seed, "health")) for rows in parts], strict=True
    )
    z = torch.cat(pairs, 1)
    some = slice(0, min(LIDAR_IMAGES, len(validation)))
    numbers = range(2, LIDAR_VIEWS) if with_lidar else ()
    more = [embed(some, (number % 2,), stream(seed, "health", number))[0] for number in numbers]
    health = measure_health(
        z[0], z[1], torch.cat(features), torch.cat([z[:, some], *more]) if with_lidar else None
    )
    if validation.labels is not None:
        whole = _features(model, validation, device)
        labels = torch.from_numpy(validation.labels[: len(whole)])
        health = replace(health, knn=neighbour_accuracy(whole, labels))
    model.train(was_training)
    return health


def _features(model: Model, images: Images, device: torch.device) -> Float[Tensor, "images dim"]:
    """Return the features of whole images, as the encoder of a run gives them."""
    size, channels, range_ = images.image_size, images.channels, images.value_range
    encoder = Encoder(model.backbone, size, channels, images.mean, images.std, range_).to(device)
    rows = torch.arange(min(len(images), MAX_IMAGES)).split(BATCH)
    with torch.no_grad():
        parts = [encoder(images.gather(part).to(device)).float().cpu() for part in rows]
    return torch.cat(parts)


State = Literal["healthy", "collapsed", "partly collapsed", "not learning", "diverged", "unclear"]


@dataclass(frozen=True)
class Verdict:
    """Judgement by the measures: healthy or not, the state in a word or two, and words for a person
    with what to try.
    """

    healthy: bool
    state: State
    words: str


FEW_EPOCHS = 10  # below this a run is short, whatever else there is to try


def verdict(health: Health, first: Health | None = None, epochs: float | None = None) -> Verdict:
    """Judge a representation from its health now and, better, from the health before training as
    well.

    epochs: that were trained; after fewer than ten the advice begins with more of them.

    collapsed: all images have nearly one embedding (an untrained network without `first` looks the
    same). partly collapsed: few dimensions are used, or all embeddings crowd around one direction.
    not learning: the other view of an image is found no better than by chance, or than before
    training. unclear: fewer than 16 images. diverged: numbers that are not finite.
    """
    state = _state(health, first)
    return Verdict(
        state == "healthy", state, f"{state.capitalize()}: {_words(state, health, first, epochs)}"
    )


def _state(health: Health, first: Health | None) -> State:
    if not health.finite():
        return "diverged"
    learned = _learned(health, first)
    if health.embedding_spread < COLLAPSED_SPREAD:
        still = (
            first is not None
            and abs(health.embedding_spread / max(first.embedding_spread, FLAT) - 1) < UNCHANGED
        )
        return "not learning" if still and not learned else "collapsed"
    ranks = (
        (health.embedding_rank, health.embedding_dim),
        (health.effective_rank, health.feature_dim),
    )
    if any(
        rank < min(LOW_RANK, LOW_RANK_SHARE * min(dim, health.images - 1)) for rank, dim in ranks
    ):
        return "partly collapsed"
    if health.images < FEW_IMAGES:
        return "unclear"
    if not learned:
        return "not learning"
    return "partly collapsed" if health.embedding_spread < CROWDED_SPREAD else "healthy"


def _learned(health: Health, first: Health | None) -> bool:
    """Return whether own-view retrieval is above chance and above what it was before training (or
    untrained nets reach).
    """
    now, images = health.view_retrieval, health.images
    if now < health.chance + SIGNIFICANT * math.sqrt(health.chance * (1 - health.chance) / images):
        return False
    if now >= KNOWN:
        return True
    if first is None or not first.finite():
        return now > UNTRAINED
    before = first.view_retrieval
    return now - before > SIGNIFICANT * math.sqrt(
        (now * (1 - now) + before * (1 - before)) / images
    )


def _words(state: State, health: Health, first: Health | None, epochs: float | None) -> str:
    few = epochs is not None and epochs < FEW_EPOCHS
    early = "train on first, with more `minutes` or `epochs`. If that does not help, try"
    then = f"It is early, after {epochs:.3g} epochs: {early}" if few else "Try"
    more = "" if few else "more `epochs`, "
    late = "" if few else "; if it is early, train on"
    before = "" if first is None else f", {first.view_retrieval:.1%} before training"
    retrieval = (
        f"the other view of an image is found among {health.images} images in "
        f"{health.view_retrieval:.1%} of cases "
        f"(chance {health.chance:.1%}{before})"
    )
    rank = (
        f"embeddings use about {health.embedding_rank:.0f} of {health.embedding_dim} dimensions, "
        f"features {health.effective_rank:.0f} of {health.feature_dim}"
    )
    began = "" if first is None else f", {first.embedding_spread:.2g} before training"
    room = f"spread {health.embedding_spread:.2g} of 1"
    return {
        "healthy": f"{retrieval}; {rank}; {room}.",
        "diverged": "the embeddings are not finite numbers. "
        "Try a lower `lr`, more `warmup_epochs` or `clip_gradient=1`.",
        "unclear": f"{health.images} held-out images are too few to tell; give at least "
        f"{FEW_IMAGES}.",
        "collapsed": f"all images have nearly the same embedding ({room}{began}), so the "
        f"encoder cannot tell them apart. "
        f"{then} a lower `lr`, more `warmup_epochs`, a larger `batch_size`, or more repulsion: "
        "a lower temperature, "
        "more negatives, or another method.",
        "partly collapsed": f"{rank}, {room}: the images lie in a small part of the space "
        f"there is. "
        f"{then} a lower `lr`, a lower temperature, stronger views or a larger `batch_size`{late}.",
        "not learning": f"{retrieval}, not clearly better than without training. "
        f"{then} {more}a higher `lr` (a lower one if the loss jumps), a lower temperature, "
        f"or weaker views.",
    }[state]
