"""The parts of MoCo: the momentum encoder, the queue of keys, and batch normalisation in groups."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nearfar.device import draw


class MomentumEncoder(nn.Module):
    """A copy of the online networks that follows them slowly and gets no gradient.

    `online` is any module, as a rule `nn.Sequential(backbone, projector)`; `forward` takes what it
    takes. Parameters have requires_grad False, so the optimiser never holds them, and stand in the
    state_dict. They are float32 where the online networks are float16 or bfloat16, in which small
    steps round to none, and so are its inputs and outputs then. Buffers (statistics of batch
    normalisation) are taken from the online networks at every update. In train mode the momentum
    encoder normalises by the statistics of its own batch; its running ones matter in eval mode
    only. Source: MoCo (He et al. 2020), Eq. 2. Differs from its released code: there the momentum
    encoder's buffers are left to the momentum encoder's own forward passes.

    >>> online = torch.nn.Linear(4, 2)
    >>> follower = MomentumEncoder(online)
    >>> follower.update(online, momentum=0.99)
    >>> follower(torch.zeros(3, 4)).requires_grad
    False
    """

    def __init__(self, online: nn.Module) -> None:
        super().__init__()
        self.networks = copy.deepcopy(online).requires_grad_(False)
        self._apply(lambda tensor: tensor)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MomentumEncoder:
        """Move or convert the networks as of any module, but not to half precision."""
        super()._apply(fn, recurse)
        super()._apply(_in_float32, recurse)
        return self

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Embed without a graph."""
        given = [_in_float32(arg) if isinstance(arg, Tensor) else arg for arg in args]
        return self.networks(*given, **kwargs)

    @torch.no_grad()
    def update(self, online: nn.Module, momentum: float | Tensor) -> None:
        """Set every parameter to momentum * own + (1 - momentum) * online; raises ValueError
        outside [0, 1].

        A momentum that is a tensor of the device, as a captured step needs, is not looked at.
        """
        if not isinstance(momentum, Tensor) and not 0 <= momentum <= 1:
            raise ValueError(f"the momentum encoder's momentum must be in [0, 1], got {momentum}")
        own: list[Tensor] = list(self.networks.parameters())
        new: list[Tensor] = list(online.parameters())
        own_buffers, new_buffers = list(self.networks.buffers()), list(online.buffers())
        if [p.shape for p in own + own_buffers] != [p.shape for p in new + new_buffers]:
            raise ValueError(
                "a momentum encoder follows the networks it was copied from; these have "
                "other parameters"
            )
        new = [weights.to(mine.dtype) for weights, mine in zip(new, own, strict=True)]
        if not own:
            pass
        elif isinstance(momentum, Tensor):
            steps = torch._foreach_sub(new, own)
            torch._foreach_mul_(steps, (1 - momentum).to(own[0].dtype))
            torch._foreach_add_(own, steps)
        else:
            torch._foreach_lerp_(own, new, 1 - momentum)
        if own_buffers:
            torch._foreach_copy_(own_buffers, new_buffers)


def _in_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


