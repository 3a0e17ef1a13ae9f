import pytest
import torch
from torch import nn

from nearfar.evaluation import extract, raw_pixels


class Net(nn.Module):
    """Batch norm and dropout: its output tells the training mode from the eval mode."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm2d(3)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(3 * 8 * 8, 5)
        self.devices = []

    def forward(self, x):
        assert x.dtype == torch.uint8
        self.devices.append(x.device.type)
        return self.out(self.drop(self.norm(x.float() / 255)).flatten(1))


def images(count=11, side=8):
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_features_are_those_of_the_eval_mode_in_order():
    net, x = Net(), images()
    with torch.no_grad():
        expected = torch.stack([net.eval()(one[None])[0] for one in x])
    net.train()
    net.norm.eval()  # a frozen norm must stay frozen afterwards
    before = net.norm.running_mean.clone()
    features = extract(net, x, batch_size=4)
    torch.testing.assert_close(features, expected, rtol=1e-5, atol=1e-6)
    assert net.training and net.drop.training and not net.norm.training
    assert torch.equal(net.norm.running_mean, before)


def test_features_are_float32_without_gradient_whatever_the_encoder_computes_in():
    net = nn.Sequential(Net(), nn.Linear(5, 4))
    features = extract(nn.Sequential(net, Cast(torch.bfloat16)), images())
    assert features.dtype == torch.float32 and not features.requires_grad and features.device.type == "cpu"


class Cast(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        return x.to(self.dtype)


def test_modes_come_back_after_an_error():
    class Broken(Net):
        def forward(self, x):
            raise RuntimeError("no")

    net = Broken().train()
    with pytest.raises(RuntimeError, match="no"):
        extract(net, images())
    assert all(module.training for module in net.modules())


def test_progress_counts_images():
    seen = []
    extract(Net(), images(), batch_size=4, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(4, 11), (8, 11), (11, 11)]


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="at least one"):
        extract(Net(), images(0))
    with pytest.raises(ValueError, match="batch_size"):
        extract(Net(), images(), batch_size=0)
    with pytest.raises(ValueError, match=r"\[batch, dim\]"):
        extract(nn.Identity(), images())
    with pytest.raises(ValueError, match="at least one"):
        raw_pixels(images(0))


def test_raw_pixels_are_the_pixels():
    x = images()
    features = raw_pixels(x, batch_size=4)
    assert features.shape == (11, 192) and features.dtype == torch.float32
    torch.testing.assert_close(features * 255, x.flatten(1).float())


def test_large_raw_pixels_are_area_means():
    x = images(2, side=64)
    features = raw_pixels(x).reshape(2, 3, 32, 32)
    expected = x.double().reshape(2, 3, 32, 2, 32, 2).mean((3, 5)) / 255
    torch.testing.assert_close(features.double(), expected, rtol=0, atol=1e-6)
