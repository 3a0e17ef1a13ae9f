"""SogCLR: the softmax's denominator as a moving average per image."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from nearfar.losses import checks
from nearfar.pairs import cosine, log_sum_exp
from nearfar.pairs.joined import on_joined_batch


class SogCLR(nn.Module):
    """-s_pos / t + g / u, mean over the 2 * batch rows, where g = mean over the negatives of exp(s_ij / t).

    Shapes: z1, z2 [batch, dim] raw embeddings of two views, index [batch] the images' numbers below `num_images`.
    Returns a scalar. u moves to (1 - gamma) u + gamma g (to g at an image's first visit) before it is used, and carries
    no gradient; each view uses its own g, the average of both is kept in the buffer `u` (training mode only).
    Defaults: temperature 0.1 (CIFAR 0.3), gamma 0.9. At gamma = 1 the gradient is DCL's.
    `gather=True`: of the joined batch of all processes, see `nearfar.losses`.
    Errors: ValueError for numbers out of range, unequal shapes, a batch of one, a missing index.
    Source: Yuan et al. 2022 (SogCLR), Algorithm 1.

    Differs from the released code: that multiplies the loss by t, and tells a first visit by the sum of u over the
    batch; here each image has its own flag, in the buffer `seen`.
    """

    u: Tensor
    seen: Tensor

    def __init__(self, num_images: int, temperature: float = 0.1, gamma: float = 0.9, gather: bool = False) -> None:
        super().__init__()
        checks.at_least(1, num_images=num_images)
        checks.temperature_of_exponentials(temperature=temperature)
        checks.fraction(gamma=gamma)
        self.temperature = temperature
        self.gamma = gamma
        self.gather = gather
        self.register_buffer("u", torch.zeros(num_images))
        self.register_buffer("seen", torch.zeros(num_images, dtype=torch.bool))

    @on_joined_batch("z1", "z2", "index")
    def forward(
        self, z1: Float[Tensor, "batch dim"], z2: Float[Tensor, "batch dim"], index: Int[Tensor, " batch"] | None
    ) -> Float[Tensor, ""]:
        checks.same_rows(2, z1=z1, z2=z2)
        index = checks.index_of(len(z1), index, "SimCLR and DCL work without")
        positive, negative = log_sum_exp(z1, z2, cosine(self.temperature))
        mean = (negative - math.log(2 * len(z1) - 2)).exp()
        u = moved(self.u[index], self.seen[index], mean.detach(), self.gamma)
        if self.training:
            self.u[index] = u.mean(0).to(self.u.dtype)
            self.seen[index] = True
        return (mean / u).mean() - positive.mean()


def moved(
    u: Float[Tensor, " batch"], seen: Bool[Tensor, " batch"], mean: Float[Tensor, "2 batch"], gamma: float
) -> Float[Tensor, "2 batch"]:
    """The moving average of each row after this step: the mean itself at an image's first visit."""
    return torch.where(seen, (1 - gamma) * u + gamma * mean, mean)
