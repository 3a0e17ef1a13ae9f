"""SigCLR: every pair of rows is a yes-or-no question, answered by a logistic function of their
cosine.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearfar.losses import checks
from nearfar.losses.running import FullPrecision, state
from nearfar.pairs import logistic_sum
from nearfar.pairs.arithmetic import Rows, Scalar, accumulation_dtype
from nearfar.pairs.joined import on_joined_batch

MOST_LOG_SCALE = math.log(100)  # as CLIP's


class SigCLR(FullPrecision):
    """(1 / 2B) sum_i sum_{j != i} softplus(-y_ij (s_ij / t + b)), y = 1 for the positive and -1 for
    negatives.

    Shapes: z1, z2 [batch, dim] of two views. The value is the sum over pairs, per row. Temperature:
    fixed (attribute `temperature`), or with `learn_temperature` the parameter `log_scale` = log(1 /
    t), which is held between log(1 / 100) and log(100) at each step, as CLIP's. Bias: the parameter
    `bias`, or with `learn_bias=False` the number `bias`; None is no bias. The four rows of Table 2
    are learn_temperature False or True with bias -10 or None. The optimiser gets the parameters,
    without weight decay. `monitored` holds the temperature and the bias. Defaults: temperature 0.2
    fixed, bias -10 learned. Source: SigCLR, Section 2 and Appendix A.2.

    Differs from the paper: its pseudocode averages over all 4 B^2 entries; this follows its
    formula, the sum over pairs divided by the 2B rows.

    >>> z = torch.eye(4)
    >>> SigCLR()(z, z)  # log(1 + e^5) + 6 log(1 + e^-10)
    tensor(5.0070, grad_fn=<SubBackward0>)
    """

    bias: nn.Parameter | float | None

    def __init__(
        self,
        temperature: float = 0.2,
        bias: float | None = -10.0,
        learn_temperature: bool = False,
        learn_bias: bool = True,
        gather: bool = False,
        group_size: int | None = None,
    ) -> None:
        super().__init__()
        checks.positive(temperature=temperature)
        if learn_temperature and not 0.01 <= temperature <= 100:
            raise ValueError(f"a learned temperature must be 0.01 to 100, got {temperature}")
        if bias is not None and not math.isfinite(bias):
            raise ValueError(f"bias must be a finite number or None, got {bias}")
        self.temperature = temperature
        self.gather = gather
        self.monitored: dict[str, Tensor] = {}
        self.group_size = checks.group(group_size)
        self.log_scale = nn.Parameter(state(-math.log(temperature))) if learn_temperature else None
        self.bias = nn.Parameter(state(bias)) if learn_bias and bias is not None else bias

    @on_joined_batch("z1", "z2")
    def forward(self, z1: Rows, z2: Rows) -> Scalar:
        batch = len(z1)
        if self.log_scale is not None:
            with torch.no_grad():
                self.log_scale.clamp_(-MOST_LOG_SCALE, MOST_LOG_SCALE)
        number = torch.zeros((), dtype=accumulation_dtype(z1, z2), device=z1.device)
        scale = number + 1 / self.temperature if self.log_scale is None else self.log_scale.exp()
        bias = number if self.bias is None else number + self.bias
        self.monitored = {"temperature": (1 / scale).detach(), "bias": bias.detach()}
        positive, negatives = logistic_sum(z1, z2, scale, bias, group_size=self.group_size)
        return negatives / (2 * batch) - F.logsigmoid(scale * positive + bias).sum() / batch
