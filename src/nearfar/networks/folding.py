"""Nets for features alone: batch norms are folded into the convolutions before them.

In evaluation a batch norm is a factor and a summand for each channel, which the convolution before
it can apply itself. Features are the same but for rounding, and a CPU reads and writes less.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from timm.layers import BatchNormAct2d
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from nearfar.networks.encoder import Encoder

LEAST = 1_000_000  # weights of a net from which it pays on some thousand images
AGREE = 1e-4  # largest difference of features, of the largest feature
Net = TypeVar("Net", bound=nn.Module)


def folded(encoder: Encoder, least: int = LEAST) -> Encoder:
    """Return a copy in eval mode whose batch norms are folded, on the same device.

    least: weights of a net from which it pays; of many images, any number.

    A norm is folded that takes the output of a convolution, both used once, as a trial with two
    images shows; the features of these must then be the same. The encoder itself is returned where
    they are not, where there is no norm to fold, where it is small, and where it holds a user's own
    module, which may not be copied or do more than compute features.
    """
    size = sum(weights.numel() for weights in encoder.parameters())
    if size < least or encoder.backbone.architecture is None:
        return encoder
    side = encoder.image_size
    images = torch.rand(
        2, encoder.channels, side, side, generator=torch.Generator().manual_seed(0)
    ).to(encoder.mean.device)
    return folded_net(encoder, images)


def folded_net(net: Net, images: Float[Tensor, "2 channels height width"]) -> Net:
    """Return a copy of any net in eval mode whose batch norms are folded, by a trial with two
    images, as for `folded`; the net itself where there are none, or its output is another then.
    """
    lighter = copy.deepcopy(net).eval()
    with torch.no_grad():
        expected, pairs = _traced(lighter, images)
        if not pairs:
            return net
        for convolution, norm in pairs:
            _fold(lighter, convolution, norm)
        off = (lighter(images) - expected).abs().max()
    return lighter if bool(off <= AGREE * expected.abs().max()) else net


def _traced(net: nn.Module, images: Tensor) -> tuple[Tensor, list[tuple[nn.Conv2d, Any]]]:
    """The output for images, and each convolution with the batch norm that takes its output."""
    made: dict[int, tuple[nn.Conv2d, Tensor]] = {}  # the output is held: no other takes its place
    calls: dict[nn.Module, int] = {}
    pairs: list[tuple[nn.Conv2d, Any]] = []

    def after(module: Any, args: Any, output: Tensor) -> None:
        calls[module] = calls.get(module, 0) + 1
        if isinstance(module, nn.Conv2d):
            made[id(output)] = module, output
        elif id(args[0]) in made and module.running_var is not None:
            pairs.append((made[id(args[0])][0], module))

    with ExitStack() as hooks:
        for module in net.modules():
            if isinstance(module, nn.Conv2d) or type(module) in (nn.BatchNorm2d, BatchNormAct2d):
                hooks.enter_context(module.register_forward_hook(after))
        out = net(images)
    return out, [pair for pair in pairs if all(calls[module] == 1 for module in pair)]


def _fold(net: nn.Module, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    """Put a norm into the convolution before it; what it does beyond stays in its place."""
    assert norm.running_mean is not None and norm.running_var is not None
    convolution.weight, convolution.bias = fuse_conv_bn_weights(
        convolution.weight,
        convolution.bias,
        norm.running_mean,
        norm.running_var,
        norm.eps,
        norm.weight,
        norm.bias,
    )
    name = next(name for name, module in net.named_modules() if module is norm)
    beyond = norm.act if isinstance(norm, BatchNormAct2d) else nn.Identity()
    net.set_submodule(name, beyond)
