"""The softmax over the batch beside one towards images of the same weak label (WCL): labels that
nearest neighbours in the batch give.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from nearfar.losses import checks
from nearfar.losses.running import FullPrecision
from nearfar.losses.temperature import log_scale, temperature_now
from nearfar.pairs import log_sum_exp
from nearfar.pairs.arithmetic import Rows, Scalar, check_rows, unit_rows
from nearfar.pairs.joined import on_joined_batch

TILE = 2**20  # elements of a part of the similarities

Numbers = Int[Tensor, " batch"]


class WCL(FullPrecision):
    """SimCLR of z1 and z2, plus the mean over two views of a second head of
    log sum_{j != i} exp(s_ij / t) - mean_{p in P(i)} s_ip / t, mean over the batch.

    P(i) are the other images of the weak label of image i. Within a view each image is joined with
    the one nearest to it; the connected components of this graph are the labels, which serve for
    the rows of the other view. They have no gradient. Shapes: z1, z2 and, of the second head,
    weak1, weak2 [batch, dim]. Defaults: temperature 0.1, of both parts. Source: Zheng et al. 2021
    (WCL), section 3. Differs from the paper:
    1. Nearest neighbours add no small crops, as in the released code, whose equal weights of both
       parts and mean over both views these are.

    >>> z = torch.eye(4).repeat_interleave(2, 0)  # each row twice
    >>> SimCLR(temperature=1.0)(z, z), WCL(temperature=1.0)(z, z, z, z)  # + log(e + 6) - 1
    (tensor(2.0034), tensor(3.1689))
    """

    def __init__(
        self, temperature: float = 0.1, gather: bool = False, learn_temperature: bool = False
    ) -> None:
        super().__init__()
        checks.positive(temperature=temperature)
        self.temperature = temperature
        self.log_scale = log_scale(learn_temperature, temperature)
        self.gather = gather

    @on_joined_batch("z1", "z2", "weak1", "weak2")
    def forward(self, z1: Rows, z2: Rows, weak1: Rows, weak2: Rows) -> Scalar:
        temperature = temperature_now(self, z1, z2)
        check_rows(2, z1=z1, z2=z2, weak1=weak1, weak2=weak2)
        positive, negative = log_sum_exp(z1, z2, temperature)
        instances = -F.logsigmoid(positive - negative).mean()
        first, second = (unit_rows(rows) for rows in (weak1, weak2))
        weak = supervised(first, weak_labels(second), temperature)
        weak = weak + supervised(second, weak_labels(first), temperature)
        return instances + weak / 2


def supervised(rows: Rows, label: Numbers, temperature: float | Scalar) -> Scalar:
    """-mean_{p in P(i)} s_ip / t + log sum_{j != i} exp(s_ij / t), mean over the unit rows; each
    label belongs to two rows or more, numbers below `batch`.
    """
    _, (others, _) = log_sum_exp(rows, rows, temperature, across=True)
    sums = torch.zeros_like(rows).index_add(0, label, rows)
    count = torch.zeros_like(rows[:, 0]).index_add(0, label, torch.ones_like(rows[:, 0]))
    positive = torch.linalg.vecdot(rows, sums[label] - rows) / (count[label] - 1)
    return others.mean() - (positive / temperature).mean()


@torch.no_grad()
def weak_labels(rows: Rows) -> Numbers:
    """A number for each unit row, the same for all of a connected component of the graph in which
    each row is joined with the one nearest to it.

    From row to nearest row a path ends in a circle, mostly of two; its lowest number is the label.
    """
    ahead = lowest = nearest_others(rows)
    for _ in range(len(rows).bit_length()):  # 1, 2, 4, ... steps ahead
        lowest = torch.minimum(lowest, lowest[ahead])
        ahead = ahead[ahead]
    return lowest[ahead]


def nearest_others(rows: Rows) -> Numbers:
    """The number of the other row nearest to each unit row; a part of the rows at a time."""
    numbers, start = [], 0
    for part in rows.split(max(1, TILE // len(rows))):
        likeness = part @ rows.T
        likeness.diagonal(start).fill_(-torch.inf)
        numbers.append(likeness.argmax(1))
        start += len(part)
    return torch.cat(numbers)
