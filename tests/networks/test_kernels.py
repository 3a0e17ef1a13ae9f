"""The convolutions of our nets in bfloat16 on this CPU: each agrees with float32, forward and
backward.

A kernel that does not would train another net; some releases of torch had such ones on some
processors.
"""

import pytest
import torch
from torch import nn

from nearfar.networks import OWN_NETS, build_backbone


def convolutions(encoder, size):
    """Every convolution with the images that it gets, of noise."""
    torch.manual_seed(0)
    net, seen = build_backbone(encoder, image_size=size, channels=3), []
    hooks = [
        module.register_forward_hook(
            lambda module, given, out: seen.append((module, given[0].detach()))
        )
        for module in net.modules()
        if isinstance(module, nn.Conv2d)
    ]
    net(torch.randn(4, 3, size, size))
    for hook in hooks:
        hook.remove()
    return seen


def results(conv, images, bfloat16):
    images = images.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        out = conv(images)
    assert out.dtype == (torch.bfloat16 if bfloat16 else torch.float32)
    conv.weight.grad = None
    generator = torch.Generator().manual_seed(1)
    out.float().mul(torch.randn(out.shape, generator=generator)).sum().backward()
    return out.detach().float(), images.grad, conv.weight.grad


@pytest.mark.parametrize("size", [8, 32, 33, 96])
@pytest.mark.parametrize("encoder", OWN_NETS)
def test_bfloat16_agrees_with_float32_in_every_convolution(encoder, size):
    """Rounded to 8 bits, inputs differ by at most 1/256 of themselves, sums of random signs by no
    more, about.
    """
    cases = convolutions(encoder, size)
    assert len(cases) >= 5
    for conv, images in cases:
        for exact, half in zip(
            results(conv, images, False), results(conv, images, True), strict=True
        ):
            assert 0 < (half - exact).norm() < exact.norm() / 128, conv
