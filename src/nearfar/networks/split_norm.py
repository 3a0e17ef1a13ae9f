"""Batch normalisation over parts of a batch, as on several devices."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class SplitBatchNorm(_BatchNorm):
    """Batch normalisation whose training statistics are those of each of `groups` parts of consecutive rows.

    Takes [batch, features] or [batch, channels, height, width]. Running statistics follow each group in turn.
    In eval mode it is plain batch normalisation, and its state has the same keys. Raises ValueError in train mode
    for a batch that does not divide by `groups`. Source: MoCo (He et al. 2020), Section 3.3, whose groups are devices.
    """

    def __init__(self, num_features: int, groups: int, eps: float = 1e-5, momentum: float | None = 0.1) -> None:
        super().__init__(num_features, eps, momentum)
        if groups < 1:
            raise ValueError(f"the number of groups must be 1 or more, got {groups}")
        self.groups = groups
        self.drop: nn.Module = nn.Identity()  # timm's fused layers go on with dropout and an activation
        self.act: nn.Module = nn.Identity()

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions will do."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise; see the class."""
        groups = self.groups if self.training else 1
        if len(input) % groups:
            raise ValueError(f"a batch of {len(input)} rows does not divide into {groups} normalisation groups")
        normalised = torch.cat([super(SplitBatchNorm, self).forward(part) for part in input.chunk(groups)])
        return self.act(self.drop(normalised))


def split_batch_norm(module: nn.Module, groups: int) -> nn.Module:
    """Turn every batch normalisation inside a module into one with `groups` groups, in place; returns the module.

    Parameters and buffers are kept (the same tensors), names and the state_dict too.
    """
    for name, child in module.named_children():
        if isinstance(child, _BatchNorm) and not isinstance(child, SplitBatchNorm):
            setattr(module, name, _split(child, groups))
        else:
            split_batch_norm(child, groups)
    return module


def _split(norm: _BatchNorm, groups: int) -> SplitBatchNorm:
    split = SplitBatchNorm(norm.num_features, groups, norm.eps, norm.momentum)
    split.affine, split.track_running_stats = norm.affine, norm.track_running_stats
    split._parameters, split._buffers = norm._parameters, norm._buffers
    split._modules.update(norm._modules)
    return split.train(norm.training)


def shuffled(network: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Apply a network to the rows in a random order and return its rows [batch, ...] in the order given.

    With split normalisation in the network, rows then share statistics with others than in the online branch (MoCo's
    shuffling BN). The order comes from torch's global generator of the rows' device.
    """
    order = torch.randperm(len(images), device=images.device)
    return network(images[order])[order.argsort()]
