"""Features are the same where batch norms are folded into convolutions, or nothing is folded."""

import pytest
import torch
from torch import nn

from nearfar.evaluation import extract
from nearfar.networks import Encoder, build_backbone
from nearfar.networks.folding import folded


class Net(nn.Module):
    """A convolution of a million weights and a batch norm of what `joins` makes of its output."""

    num_features = 512

    def __init__(self, joins=lambda net, images: net.norm(net.convolution(images))):
        super().__init__()
        self.stem = nn.Conv2d(3, 512, 3, padding=1, bias=False)
        self.convolution = nn.Conv2d(512, 512, 2, bias=True)
        self.norm = nn.BatchNorm2d(512)
        for numbers in (self.norm.running_mean, self.norm.weight, self.norm.bias):
            nn.init.normal_(numbers)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)
        self.joins = joins

    def forward(self, images):
        return self.joins(self, self.stem(images).relu()).relu().mean((2, 3))


def encoder_of(net, size=8):
    backbone = build_backbone(net, image_size=size, channels=3)
    return Encoder(backbone, size, 3, [0.5] * 3, [0.2] * 3).eval()


def norms(encoder):
    return sum(isinstance(module, nn.BatchNorm2d) for module in encoder.modules())


@pytest.mark.parametrize("name", [Net(), "resnet18", "tf_efficientnet_lite0"])
def test_a_folded_encoder_has_no_batch_norms_and_the_same_features(name):
    torch.manual_seed(0)
    encoder = encoder_of(name, 32)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.normal_(module.running_mean, std=0.1)
    before = norms(encoder)
    lighter = folded(encoder)
    assert norms(lighter) == 0 and norms(encoder) == before > 0
    images = torch.rand(5, 3, 40, 40)
    with torch.no_grad():
        expected = encoder(images)
        torch.testing.assert_close(lighter(images), expected, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(extract(encoder, images), expected, rtol=1e-3, atol=1e-5)


def added(net, images):  # the output of the convolution is used beside its norm
    out = net.convolution(images)
    return net.norm(out) + out


def twice(net, images):  # the convolution has two outputs, of which one is normalised
    return net.norm(net.convolution(images)) + net.convolution(images.flip(1))


def first(net, images):  # the norm comes before the convolution
    return net.convolution(net.norm(images))


@pytest.mark.parametrize("joins", [added, twice, first])
def test_an_encoder_that_cannot_be_folded_stays_as_it_is(joins):
    encoder = encoder_of(Net(joins))
    assert folded(encoder) is encoder and norms(encoder) == 1


def test_a_norm_by_the_statistics_of_its_batch_stays():
    net = Net()
    net.norm = nn.BatchNorm2d(512, track_running_stats=False)
    encoder = encoder_of(net)
    assert folded(encoder) is encoder


def test_a_small_encoder_stays_as_it_is():
    encoder = encoder_of("tiny", 32)
    assert folded(encoder) is encoder
