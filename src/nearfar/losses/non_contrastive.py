"""Losses without negatives: predictions (BYOL, SimSiam), features (Barlow Twins, VICReg, W-MSE,
LeJEPA) and codes (SwAV).
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.linalg import vecdot
from torch.nn import functional as F

from nearfar.device import in_float64
from nearfar.losses import checks, running
from nearfar.pairs import sample_order
from nearfar.pairs.arithmetic import (
    LOWEST,
    Rows,
    Scalar,
    Views,
    accumulation_dtype,
    check_rows,
    refuse_double_backward,
    unit_rows,
)
from nearfar.pairs.joined import on_joined_batch
from nearfar.pairs.shares import active_shares, sampled_alike


class NegativeCosine(nn.Module):
    """2 - 2 cos(prediction, projection), mean over the batch; in [0, 4].

    Shapes: prediction, projection [batch, dim], the projection of the other view (BYOL: the
    momentum encoder's) and without gradient: one direction. Source: Grill et al. 2020 (BYOL), Eq.
    2; Chen, He 2021 (SimSiam), Eq. 1. Differs from the paper:
    1. SimSiam writes -cos; this is twice that plus 2, so its gradient is twice SimSiam's.

    >>> z = torch.eye(4)
    >>> NegativeCosine()(z, z), NegativeCosine()(z, -z)
    (tensor(0.), tensor(4.))
    """

    def __init__(self, gather: bool = False) -> None:
        super().__init__()
        self.gather = gather

    @on_joined_batch("prediction", "projection")
    def forward(self, prediction: Rows, projection: Rows) -> Scalar:
        check_rows(prediction=prediction, projection=projection)
        return 2 - 2 * vecdot(unit_rows(prediction), unit_rows(projection.detach())).mean()


class BarlowTwins(nn.Module):
    """sum_i (c_ii - 1)^2 + redundancy sum_{i != j} c_ij^2, c the cross-correlation of the batch.

    Each feature is standardised over the batch (batch normalisation without affine or running
    statistics, eps 1e-5). Shapes: z1, z2 [batch, dim]. Source: Zbontar et al. 2021, Eq. 1-2.

    >>> z = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    >>> BarlowTwins()(z, -z)  # (-1 - 1)^2 in each dimension
    tensor(7.9999)
    """

    def __init__(self, redundancy: float = 0.0051, gather: bool = False) -> None:
        super().__init__()
        checks.not_negative(redundancy=redundancy)
        self.redundancy = redundancy
        self.gather = gather

    @on_joined_batch("z1", "z2")
    def forward(self, z1: Rows, z2: Rows) -> Scalar:
        check_rows(2, z1=z1, z2=z2)
        a, b = (
            F.batch_norm(z.to(accumulation_dtype(z)), None, None, training=True) for z in (z1, z2)
        )
        c = a.T @ b / len(a)  # [dim, dim]
        diagonal = c.diagonal()
        off_diagonal = c - diagonal.diag()
        return (diagonal - 1).square().sum() + self.redundancy * off_diagonal.square().sum()


class VICReg(nn.Module):
    """invariance MSE(z1, z2) + variance hinge on the deviations + covariance of the features, both
    views.

    Hinge: half the mean of max(0, 1 - sqrt(var + 1e-4)) of each view. Covariance: squared
    off-diagonal entries, summed and divided by dim, of both views. Shapes: z1, z2 [batch, dim], not
    normalised. Source: Bardes et al. 2022, Eq. 1-6. Differs from the paper:
    1. Eq. 6 adds the hinges of the two views; released code and this module take half of each.
    2. Eq. 5 sums the squared differences over the features; released code and this module take
       their mean.

    >>> z = torch.tensor([[2.0, 2.0], [2.0, -2.0], [-2.0, 2.0], [-2.0, -2.0]])
    >>> VICReg()(z, z + 2)  # 25 times the squared difference
    tensor(100.)
    """

    def __init__(
        self,
        invariance: float = 25.0,
        variance: float = 25.0,
        covariance: float = 1.0,
        gather: bool = False,
    ) -> None:
        super().__init__()
        checks.not_negative(invariance=invariance, variance=variance, covariance=covariance)
        self.invariance = invariance
        self.variance = variance
        self.covariance = covariance
        self.gather = gather

    @on_joined_batch("z1", "z2")
    def forward(self, z1: Rows, z2: Rows) -> Scalar:
        check_rows(2, z1=z1, z2=z2)
        z1, z2 = (z.to(accumulation_dtype(z)) for z in (z1, z2))
        spread = (_hinge(z1) + _hinge(z2)) / 2
        correlated = _covariance(z1) + _covariance(z2)
        return (
            self.invariance * F.mse_loss(z1, z2)
            + self.variance * spread
            + self.covariance * correlated
        )


def _hinge(z: Rows) -> Scalar:
    return F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean()


def _covariance(z: Rows) -> Scalar:
    centred = z - z.mean(0)
    c = centred.T @ centred / (len(z) - 1)  # [dim, dim]
    return (c - c.diagonal().diag()).square().sum() / z.shape[1]


class WMSE(nn.Module):
    """2 - 2 cos of the two views after whitening each over sub-batches of images, mean over the
    batch.

    The batch is shuffled (torch's global generator of the CPU) and cut into batch // sub_batch
    nearly equal parts, so that no part is smaller than sub_batch and none is left over; a batch
    smaller than sub_batch is one part. Each part of each view is centred and multiplied by the
    inverse Cholesky factor of its covariance, in float64. Shapes: z1, z2 [batch, dim]. Defaults:
    sub_batch None, which means 2 dim; iterations 1 (shuffles averaged); eps 1e-6, the share of the
    mean variance that is added to the diagonal of the covariance. Errors: also ValueError for a
    part of dim images or fewer. Source: Ermolov et al. 2021 (Whitening for self-supervised
    representation learning), Eq. 4-6. Differs from the paper:
    1. Left-over images join the other parts; released code needs a batch that divides by the
       sub-batch.
    2. The covariance is regularised in proportion to the mean variance and factored in float64.

    >>> z = torch.randn(64, 8)
    >>> WMSE()(z, z) < 1e-6
    tensor(True)
    """

    def __init__(
        self,
        sub_batch: int | None = None,
        iterations: int = 1,
        eps: float = 1e-6,
        gather: bool = False,
    ) -> None:
        super().__init__()
        checks.at_least(2, **({} if sub_batch is None else {"sub_batch": sub_batch}))
        checks.at_least(1, iterations=iterations)
        checks.not_negative(eps=eps)
        self.sub_batch = sub_batch
        self.iterations = iterations
        self.eps = eps
        self.gather = gather

    @on_joined_batch("z1", "z2")
    def forward(self, z1: Rows, z2: Rows) -> Scalar:
        check_rows(2, z1=z1, z2=z2)
        batch, dim = z1.shape
        sub_batch = self.sub_batch or 2 * dim
        parts = max(1, batch // sub_batch)
        if batch // parts <= dim:
            raise ValueError(
                f"whitening {dim} features needs more than {dim} images at a time, got "
                f"{batch // parts}: "
                "use a larger batch or sub_batch, or fewer features"
            )
        z = in_float64(torch.stack((z1, z2)))
        losses = []
        for _ in range(self.iterations):
            order = (
                sample_order(batch, z.device) if parts > 1 else torch.arange(batch, device=z.device)
            )
            for rows in order.tensor_split(parts):
                a, b = unit_rows(self._whiten(z[:, rows]))
                losses.append(2 - 2 * vecdot(a, b))
        return torch.cat(losses).mean().to(z1.device, accumulation_dtype(z1, z2))

    def _whiten(self, z: Float[Tensor, "views rows dim"]) -> Float[Tensor, "views rows dim"]:
        centred = z - z.mean(1, keepdim=True)
        covariance = centred.mT @ centred / (z.shape[1] - 1)
        mean_variance = covariance.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
        ridge = (self.eps * mean_variance).clamp(min=1e-12) * torch.eye(
            z.shape[2], dtype=z.dtype, device=z.device
        )
        factor, _ = torch.linalg.cholesky_ex(
            covariance + ridge
        )  # nan in, nan out: the loop reports it
        return torch.linalg.solve_triangular(factor, centred.mT, upper=False).mT


class SIGReg(nn.Module):
    """Distance of the embeddings from a standard normal distribution, along random directions.

    batch * integral of |phi(t) - exp(-t^2 / 2)|^2 exp(-t^2 / 2) dt, mean over the directions, where
    phi(t) is the mean of exp(i t s) over the batch's projections s on a direction (the statistic of
    Epps and Pulley). The integral is the trapezoidal rule at 17 points from -5 to 5, to which
    projections that are 10.05 apart look alike. The unit directions are drawn anew at each call
    (torch's global generator of the CPU). The value of a sample of the standard normal distribution
    is about 1.06, whatever its size; that of equal rows grows with the batch. Time and memory:
    batch * num_directions; processes share the rows of a joined batch. Shapes: z [batch, dim], not
    normalised. Default: 1024 directions. Source: Balestriero, LeCun 2025 (LeJEPA), section 4.
    Differs from the paper:
    1. Points t and -t, whose terms are equal, are computed once; t = 0, whose term is zero, never.

    >>> z = torch.randn(256, 8)
    >>> SIGReg()(z) < 2, SIGReg()(0 * z) > 100
    (tensor(True), tensor(True))
    """

    def __init__(self, num_directions: int = 1024, gather: bool = False) -> None:
        super().__init__()
        checks.at_least(1, num_directions=num_directions)
        self.num_directions = num_directions
        self.gather = gather

    @on_joined_batch("z")
    def forward(self, z: Rows) -> Scalar:
        check_rows(2, z=z)
        return _sigreg(z[None].to(accumulation_dtype(z)), self.num_directions)


class LeJEPA(nn.Module):
    """(1 - lam) (squared distance from the mean of the full-size views) + lam SIGReg.

    The distance is the mean over features, batch and views; the gradient also flows through the
    mean of the views. SIGReg is the mean over the views, all on the same directions. Shapes:
    projections [views, batch, dim], not normalised, the large_views full-size crops first.
    Defaults: lam 0.05; 2 large views. Errors: also ValueError for fewer than two views or than
    large_views. Source: Balestriero, LeCun 2025 (LeJEPA), section 5. Differs from the paper:
    1. The paper sums the squared distance over the features; released code and this module take the
       mean.

    >>> z = torch.eye(4)
    >>> LeJEPA(lam=0.0)(torch.stack([z, z + 2]))  # each view is 1 from the mean of both
    tensor(1.)
    """

    def __init__(
        self,
        lam: float = 0.05,
        num_directions: int = 1024,
        large_views: int = 2,
        gather: bool = False,
    ) -> None:
        super().__init__()
        checks.fraction(lam=lam)
        checks.at_least(1, num_directions=num_directions, large_views=large_views)
        self.lam = lam
        self.num_directions = num_directions
        self.large_views = large_views
        self.gather = gather

    @on_joined_batch("projections")
    def forward(self, projections: Views) -> Scalar:
        least = max(2, self.large_views)
        if projections.ndim != 3 or len(projections) < least:
            shape = list(projections.shape)
            raise ValueError(
                f"projections must be [{least} views or more, batch, dim], got {shape}"
            )
        check_rows(2, projections=projections[0])
        z = projections.to(accumulation_dtype(projections))
        distance = (z - z[: self.large_views].mean(0)).square().mean()
        return (1 - self.lam) * distance + self.lam * _sigreg(z, self.num_directions)


STEP, STEPS = 0.625, 8  # 17 points from -5 to 5


def _sigreg(z: Views, num_directions: int) -> Scalar:
    """SIGReg of each view, mean over the views; all are projected on the same directions."""
    _, batch, dim = z.shape
    drawn = sampled_alike(
        lambda: torch.randn(num_directions, dim, dtype=torch.float32),
        *(num_directions, dim),
        device=z.device,
        dtype=torch.float32,
    )
    directions = unit_rows(drawn, z.dtype)
    shares = active_shares(batch)
    own = z if shares is None else z[:, shares.rows[shares.rank]]
    sums = _CosSinSums.apply(own @ directions.T)
    real, imaginary = (sums if shares is None else shares.added_up(sums)) / batch
    t = STEP * torch.arange(1, STEPS + 1, device=z.device, dtype=z.dtype)
    normal = (-t.square() / 2).exp()
    weights = 2 * STEP * normal  # of t and -t
    weights[-1] /= 2
    distances = (real - normal[:, None, None]).square() + imaginary.square()
    return batch * (weights[:, None] * distances.flatten(1)).sum(0).mean()


class _CosSinSums(torch.autograd.Function):
    """cos(t s) and sin(t s), each summed over the rows: [views, rows, directions] -> [2, points,
    views, directions].

    The gradient is hand-written, so that memory holds cos and sin of one point at a time.
    """

    @staticmethod
    def forward(ctx: Any, s: Tensor) -> Tensor:
        ctx.save_for_backward(s)
        sums = [torch.stack((cos.sum(1), sin.sum(1))) for cos, sin in _cos_sin(s)]
        return torch.stack(sums, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        refuse_double_backward()
        (s,) = ctx.saved_tensors
        total = torch.zeros_like(s)
        for point, (cos, sin) in enumerate(_cos_sin(s)):
            of_cos, of_sin = (point + 1) * STEP * grad[:, point, :, None]
            total.addcmul_(cos, of_sin).addcmul_(sin, of_cos, value=-1)
        return total


def _cos_sin(s: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """cos(t s) and sin(t s) of each point t > 0 in turn: by addition of angles, which costs
    less.
    """
    angles = STEP * s
    cos, sin = first_cos, first_sin = angles.cos(), angles.sin()
    yield cos, sin
    for _ in range(STEPS - 1):
        cos, sin = (
            (cos * first_cos).addcmul_(sin, first_sin, value=-1),
            (sin * first_cos).addcmul_(cos, first_sin),
        )
        yield cos, sin


class SwAV(nn.Module):
    """-sum_p code_p log softmax(z.prototypes / t)_p: codes from the first two views, predictions
    from the other views.

    Mean over these pairs of views and over the batch. Codes come from Sinkhorn's iteration on the
    batch (and on the queue of past embeddings, once that is full), without gradient. Shapes:
    projections [views, batch, dim], the full-size crops first. State: parameter `prototypes`
    [num_prototypes, dim], scaled to unit rows in place at each forward; buffer `queue` [2,
    queue_size, dim] and number `queued` (rows filled), pushed to in training mode and saved in the
    state. Attributes to schedule: `freeze_prototypes` (they get no gradient; first epoch) and
    `use_queue` (from epoch 15, when the queue begins to fill). The temperature cannot be learned:
    it is chosen with `epsilon`, the sharpness of the codes, and would only adapt the sharpness of
    the predictions to that. Errors: also ValueError for fewer than two views and another dim than
    the prototypes'. Source: Caron et al. 2020 (SwAV), Eq. 1-6.

    >>> views = torch.randn(2, 16, 8)
    >>> SwAV(dim=8, num_prototypes=32)(views).shape
    torch.Size([])
    """

    prototypes: nn.Parameter
    queue: Tensor

    def __init__(
        self,
        dim: int,
        num_prototypes: int = 3000,
        temperature: float = 0.1,
        epsilon: float = 0.05,
        iterations: int = 3,
        queue_size: int = 0,
        gather: bool = False,
    ) -> None:
        super().__init__()
        checks.positive(temperature=temperature, epsilon=epsilon)
        checks.at_least(1, dim=dim, iterations=iterations)
        checks.at_least(2, num_prototypes=num_prototypes)
        checks.at_least(0, queue_size=queue_size)
        self.temperature = temperature
        self.epsilon = epsilon
        self.iterations = iterations
        self.gather = gather
        self.freeze_prototypes = False
        self.use_queue = True
        self.prototypes = nn.Parameter(unit_rows(torch.randn(num_prototypes, dim)))
        self.register_buffer("queue", torch.zeros(2, queue_size, dim))
        self.queued = 0  # a number, as the CPU would have to wait for a buffer on a GPU

    def get_extra_state(self) -> Tensor:
        """Return the number of rows in the queue, for the state that is saved."""
        return torch.tensor(self.queued)

    def set_extra_state(self, state: Tensor) -> None:
        """Go on with a saved number of rows in the queue."""
        self.queued = int(state)

    @on_joined_batch("projections")
    def forward(self, projections: Views) -> Scalar:
        dim = self.prototypes.shape[1]
        if projections.ndim != 3 or projections.shape[0] < 2 or projections.shape[2] != dim:
            shape = list(projections.shape)
            raise ValueError(
                f"projections must be [2 views or more, batch, {dim}] like the prototypes, "
                f"got {shape}"
            )
        check_rows(2, projections=projections[0])
        with torch.no_grad():
            self.prototypes.copy_(unit_rows(self.prototypes))
        prototypes = self.prototypes.detach() if self.freeze_prototypes else self.prototypes
        z = unit_rows(projections)
        scores = z @ prototypes.to(z.dtype, copy=True).T  # [views, batch, prototypes]
        codes = self._codes(z[:2].detach(), scores[:2].detach())
        log_p = F.log_softmax(scores / self.temperature, dim=-1)
        views = len(z)
        # Each of the two views' codes against every view's prediction, less its own.
        pairs = (codes.sum(0) * log_p).sum() - (codes * log_p[:2]).sum()
        return -pairs / (2 * (views - 1) * z.shape[1])

    @torch.no_grad()
    def _codes(
        self, z: Views, scores: Float[Tensor, "views batch prototypes"]
    ) -> Float[Tensor, "views batch prototypes"]:
        batch, size = z.shape[1], self.queue.shape[1]
        filling = size > 0 and self.use_queue
        if filling and self.queued == size:
            queue = running.read(self.queue)
            past = queue.to(z.dtype) @ self.prototypes.to(z.dtype).T
            # A batch that was not finite left rows unfilled, which are zero: the queue is not full
            # yet.
            past = torch.where((queue != 0).any(2).all(), past, -torch.inf)
            scores = torch.cat((scores, past), dim=1)
        if filling and self.training:
            pushed = torch.cat((z.to(self.queue.dtype), self.queue), dim=1)[:, :size]
            self.queue.copy_(torch.where(z.isfinite().all(), pushed, self.queue))
            self.queued = min(self.queued + batch, size)
        return torch.stack([sinkhorn(s, self.epsilon, self.iterations)[:batch] for s in scores])


@torch.no_grad()
def sinkhorn(
    scores: Float[Tensor, "rows prototypes"], epsilon: float, iterations: int
) -> Float[Tensor, "rows prototypes"]:
    """Balanced soft assignment: each row sums to 1, each column to nearly rows / prototypes.

    Sinkhorn-Knopp on exp(scores / epsilon), in logarithms (nothing overflows); the rows are scaled
    last. A row of -inf takes no part, and stays zero. Source: Caron et al. 2020, Eq. 3-5.
    """
    log_q = scores / epsilon
    for _ in range(iterations):
        log_q = log_q - log_q.logsumexp(0)
        log_q = log_q - log_q.logsumexp(1, keepdim=True).clamp_min(LOWEST)
    return log_q.exp()
