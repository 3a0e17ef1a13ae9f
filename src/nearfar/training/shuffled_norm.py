"""Shuffling batch norm over several processes: the groups that one process would have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from nearfar.methods import Model
from nearfar.networks import SplitBatchNorm
from nearfar.pairs.shares import gather_rows, world_size


def spread_norm_groups(model: Model) -> Model:
    """Let every process have its part of the groups that a method's batch statistics are split into, in place.

    The momentum encoder's rows are shuffled over all processes first, so that W processes see the statistics that one
    process sees. Raises ValueError for a number of groups that the processes do not divide.
    """
    world = world_size()
    networks = {"norm_groups": model.momentum_encoder, "online_norm_groups": model.online}
    for name, network in networks.items():
        groups = getattr(model.setup, name)
        if world == 1 or groups == 1 or network is None:
            continue
        if groups % world:
            raise ValueError(f"{name} {groups} do not divide among {world} processes")
        for module in network.modules():
            if isinstance(module, SplitBatchNorm):
                module.groups = groups // world
        if name == "norm_groups":
            together = 1 if model.setup.view_statistics else len(model.setup.pairing.momentum_views)
            model.shuffled = partial(shuffled_over_processes, views=together)
    return model


def shuffled_over_processes(network: Callable[[Tensor], Tensor], images: Tensor, views: int = 1) -> Tensor:
    """Apply a network to as many of all processes' rows as this one holds, in a random order; returns its own rows.

    views: how many of them the rows are, one after the other. Every process must hold as many rows. The order comes
    from the first process, and is the one that a single process would have. Source: MoCo (He et al. 2020), Section 3.3.
    """
    rank, rows, counts = dist.get_rank(), len(images), [len(images)] * world_size()
    order = torch.randperm(sum(counts), device=images.device)
    dist.broadcast(order, 0)
    order = torch.arange(sum(counts), device=order.device).view(len(counts), views, -1).transpose(0, 1).flatten()[order]
    own = slice(rank * rows, (rank + 1) * rows)
    made = network(gather_rows(images, counts)[order[own]])
    return gather_rows(made, counts)[order.argsort()[own]]
