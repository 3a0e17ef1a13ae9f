"""The softmax over the batch: SimCLR (NT-Xent), and DCL, which leaves the positive out of the
denominator.
"""

from torch.nn import functional as F

from nearfar.losses import checks
from nearfar.losses.running import FullPrecision
from nearfar.losses.temperature import log_scale, temperature_now
from nearfar.pairs import log_sum_exp
from nearfar.pairs.arithmetic import Rows, Scalar
from nearfar.pairs.joined import on_joined_batch


class SimCLR(FullPrecision):
    """-s_pos / t + log sum_{j != i} exp(s_ij / t), positive included, mean over the 2 * batch rows.

    Shapes: z1, z2 [batch, dim] of two views. Defaults: temperature 0.2 (the paper has 0.5 on CIFAR
    and 0.1 on ImageNet). Source: Chen et al. 2020 (SimCLR), Eq. 1. The released code sums the two
    views, so its value is twice this one.

    >>> z = torch.eye(4)
    >>> SimCLR(temperature=1.0)(z, z)  # log(1 + 6 / e)
    tensor(1.1654)
    """

    def __init__(
        self,
        temperature: float = 0.2,
        gather: bool = False,
        group_size: int | None = None,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__()
        checks.positive(temperature=temperature)
        self.temperature = temperature
        self.log_scale = log_scale(learn_temperature, temperature)
        self.group_size = checks.group(group_size)
        self.gather = gather

    @on_joined_batch("z1", "z2")
    def forward(self, z1: Rows, z2: Rows) -> Scalar:
        temperature = temperature_now(self, z1, z2)
        positive, negative = log_sum_exp(z1, z2, temperature, group_size=self.group_size)
        return -F.logsigmoid(positive - negative).mean()


class DCL(FullPrecision):
    """-w_i s_pos / t + log sum over the negatives of exp(s_ij / t), mean over the 2 * batch rows.

    Shapes: z1, z2 [batch, dim] of two views. `weighted` (DCLW): w_i = 2 - batch * softmax_i(s_pos /
    sigma), softmax over the batch, no gradient; else w_i = 1. Source: Yeh et al. 2022 (Decoupled
    Contrastive Learning), Eq. 6 and 7.

    >>> z = torch.eye(4)
    >>> DCL(temperature=1.0)(z, z)  # log(6) - 1
    tensor(0.7918)
    """

    def __init__(
        self,
        temperature: float = 0.2,
        weighted: bool = False,
        sigma: float = 0.5,
        gather: bool = False,
        group_size: int | None = None,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__()
        checks.positive(temperature=temperature, sigma=sigma)
        self.temperature = temperature
        self.log_scale = log_scale(learn_temperature, temperature)
        self.weighted = weighted
        self.sigma = sigma
        self.gather = gather
        self.group_size = checks.group(group_size)

    @on_joined_batch("z1", "z2")
    def forward(self, z1: Rows, z2: Rows) -> Scalar:
        temperature = temperature_now(self, z1, z2)
        positive, negative = log_sum_exp(z1, z2, temperature, group_size=self.group_size)
        if self.weighted:
            cosines = (positive * temperature).detach()
            positive = positive * (2 - len(z1) * (cosines / self.sigma).softmax(0))
        return negative.mean() - positive.mean()
