"""LORAC: InfoNCE of several queries with a low-rank prior on the views of an image (and MoCo-M,
without it).
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.linalg import vecdot
from torch.nn import functional as F

from nearfar.device import in_float64
from nearfar.losses import checks
from nearfar.losses.running import FullPrecision
from nearfar.losses.temperature import log_scale, temperature_now
from nearfar.pairs import attend
from nearfar.pairs.arithmetic import (
    Queue,
    Rows,
    Scalar,
    accumulation_dtype,
    refuse_double_backward,
    unit_rows,
    without_autocast,
)
from nearfar.pairs.joined import on_joined_batch

PRIORS = ("laplace", "gaussian", "constant")
VARIANCE, MARGIN = 2.0, 3.0  # of the gaussian and of the constant prior: Table 5


class LORAC(FullPrecision):
    """Mean over queries q_m and images of CE([q_m.k/t + log h(Q), q_m.queue/t], 0); Q: the M rows
    in `large`.

    Priors, with |Q|_* the nuclear norm of the M unit rows: laplace -|Q|_* / (M beta t); gaussian
    -(|Q|_* - sqrt(M))^2 / (2 M t); constant -3 / (M beta t). beta = inf switches any prior off:
    that is MoCo-M, and with one query MoCo. batchwise=True (LORAC-bs, laplace only): one |P|_* for
    the batch, rows q_{i,m} - mean_m q_{i,m} of `large`, log h = -|P|_* / (rows of P beta t).
    Shapes: queries [queries, batch, dim], key [batch, dim], large [M, batch, dim]; queue [keys,
    dim] unit rows. In the method `large` holds the queries of all large crops, the key's own among
    them, and (not for LORAC-bs) both keys: five rows for three crops. None: the queries given and
    the key; for LORAC-bs the queries. Defaults: temperature 0.2, beta 2 (ResNet-18, ImageNet-100; 4
    for ResNet-50). Gradient: to the queries, and to those rows of `large` that require one. Errors:
    also ValueError for batchwise with another prior than laplace or with one row of an image.
    Source: Wang et al. 2022 (LORAC), Eq. 6-13, Eq. 15 (batchwise), Table 5 (priors); the rows of Q:
    released code. Differs from the paper:
    1. Released code leaves out the division by t once the prior is on; Eq. 11-12 is followed.
    2. Algorithm 1 concatenates the logits along dimension 0; it is dimension 1.
    3. The gaussian prior has c_0 = sqrt(M) (Theorem 1) for every M; Table 5 writes sqrt(5), that of
       three large crops.

    >>> query, queue = torch.eye(4).split(2)
    >>> LORAC(beta=float("inf"), temperature=1.0)(query[None], query, queue=queue)  # MoCo"s
    tensor(0.5514)
    """

    def __init__(
        self,
        temperature: float = 0.2,
        beta: float = 2.0,
        prior: str = "laplace",
        batchwise: bool = False,
        gather: bool = False,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__()
        checks.positive(temperature=temperature)
        if not beta > 0:
            raise ValueError(f"beta must be above 0 (inf switches the prior off), got {beta}")
        if prior not in PRIORS:
            raise ValueError(f"prior must be one of {', '.join(PRIORS)}, got {prior!r}")
        if batchwise and prior != "laplace":
            raise ValueError(f"batchwise=True needs prior='laplace', got {prior!r}")
        self.temperature = temperature
        self.log_scale = log_scale(learn_temperature, temperature)
        self.beta = beta
        self.prior = prior
        self.batchwise = batchwise
        self.gather = gather

    @property
    def waits(self) -> str:
        """Return why a step waits for a GPU, empty where it does not."""
        has_eigenvalues = self.beta != math.inf and self.prior != "constant"
        return "torch's eigenvalues wait for the GPU" if has_eigenvalues else ""

    @on_joined_batch("queries", "key", "large")
    def forward(
        self,
        queries: Float[Tensor, "queries batch dim"],
        key: Rows,
        queue: Queue,
        large: Float[Tensor, "rows batch dim"] | None = None,
    ) -> Scalar:
        temperature = temperature_now(self, queries, key)
        checks.same_views(key, queries=queries, **({} if large is None else {"large": large}))
        queries, key = unit_rows(queries), unit_rows(key.detach())
        negative, _ = attend(queries.flatten(0, 1), queue, temperature)
        positive = vecdot(queries, key) / temperature  # [M-1, batch]
        if self.beta != math.inf:
            if large is None:
                large = queries if self.batchwise else torch.cat((queries, key[None]))
            positive = positive + self._log_prior(unit_rows(large), temperature)
        return -F.logsigmoid(positive - negative.view_as(positive)).mean()

    def _log_prior(
        self, rows: Float[Tensor, "rows batch dim"], temperature: Any
    ) -> Float[Tensor, "*batch"] | float:
        m = len(rows)
        if self.prior == "constant":
            return -MARGIN / (m * self.beta * temperature)
        if self.batchwise:
            if m < 2:
                raise ValueError(
                    "batchwise=True needs 2 rows of an image or more: one does not vary "
                    "around its mean"
                )
            variation = (rows - rows.mean(0)).flatten(0, 1)
            return -nuclear_norm(variation) / (len(variation) * self.beta * temperature)
        norm = nuclear_norm(rows.transpose(0, 1))  # [batch], of M x dim
        if self.prior == "gaussian":
            return -((norm - math.sqrt(m)) ** 2) / (VARIANCE * m * temperature)
        return -norm / (m * self.beta * temperature)


CUT = 1e-6  # singular values below this share of the largest are dropped


def nuclear_norm(rows: Float[Tensor, "*matrices rows dim"]) -> Float[Tensor, "*matrices"]:
    """Nuclear norm of each matrix; in [sqrt(M), M] for M unit rows (M <= dim).

    Shapes: rows [..., M, dim], any M and dim; returns [...]. Computed from the eigenvalues of the
    smaller Gram matrix in float64 whatever the input's dtype. The gradient is U V^T without the
    singular values below 1e-6 of the largest: equal rows and zero matrices give finite gradients. A
    matrix with a value that is not finite gives nan. Errors: RuntimeError on double backward.
    Source: Wang et al. 2022 (LORAC), Eq. 11; U V^T is the gradient of the nuclear norm at a matrix
    of full rank.
    """
    return _NuclearNorm.apply(rows)


class _NuclearNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        wide = rows.shape[-2] <= rows.shape[-1]
        dtype = accumulation_dtype(rows)
        with without_autocast(rows):
            q = in_float64(rows) if wide else in_float64(rows).mT
            gram = q @ q.mT
            eigenvalues, u = torch.linalg.eigh(
                gram.nan_to_num(0, 0, 0)
            )  # eigh stops the program at nan
            singular = eigenvalues.clamp(min=0).sqrt()
            kept = singular > CUT * singular[..., -1:]
            inverse = torch.where(kept, 1 / singular, 0)
            gradient = (u * inverse[..., None, :]) @ (u.mT @ q)  # U V^T, since V^T = S^-1 U^T Q
            norm = singular.where(kept, 0).sum(-1).where(gram.isfinite().all(-1).all(-1), torch.nan)
        ctx.save_for_backward((gradient if wide else gradient.mT).to(rows.device, dtype))
        ctx.dtype = rows.dtype
        return norm.to(rows.device, dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        refuse_double_backward()
        (gradient,) = ctx.saved_tensors
        return (grad[..., None, None] * gradient).to(ctx.dtype)
