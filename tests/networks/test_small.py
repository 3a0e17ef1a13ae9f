"""The small net: resolution, size and cost."""

import pytest
import torch
from torch import nn

from nearfar.networks import SmallNet
from nearfar.networks.small import OWN_NETS


def multiply_adds(net: nn.Module, image_size: int) -> int:
    """Count those of the convolutions, from the shapes that pass."""
    counted = []

    def count(conv: nn.Conv2d, _: object, out: torch.Tensor) -> None:
        counted.append(out[0].numel() * conv.weight[0].numel())

    hooks = [m.register_forward_hook(count) for m in net.modules() if isinstance(m, nn.Conv2d)]
    net.eval()(torch.zeros(1, 3, image_size, image_size))
    for hook in hooks:
        hook.remove()
    return sum(counted)


@pytest.mark.parametrize(
    ("image_size", "last"),
    [(4, 1), (8, 2), (12, 3), (16, 4), (28, 4), (32, 4), (40, 5), (48, 4), (64, 4), (72, 5), (96, 4), (224, 4)],
)
def test_size_of_the_last_maps(image_size: int, last: int) -> None:
    net = SmallNet(image_size).eval()
    sizes: list[torch.Size] = []
    net.blocks.register_forward_hook(lambda _, __, out: sizes.append(out.shape))
    net(torch.zeros(1, 3, image_size, image_size))
    assert sizes[0] == (1, 256, last, last)


def test_cost_at_32_pixels() -> None:
    assert 10e6 < multiply_adds(SmallNet(32), 32) < 20e6
    assert sum(p.numel() for p in SmallNet(32).parameters()) < 2e6


@pytest.mark.parametrize("image_size", [48, 64, 96, 128, 224])
def test_larger_images_cost_little_more(image_size: int) -> None:
    assert multiply_adds(SmallNet(image_size), image_size) < 1.8 * multiply_adds(SmallNet(32), 32)


@pytest.mark.parametrize(("image_size", "last"), [(8, 1), (24, 3), (32, 4), (64, 4), (96, 4), (224, 4)])
def test_medium(image_size: int, last: int) -> None:
    """Three blocks on maps of 32 px, with two to three times the cost of the small net."""
    net = OWN_NETS["medium"](image_size).eval()
    sizes: list[torch.Size] = []
    net.blocks.register_forward_hook(lambda _, __, out: sizes.append(out.shape))
    net(torch.zeros(1, 3, image_size, image_size))
    assert sizes[0] == (1, 256, last, last)
    if image_size == 32:
        assert 2 < multiply_adds(net, 32) / multiply_adds(SmallNet(32), 32) < 3
        assert sum(p.numel() for p in net.parameters()) == pytest.approx(1.2e6, rel=0.05)


def test_tiny_costs_less_than_half() -> None:
    net = OWN_NETS["tiny"](32)
    assert multiply_adds(net, 32) < multiply_adds(SmallNet(32), 32) / 2
    assert net.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, net.num_features) == (1, 128)


def test_every_parameter_gets_a_gradient_and_outputs_differ() -> None:
    torch.manual_seed(0)
    net = SmallNet(8, in_chans=1)
    out = net(torch.rand(16, 1, 8, 8))
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())
    assert torch.cdist(out, out).add(torch.eye(16) * 9).min() > 1e-3


def test_channels_last_gives_the_same_features() -> None:
    torch.manual_seed(0)
    net, images = SmallNet(12).double(), torch.rand(4, 3, 12, 12, dtype=torch.float64)
    expected = net(images)
    out = net.to(memory_format=torch.channels_last)(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(out, expected)


def test_net_learns_to_tell_stripes_apart() -> None:
    torch.manual_seed(0)
    net = SmallNet(8, in_chans=1)
    head = nn.Linear(256, 2)
    images = torch.rand(64, 1, 8, 8) * 0.2
    labels = torch.arange(64) % 2
    images[labels == 0, :, ::2] += 0.5
    images[labels == 1, :, :, ::2] += 0.5
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.05, momentum=0.9)
    for _ in range(20):
        loss = nn.functional.cross_entropy(head(net(images)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.01
