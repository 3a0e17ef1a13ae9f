"""SACLR: contrastive learning as matrix approximation, with a running estimate of the
normaliser.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from nearfar.losses import checks, running
from nearfar.pairs import Kernel, cauchy, cosine, gaussian, sample_others, sampled_sum, weighted_sum
from nearfar.pairs.arithmetic import Index, Rows, Scalar, check_rows
from nearfar.pairs.joined import on_joined_batch


class SACLR(running.FullPrecision):
    """Attraction -log q_pos plus repulsion mean(q_ij) / Z over a few, or all, negatives j of each
    row i.

    Shapes: z1, z2 [batch, dim] of two views, `index` [batch] the images' numbers below
    `num_images`, which only the row form needs. The value is the mean over the 2 * batch rows.
    `scale`: "matrix" keeps one Z, "row" one per image, in the buffer `partition`. Z is used as it
    stood before this step, without gradient; in training mode it then moves to rho Z + (1 - rho)
    [alpha q_pos + (1 - alpha) mean q_ij]. `negatives`: M other images per image, sampled without
    replacement, independently for each image, both views of each (2M pairs a row); "all" takes the
    2 * batch - 2 rows of the other images. M = 1 costs O(batch * dim). `kernel`: "gaussian"
    exp(-|z_i - z_j|^2 / (2 bandwidth^2)) and "cosine" exp(s_ij / bandwidth) on unit rows, "cauchy"
    1 / (1 + |z_i - z_j|^2) on rows as they are. Defaults: alpha 0.125, Z starts at
    `initial_partition` 0.01, rho 0.99 (matrix) or 0.9 (row), bandwidth 0.5. Errors: also ValueError
    for a batch not larger than M, and for a missing index. The bandwidth cannot be learned:
    `partition` averages the kernel of earlier batches, which another bandwidth would make another
    kernel. A rho of 1 leaves Z at its start, and nothing is computed for it. `monitored` holds the
    mean similarity of positives and of negatives in the last batch, and the mean of `partition`,
    of the row form also its standard deviation over the images.
    Source: SACLR, Eq. 6-11, Algorithms 1 and 2; Figure 3 draws what is monitored.

    Differs from the paper:
    1. Equation 6 multiplies by s N where s^-1 ~ N^2, so repulsion is 1/N of the attraction and the
       model collapses; here attraction and repulsion weigh 1 : 1 at alpha = 0, as in the row form.
    2. The mean over the two views stands where Eq. 7-8 have their sum (the released code also takes
       the mean).
    3. The released code's M = 1 uses one pair per row, the next image's other view; here both views
       of a sampled image.
    4. The negatives of a row leave out its positive, where the sums of Eq. 3, 7 and 10 hold it: at
       alpha = 0 the row form is DCL and not SimCLR. `count_positive`, with all negatives, counts it
       among them, as Eq. 10 and Theorem 1 do.

    >>> z = torch.eye(4)
    >>> SACLR(num_images=4)(z, z)  # e^-4 / 0.01
    tensor(1.8316)
    """

    partition: Tensor

    def __init__(
        self,
        num_images: int,
        scale: Literal["matrix", "row"] = "matrix",
        negatives: int | Literal["all"] = 1,
        alpha: float = 0.125,
        rho: float | None = None,
        kernel: Literal["gaussian", "cosine", "cauchy"] = "gaussian",
        bandwidth: float = 0.5,
        initial_partition: float = 0.01,
        gather: bool = False,
        group_size: int | None = None,
        count_positive: bool = False,
    ) -> None:
        super().__init__()
        if scale not in ("matrix", "row"):
            raise ValueError(f'scale must be "matrix" or "row", got {scale!r}')
        if negatives != "all" and (
            not isinstance(negatives, int) or isinstance(negatives, bool) or negatives < 1
        ):
            raise ValueError(
                f'negatives must be "all" or an integer of 1 or more, got {negatives!r}'
            )
        if kernel not in ("gaussian", "cosine", "cauchy"):
            raise ValueError(f'kernel must be "gaussian", "cosine" or "cauchy", got {kernel!r}')
        checks.at_least(1, num_images=num_images)
        checks.positive(bandwidth=bandwidth, initial_partition=initial_partition)
        if kernel == "cosine":
            checks.temperature_of_exponentials(bandwidth=bandwidth)
        if group_size is not None and negatives != "all":
            raise ValueError(f'group_size is for negatives="all", got negatives={negatives!r}')
        if count_positive and negatives != "all":
            raise ValueError(f'count_positive is for negatives="all", got negatives={negatives!r}')
        rho = rho if rho is not None else (0.99 if scale == "matrix" else 0.9)
        checks.fraction(alpha=alpha, rho=rho)
        self.scale = scale
        self.negatives = negatives
        self.alpha = alpha
        self.rho = rho
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.gather = gather
        self.group_size = checks.group(group_size)
        self.count_positive = count_positive
        self.monitored: dict[str, Tensor] = {}
        self.register_buffer(
            "partition",
            running.state(initial_partition, *([num_images] if scale == "row" else [])),
        )

    @on_joined_batch("z1", "z2", "index")
    def forward(self, z1: Rows, z2: Rows, index: Index | None = None) -> Scalar:
        check_rows(2, z1=z1, z2=z2)
        batch, kernel = len(z1), self._kernel()
        if self.scale == "row":
            instead = 'scale="matrix" works without'
            index = checks.index_of(batch, index, len(self.partition), instead)
        else:
            index = None
        normaliser = running.read(self.partition, index)
        pairs = (
            2 * (self.group_size or batch) - 2 if self.negatives == "all" else 2 * self.negatives
        )
        columns = pairs + self.count_positive
        weights = (1 / (normaliser * (columns * 2 * batch))).expand(2, batch)
        if self.negatives == "all":
            u, repulsion, sums = weighted_sum(z1, z2, weights, kernel, group_size=self.group_size)
        else:
            others = sample_others(batch, self.negatives, z1.device)
            u, repulsion, sums = sampled_sum(z1, z2, others, weights, kernel)
        log_positive = kernel.log_similarity(u)
        if self.count_positive:  # a column more of each row
            repulsion = repulsion + (log_positive.exp() / (normaliser * columns)).mean()
        loss = repulsion - log_positive.mean()
        if self.training:
            positive, negative = log_positive.detach().exp(), sums.mean(0) / pairs
            if self.rho < 1:
                others = (sums.mean(0) + positive) / columns if self.count_positive else negative
                seen = self.alpha * positive + (1 - self.alpha) * others
                seen = (seen if self.scale == "row" else seen.mean()).to(self.partition.dtype)
                running.move(self.partition, normaliser.lerp(seen, 1 - self.rho), loss, index)
            self.monitored = {
                "positive": positive.mean(),
                "negative": negative.mean(),
                "partition": self.partition.mean(),
            }
            if self.scale == "row":
                self.monitored["partition_deviation"] = self.partition.std(correction=0)
        return loss

    def _kernel(self) -> Kernel:
        if self.kernel == "cosine":
            return cosine(self.bandwidth)
        return gaussian(self.bandwidth) if self.kernel == "gaussian" else cauchy()
