"""Features are the same where batch norms are folded into convolutions, or nothing is folded."""

import pytest
import torch
from timm.models import register_model
from torch import nn

from nearfar.evaluation import extract
from nearfar.networks import Encoder, build_backbone
from nearfar.networks.folding import folded


class Net(nn.Module):
    """A convolution of a million weights, and a batch norm."""

    def __init__(self, joins, **norm):
        super().__init__()
        self.stem = nn.Conv2d(3, 512, 3, padding=1, bias=False)
        self.convolution = nn.Conv2d(512, 512, 2)
        self.norm = nn.BatchNorm2d(512, **norm)
        self.joins = joins

    def forward(self, images):
        return self.joins(self, self.stem(images).relu()).relu().mean((2, 3))


@register_model
def nearfar_norm_after(pretrained=False, **_):
    return Net(lambda net, images: net.norm(net.convolution(images)))


@register_model
def nearfar_norm_added(pretrained=False, **_):
    """The output of the convolution is used beside its norm."""

    def joins(net, images):
        out = net.convolution(images)
        return net.norm(out) + out

    return Net(joins)


@register_model
def nearfar_norm_twice(pretrained=False, **_):
    """The convolution has two outputs, of which one is normalised."""
    return Net(
        lambda net, images: net.norm(net.convolution(images)) + net.convolution(images.flip(1))
    )


@register_model
def nearfar_norm_first(pretrained=False, **_):
    return Net(lambda net, images: net.convolution(net.norm(images)))


@register_model
def nearfar_norm_of_batch(pretrained=False, **_):
    """A norm by the statistics of its batch."""
    return Net(lambda net, images: net.norm(net.convolution(images)), track_running_stats=False)


def encoder_of(net, size=8):
    """An encoder whose norms have statistics of their own, as after training."""
    torch.manual_seed(0)
    backbone = build_backbone(net, image_size=size, channels=3)
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d) and module.track_running_stats:
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.normal_(module.running_mean, std=0.1)
    return Encoder(backbone, size, 3, [0.5] * 3, [0.2] * 3).eval()


def norms(encoder):
    return sum(isinstance(module, nn.BatchNorm2d) for module in encoder.modules())


@pytest.mark.parametrize("name", ["nearfar_norm_after", "resnet18", "tf_efficientnet_lite0"])
def test_a_folded_encoder_has_no_batch_norms_and_the_same_features(name):
    encoder = encoder_of(name, 32)
    before = norms(encoder)
    lighter = folded(encoder)
    assert norms(lighter) == 0 and norms(encoder) == before > 0
    images = torch.rand(5, 3, 40, 40)
    with torch.no_grad():
        expected = encoder(images)
        torch.testing.assert_close(lighter(images), expected, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(extract(encoder, images), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["added", "twice", "first", "of_batch"])
def test_an_encoder_that_cannot_be_folded_stays_as_it_is(name):
    encoder = encoder_of(f"nearfar_norm_{name}")
    assert folded(encoder) is encoder and norms(encoder) == 1


def test_a_module_of_the_users_stays_as_it_is():
    encoder = encoder_of(nearfar_norm_after())
    assert folded(encoder) is encoder and norms(encoder) == 1


def test_a_small_encoder_stays_as_it_is_but_for_many_images():
    encoder = encoder_of("tiny", 32)
    assert folded(encoder) is encoder
    lighter = folded(encoder, least=0)
    assert norms(lighter) == 0 < norms(encoder)
    images = torch.rand(5, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(lighter(images), encoder(images), rtol=1e-3, atol=1e-5)
