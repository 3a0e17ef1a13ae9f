"""SwAV: each view predicts the balanced prototype code of the others."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nearfar.losses import checks
from nearfar.losses.rows import outside_autocast
from nearfar.pairs.joined import on_joined_batch
from nearfar.pairs.precision import unit_rows


class SwAV(nn.Module):
    """-sum_p code_p log softmax(z.prototypes / t)_p: codes from the global views, predictions from the other views.

    Mean over the pairs (global view, other view) and over the batch. Codes come from Sinkhorn's iteration on the batch
    (and on the queue of past embeddings, once that is full), without gradient.
    Shapes: projections [views, batch, dim] raw embeddings, the `global_views` full-size crops first. Returns a scalar.
    State: parameter `prototypes` [num_prototypes, dim], scaled to unit rows in place at each forward; buffers `queue`
    [2, queue_size, dim] and `queued` (rows filled), pushed to in training mode.
    Attributes to schedule: `freeze_prototypes` (they get no gradient; first epoch) and `use_queue` (from epoch 15, when
    the queue begins to fill).
    Defaults: 3000 prototypes, temperature 0.1, epsilon 0.05, 3 iterations, no queue, 2 global views.
    `gather=True`: of the joined batch of all processes, see `nearfar.losses`.
    Errors: ValueError for temperature or epsilon <= 0, sizes below 1 (prototypes: 2, queue: 0), a batch of one, fewer
    than two views, global_views outside 1 .. views (exactly 2 with a queue), another dim than the prototypes'.
    Source: Caron et al. 2020 (SwAV), Eq. 1-6.
    """

    prototypes: nn.Parameter
    queue: Tensor
    queued: Tensor

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
        self.register_buffer("queued", torch.zeros((), dtype=torch.long))

    @on_joined_batch("projections")
    @outside_autocast
    def forward(self, projections: Float[Tensor, "views batch dim"], global_views: int = 2) -> Float[Tensor, ""]:
        self._check(projections, global_views)
        with torch.no_grad():
            self.prototypes.copy_(unit_rows(self.prototypes))
        prototypes = self.prototypes.detach() if self.freeze_prototypes else self.prototypes
        z = unit_rows(projections)
        scores = z @ prototypes.to(z.dtype, copy=True).T  # [views, batch, prototypes]
        codes = self._codes(z[:global_views].detach(), scores[:global_views].detach())
        log_p = F.log_softmax(scores / self.temperature, dim=-1)
        views = len(z)
        # Every global view's code against every view's prediction, less its own.
        pairs = (codes.sum(0) * log_p).sum() - (codes * log_p[:global_views]).sum()
        return -pairs / (global_views * (views - 1) * z.shape[1])

    @torch.no_grad()
    def _codes(
        self, z: Float[Tensor, "views batch dim"], scores: Float[Tensor, "views batch prototypes"]
    ) -> Float[Tensor, "views batch prototypes"]:
        batch, size = z.shape[1], self.queue.shape[1]
        filling = size > 0 and self.use_queue
        if filling and self.queued == size:
            past = self.queue.to(z.dtype) @ self.prototypes.to(z.dtype).T
            scores = torch.cat((scores, past), dim=1)
        if filling and self.training:
            self.queue.copy_(torch.cat((z.to(self.queue.dtype), self.queue), dim=1)[:, :size])
            self.queued.copy_((self.queued + batch).clamp(max=size))
        return torch.stack([sinkhorn(s, self.epsilon, self.iterations)[:batch] for s in scores])

    def _check(self, projections: Tensor, global_views: int) -> None:
        dim = self.prototypes.shape[1]
        if projections.ndim != 3 or projections.shape[0] < 2 or projections.shape[2] != dim:
            shape = list(projections.shape)
            raise ValueError(f"projections must be [2 views or more, batch, {dim}] like the prototypes, got {shape}")
        checks.batch_size(projections.shape[1], 2)
        if not 1 <= global_views <= len(projections):
            raise ValueError(f"global_views must be between 1 and the {len(projections)} views, got {global_views}")
        if self.queue.shape[1] and global_views != len(self.queue):
            raise ValueError(f"global_views must be {len(self.queue)} with a queue, got {global_views}")


@torch.no_grad()
def sinkhorn(
    scores: Float[Tensor, "rows prototypes"], epsilon: float, iterations: int
) -> Float[Tensor, "rows prototypes"]:
    """Balanced soft assignment: each row sums to 1, each column to nearly rows / prototypes.

    Sinkhorn-Knopp on exp(scores / epsilon), in logarithms (nothing overflows); the rows are scaled last.
    Source: Caron et al. 2020, Eq. 3-5.
    """
    log_q = scores / epsilon
    for _ in range(iterations):
        log_q = log_q - log_q.logsumexp(0)
        log_q = log_q - log_q.logsumexp(1, keepdim=True)
    return log_q.exp()
