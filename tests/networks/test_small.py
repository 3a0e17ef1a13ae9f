"""The small net: resolution, size and cost; a first convolution that whitens."""

import numpy as np
import pytest
import torch
from torch import nn

from nearfar.networks import SmallNet, build_backbone, whiten_stem
from nearfar.networks.backbone import with_grid
from nearfar.networks.small import WHITENING_FLOOR


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
    ("name", "lasts"),
    [
        ("small", {4: 1, 8: 2, 12: 3, 28: 4, 32: 4, 40: 5, 48: 4, 72: 5, 96: 4, 224: 4}),
        ("medium", {8: 1, 24: 3, 32: 4, 64: 4, 96: 4, 224: 4}),
    ],
)
def test_larger_images_end_as_small_maps_and_cost_little_more(
    name: str, lasts: dict[int, int]
) -> None:
    for size, last in lasts.items():
        net = build_backbone(name, image_size=size, channels=3).net.eval()
        assert net.forward_features(torch.zeros(1, 3, size, size)).shape == (1, 256, last, last)
        assert multiply_adds(net, size) < 1.8 * {"small": 17e6, "medium": 45e6}[name]


@pytest.mark.parametrize(
    ("name", "millions", "parameters"),
    [("tiny", 8, 0.29e6), ("small", 17, 0.83e6), ("medium", 45, 1.2e6)],
)
def test_cost_at_32_pixels(name: str, millions: float, parameters: float) -> None:
    net = build_backbone(name, image_size=32, channels=3).net
    assert multiply_adds(net, 32) == pytest.approx(millions * 1e6, rel=0.06)
    assert sum(p.numel() for p in net.parameters()) == pytest.approx(parameters, rel=0.05)


@pytest.mark.parametrize(("size", "side"), [(32, 3), (64, 4)])
def test_directions_of_the_patches_come_out_uncorrelated_and_equally_large(size, side):
    torch.manual_seed(0)
    images = torch.nn.functional.avg_pool2d(
        torch.randn(200, 3, size + 4, size + 4), 5, 1
    )  # neighbours are alike
    net = SmallNet(size)
    before = net.conv.weight.clone()
    whiten_stem(net, images)
    count = min(32, 3 * side**2)
    filters = net.conv.weight.detach().flatten(1).double().numpy()
    patches = images[:, :, : size // side * side, : size // side * side].double().numpy()
    patches = (
        patches.reshape(200, 3, size // side, side, size // side, side)
        .transpose(0, 2, 4, 1, 3, 5)
        .reshape(-1, 3 * side**2)
    )
    covariance = np.cov(patches @ filters[:count].T, rowvar=False)
    values = np.sort(np.linalg.eigvalsh(np.cov(patches, rowvar=False)))[::-1][:count]
    np.testing.assert_allclose(covariance, np.diag(values / (values + WHITENING_FLOOR)), atol=1e-5)
    np.testing.assert_array_equal(filters[count : 2 * count], -filters[:count])
    torch.testing.assert_close(net.conv.weight[2 * count :], before[2 * count :], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["tiny", "small", "medium"])
def test_features_on_a_grid_are_the_mean_and_the_means_of_its_cells(name):
    torch.manual_seed(0)
    plain = build_backbone(name, image_size=96, channels=3).eval()
    net = with_grid(plain, 2)
    images = torch.randn(3, 3, 96, 96)
    with torch.no_grad():
        maps, features = plain.net.forward_features(images), net(images)
    width = plain.num_features
    assert net.num_features == 5 * width == features.shape[1]
    torch.testing.assert_close(features[:, :width], plain(images))
    cells = features[:, width:].view(3, width, 2, 2)
    half = maps.shape[2] // 2  # maps of 4 x 4
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
        part = maps[:, :, row * half : (row + 1) * half, column * half : (column + 1) * half]
        torch.testing.assert_close(2 * cells[:, :, row, column], part.mean((2, 3)))


def test_features_on_a_grid_tell_places_apart_that_the_mean_does_not():
    torch.manual_seed(0)
    net = with_grid(build_backbone("small", image_size=32, channels=1).eval(), 3)
    image = torch.zeros(1, 1, 32, 32)
    image[..., 4:12, 4:12] = 1
    with torch.no_grad():
        features, shifted = net(image)[0], net(image.roll(16, 3))[0]
    mean, cells = slice(None, 256), slice(256, None)
    similar = [torch.cosine_similarity(features[part], shifted[part], 0) for part in (mean, cells)]
    assert similar[0] > similar[1] + 0.1


def test_a_grid_is_for_our_nets():
    with pytest.raises(ValueError, match=r"`grid=3` .* tiny, small, medium"):
        with_grid(build_backbone("resnet18", image_size=32, channels=3), 3)
    with pytest.raises(ValueError, match="1 to 32 cells"):
        SmallNet(32, grid=33)
