"""The denominator as a moving average for each image: SogCLR, and iSogCLR, which learns a
temperature for each.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool
from torch import Tensor

from nearfar.losses import checks, running
from nearfar.losses.temperature import log_scale, temperature_now
from nearfar.pairs import log_sum_exp, per_image_log_sum_exp
from nearfar.pairs.arithmetic import Index, PerImage, PerRow, Rows, Scalar
from nearfar.pairs.joined import on_joined_batch


class SogCLR(running.FullPrecision):
    """-s_pos / t + g / u, mean over the 2 * batch rows, where g = mean over the negatives of
    exp(s_ij / t).

    Shapes: z1, z2 [batch, dim] of two views, index [batch] the images' numbers below `num_images`.
    u moves to (1 - gamma) u + gamma g (to g at an image's first visit) before it is used, and
    carries no gradient; each view uses its own g, the buffer `u` keeps the average of both
    (training mode only). Defaults: temperature 0.1 (CIFAR 0.3), gamma 0.9. At gamma = 1 the
    gradient is DCL's. Errors: also ValueError for a missing index. Source: Yuan et al. 2022
    (SogCLR), Algorithm 1.

    Differs from the released code: that multiplies the loss by t, and tells a first visit by the
    sum of u over the batch; here each image has its own flag, in the buffer `seen`.

    >>> z = torch.eye(4)
    >>> SogCLR(num_images=4, temperature=1.0)(z, z, torch.arange(4))  # g / u - 1 / t
    tensor(0.)
    """

    u: Tensor
    seen: Tensor

    def __init__(
        self,
        num_images: int,
        temperature: float = 0.1,
        gamma: float = 0.9,
        gather: bool = False,
        group_size: int | None = None,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__()
        checks.at_least(1, num_images=num_images)
        checks.temperature_of_exponentials(temperature=temperature)
        checks.fraction(gamma=gamma)
        self.temperature = temperature
        self.log_scale = log_scale(learn_temperature, temperature, largest=60.0)
        self.gamma = gamma
        self.gather = gather
        self.group_size = checks.group(group_size)
        self.register_buffer("u", running.state(0, num_images))
        self.register_buffer("seen", torch.zeros(num_images, dtype=torch.bool))

    @on_joined_batch("z1", "z2", "index")
    def forward(self, z1: Rows, z2: Rows, index: Index | None) -> Scalar:
        temperature = temperature_now(self, z1, z2, largest=60.0)
        index = checks.index_of(len(z1), index, len(self.u), "SimCLR and DCL work without")
        positive, negative = log_sum_exp(z1, z2, temperature, group_size=self.group_size)
        mean = (negative - math.log(2 * (self.group_size or len(z1)) - 2)).exp()
        before, seen = running.read(self.u, index), running.read(self.seen, index)
        u = moved(before, seen, mean.detach(), self.gamma)
        loss = (mean / u).mean() - positive.mean()
        if self.training:
            good = running.move(self.u, u.mean(0), loss, index)
            self.seen[index] = seen | good
        return loss


def moved(u: PerImage, seen: Bool[Tensor, " batch"], mean: PerRow, gamma: float) -> PerRow:
    """The moving average of each row after this step: the mean itself at an image's first visit."""
    return torch.where(seen, (1 - gamma) * u + gamma * mean, mean)


class ISogCLR(running.FullPrecision):
    """t_i g / u - s_pos, mean over the 2 * batch rows, where g = mean over the negatives of
    exp(s_ij / t_i).

    Shapes: z1, z2 [batch, dim] of two views, index [batch] the images' numbers below `num_images`.
    u as in SogCLR. With w_ij = exp(s_ij / t_i) / (u_i (2 batch - 2)), after the batch has used t_i:
    grad = log u_i + rho - sum_j w_ij s_ij / t_i (average of the views), clipped to
    +-`gradient_limit`; m <- (1 - beta) m + beta grad; t_i <- t_i - lr m, clamped to
    `temperature_range`; in training mode only. Buffers: u, seen, temperatures, momentum. Defaults:
    temperature starts at 0.1, range 0.05 to 0.7, lr 0.01, rho 0.3, beta 0.9, gamma 0.9, no limit
    (released code: 3). At gamma = 1 the gradient is that of t_i log(mean of exp((s_ij - s_pos) /
    t_i)), the objective. Errors: also ValueError for a missing index. Source: Qiu et al. 2023
    (iSogCLR), Algorithm 1.

    Differs from the paper: it exponentiates s_neg - s_pos; this follows the released code, s_neg
    alone.

    >>> z = torch.eye(4)
    >>> ISogCLR(num_images=4)(z, z, torch.arange(4))  # 0.1 g / u - 1
    tensor(-0.9000)
    """

    u: Tensor
    seen: Tensor
    temperatures: Tensor
    momentum: Tensor

    def __init__(
        self,
        num_images: int,
        temperature: float = 0.1,
        temperature_range: tuple[float, float] = (0.05, 0.7),
        lr: float = 0.01,
        rho: float = 0.3,
        beta: float = 0.9,
        gamma: float = 0.9,
        gradient_limit: float = math.inf,
        gather: bool = False,
    ) -> None:
        super().__init__()
        checks.at_least(1, num_images=num_images)
        if not gradient_limit > 0:
            raise ValueError(f"gradient_limit must be above 0 (inf for none), got {gradient_limit}")
        lowest, highest = temperature_range
        checks.number(temperature=temperature)
        checks.temperature_of_exponentials(**{"the least of temperature_range": lowest})
        if not lowest <= temperature <= highest < math.inf:
            raise ValueError(
                f"temperature must be within temperature_range {lowest} to {highest}, got "
                f"{temperature}"
            )
        checks.not_negative(lr=lr, rho=rho)
        checks.fraction(beta=beta, gamma=gamma)
        self.temperature_range = (lowest, highest)
        self.lr = lr
        self.rho = rho
        self.beta = beta
        self.gamma = gamma
        self.gradient_limit = gradient_limit
        self.gather = gather
        self.register_buffer("u", running.state(0, num_images))
        self.register_buffer("seen", torch.zeros(num_images, dtype=torch.bool))
        self.register_buffer("temperatures", running.state(temperature, num_images))
        self.register_buffer("momentum", running.state(0, num_images))

    @on_joined_batch("z1", "z2", "index")
    def forward(self, z1: Rows, z2: Rows, index: Index | None) -> Scalar:
        index = checks.index_of(len(z1), index, len(self.u), "SimCLR and DCL work without")
        temperatures = running.read(self.temperatures, index)
        cosines, negative, mean_cosine = per_image_log_sum_exp(z1, z2, temperatures)
        mean = (negative - math.log(2 * len(z1) - 2)).exp()
        before, seen = running.read(self.u, index), running.read(self.seen, index)
        u = moved(before, seen, mean.detach(), self.gamma)
        ratio = mean / u
        loss = (temperatures * ratio - cosines).mean()
        if self.training:
            good = running.move(self.u, u.mean(0), loss, index)
            self.seen[index] = seen | good
            slope = u.log() + self.rho - ratio.detach() * mean_cosine / temperatures
            self._move_temperatures(index, temperatures, slope.mean(0), loss)
        return loss

    @torch.no_grad()
    def _move_temperatures(
        self, index: Tensor, temperatures: Tensor, slope: Tensor, loss: Tensor
    ) -> None:
        """Take one momentum step on the temperatures of the batch."""
        slope = slope.clamp(-self.gradient_limit, self.gradient_limit)
        momentum = running.read(self.momentum, index)
        momentum = momentum.lerp(slope.to(momentum.dtype), self.beta)
        running.move(self.momentum, momentum, loss, index)
        new = (temperatures - self.lr * momentum).clamp(*self.temperature_range)
        running.move(self.temperatures, new, loss, index)
