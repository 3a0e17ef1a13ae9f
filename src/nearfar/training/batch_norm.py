"""Batch normalisation over several processes, with the statistics and groups that one process would
have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nearfar.methods import Model
from nearfar.networks import SplitBatchNorm
from nearfar.networks.moco import FreeBatchNorm, replace_batch_norms
from nearfar.pairs.shares import gather_rows, world_size


class SyncBatchNorm(FreeBatchNorm):
    """Batch normalisation over the rows of all processes; torch's own of this name runs on GPUs
    alone.

    Processes may hold different numbers of rows. Gradients are those of one process on the joined
    batch when each process starts from its own rows' gradient and the parameters' gradients are
    added up afterwards.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise [batch, features, ...]; plain batch normalisation in eval mode or with one
        process.
        """
        if not self.training or not dist.is_initialized() or dist.get_world_size() == 1:
            return self.act(self.drop(super().forward(input)))
        dims, shape = [0, *range(2, input.ndim)], [1, -1, *[1] * (input.ndim - 2)]
        x = input if input.dtype == torch.float64 else input.float()
        count = x.new_full((1,), x.numel() / x.shape[1])
        summed = _Sum.apply(torch.cat([x.sum(dims), count]))
        mean, total = summed[:-1] / summed[-1], summed[-1].detach()
        centred = x - mean.view(shape)
        var = _Sum.apply(centred.square().sum(dims)) / total
        if (
            self.track_running_stats
            and self.running_mean is not None
            and self.running_var is not None
        ):
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
            share = (
                self.momentum
                if self.momentum is not None
                else 1 / float(self.num_batches_tracked or 1)
            )
            self.running_mean.lerp_(mean.detach().to(self.running_mean.dtype), share)
            self.running_var.lerp_(
                (var.detach() * total / (total - 1)).to(self.running_var.dtype), share
            )
        out = centred * torch.rsqrt(var + self.eps).view(shape)
        if self.weight is not None:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return self.act(self.drop(out.to(input.dtype)))


class _Sum(torch.autograd.Function):
    """The sum of all processes' tensors; its gradient is the sum of all processes' gradients."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        total = own.detach().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.contiguous().clone()
        dist.all_reduce(total)
        return total


def sync_batch_norm(module: nn.Module) -> nn.Module:
    """Turn every batch normalisation inside a module into a synchronised one, in place, with the
    same state.

    Normalisation that is split into groups on purpose (MoCo's) stays as it is.
    """
    return replace_batch_norms(
        module, lambda norm: SyncBatchNorm(norm.num_features, norm.eps, norm.momentum)
    )


def spread_norm_groups(model: Model, batch_size: int) -> Model:
    """Let every process have its part of the groups that a method's batch statistics are split
    into, in place.

    The momentum encoder's rows are shuffled over all processes first, so that W processes see the
    statistics that one process sees. Raises ValueError for a number of groups, or a batch, that the
    processes do not divide.
    """
    world = world_size()
    networks = {"norm_groups": model.momentum_encoder, "online_norm_groups": model.online}
    for name, network in networks.items():
        groups = getattr(model.setup, name)
        if world == 1 or groups == 1 or network is None:
            continue
        if groups % world:
            raise ValueError(f"{name} {groups} do not divide among {world} processes")
        if batch_size % world:
            raise ValueError(
                f"{name} {groups}: a batch of {batch_size} does not divide among {world} processes"
            )
        for module in network.modules():
            if isinstance(module, SplitBatchNorm):
                module.groups = groups // world
        if name == "norm_groups":
            together = 1 if model.setup.view_statistics else len(model.setup.pairing.momentum_views)
            model.shuffled = partial(shuffled_over_processes, views=together)
    return model


def shuffled_over_processes(
    network: Callable[[Tensor], Tensor], images: Tensor, views: int = 1
) -> Tensor:
    """Apply a network to as many of all processes' rows as this one holds, in a random order;
    returns its own rows.

    views: how many of them the rows are, one after the other. Every process must hold as many rows.
    The order comes from the first process, and is the one that a single process would have. Source:
    MoCo (He et al. 2020), Section 3.3.
    """
    rank, rows, counts = dist.get_rank(), len(images), [len(images)] * world_size()
    order = torch.randperm(sum(counts), device=images.device)
    dist.broadcast(order, 0)
    order = (
        torch.arange(sum(counts), device=order.device)
        .view(len(counts), views, -1)
        .transpose(0, 1)
        .flatten()[order]
    )
    own = slice(rank * rows, (rank + 1) * rows)
    made = network(gather_rows(images, counts)[order[own]])
    return gather_rows(made, counts)[order.argsort()[own]]