class Queue(nn.Module):
    """The last `size` keys [size, dim], unit rows, oldest overwritten first; state is saved with
    the module.

    Starts as normalised Gaussian rows from torch's global generator. Source: MoCo (He et al. 2020),
    Section 3.2. Differs from the released code: the size need not be a multiple of the batch.
    Raises ValueError for a size or dim below 1.

    >>> queue = Queue(size=8, dim=4)
    >>> queue.push(torch.eye(4))
    >>> queue().shape
    torch.Size([8, 4])
    """

    stored: Tensor
    pointer: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        if size < 1 or dim < 1:
            raise ValueError(f"a queue needs a size and a dim of 1 or more, got {size} and {dim}")
        self.register_buffer("stored", F.normalize(torch.randn(size, dim)))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))

    def forward(self) -> Float[Tensor, "size dim"]:
        """The stored keys without gradient: a copy, so that a push between forward and backward
        does no harm.
        """
        return self.stored.clone()

    @torch.no_grad()
    def push(self, keys: Float[Tensor, "batch dim"]) -> None:
        """Store keys (made unit rows here), over the oldest ones; of more than `size` keys the last
        ones stay.

        Keys whose length is not a finite number are left out. Waits for nothing on a GPU: the
        pointer stays on the device.
        """
        size, most = len(self.stored), min(len(keys), len(self.stored))
        keys = keys.to(self.stored.dtype)
        finite = torch.linalg.vector_norm(keys, dim=1).isfinite()
        count = finite.sum()
        # Those to be left out first, so that the last `most` rows hold as many of the others as
        # there is place for.
        order = finite.to(torch.uint8).argsort(stable=True)[-most:]
        places = (self.pointer + count - most + torch.arange(most, device=keys.device)) % size
        kept = torch.where(
            finite[order].unsqueeze(1), F.normalize(keys[order]), self.stored[places]
        )
        self.stored.index_copy_(0, places, kept)
        self.pointer.copy_((self.pointer + count) % size)


class FreeBatchNorm(_BatchNorm):
    """Batch normalisation of any number of dimensions; a dropout and an activation follow, as in
    timm's layers.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1) -> None:
        super().__init__(num_features, eps, momentum)
        self.drop: nn.Module = nn.Identity()
        self.act: nn.Module = nn.Identity()

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions will do."""


def replace_batch_norms(
    module: nn.Module, make: Callable[[_BatchNorm], FreeBatchNorm]
) -> nn.Module:
    """Turn every batch normalisation inside a module into another, in place, with the same tensors
    and names.

    Those that are `FreeBatchNorm` already stay as they are: they are split or synchronised on
    purpose.
    """
    for name, child in module.named_children():
        if isinstance(child, _BatchNorm) and not isinstance(child, FreeBatchNorm):
            new = make(child)
            new.affine, new.track_running_stats = child.affine, child.track_running_stats
            new._parameters, new._buffers = child._parameters, child._buffers
            new._modules.update(child._modules)
            setattr(module, name, new.train(child.training))
        else:
            replace_batch_norms(child, make)
    return module


class SplitBatchNorm(FreeBatchNorm):
    """Batch normalisation whose training statistics are those of each of `groups` parts of
    consecutive rows.

    Takes [batch, features] or [batch, channels, height, width]. Running statistics follow each
    group in turn. In eval mode it is plain batch normalisation, and its state has the same keys.
    Raises ValueError in train mode for a batch that does not divide by `groups`. Source: MoCo (He
    et al. 2020), Section 3.3, whose groups are devices.
    """

    def __init__(
        self, num_features: int, groups: int, eps: float = 1e-5, momentum: float | None = 0.1
    ) -> None:
        super().__init__(num_features, eps, momentum)
        if groups < 1:
            raise ValueError(f"the number of groups must be 1 or more, got {groups}")
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        """Normalise; see the class."""
        groups = self.groups if self.training else 1
        if len(input) % groups:
            raise ValueError(
                f"a batch of {len(input)} rows does not divide into {groups} normalisation groups"
            )
        normalised = torch.cat(
            [super(SplitBatchNorm, self).forward(part) for part in input.chunk(groups)]
        )
        return self.act(self.drop(normalised))


def split_batch_norm(module: nn.Module, groups: int) -> nn.Module:
    """Turn every batch normalisation inside a module into one with `groups` groups, in place;
    returns the module.

    Parameters and buffers are kept (the same tensors), names and the state_dict too.
    """
    return replace_batch_norms(
        module, lambda norm: SplitBatchNorm(norm.num_features, groups, norm.eps, norm.momentum)
    )


def shuffled(network: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Apply a network to the rows, in a random order of the CPU's generator; returns its rows
    [batch, ...] as given.

    With split normalisation, rows then share statistics with others than in the online branch:
    MoCo's shuffling BN.
    """
    order = draw(lambda: torch.randperm(len(images)), images.device)
    return network(images[order])[order.argsort()]
