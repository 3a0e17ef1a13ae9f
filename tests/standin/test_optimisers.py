"""Every optimiser on the GPU: the steps of the CPU, and a state that goes on where it is loaded."""

import io

import pytest
import torch
from torch import nn

from nearfar.device import setup_of
from nearfar.methods import Model, SimCLR
from nearfar.networks import build_backbone
from nearfar.training.optimizers import build_optimizer, set_rates
from nearfar.training.run_folder import load_optimizer
from tests.standin.conftest import REAL

NAMES = ("sgd", "adam", "adamw", "lars", "larc", "larc-clip", "muon")
STEPS = 3


class Net(nn.Sequential):
    """Convolutions and matrices of several shapes, two of them of one shape, biases, and a weight
    without gradient.
    """

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(
            nn.Conv2d(3, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 1),
            nn.Flatten(),
            nn.Linear(72, 16),
            nn.Linear(16, 16),
            nn.Linear(16, 16),
        )
        self[3].bias.requires_grad_(False)


def begin(name, place):
    net = Net().to(place)
    fused = setup_of(place, "32-true").fused.value
    on_device = place.type != "cpu"
    return net, build_optimizer(
        name, net, lr=0.01, weight_decay=0.1, fused=fused, on_device=on_device
    )


def train(net, optimizer, steps):
    place = next(net.parameters()).device
    for step in steps:
        images = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(step)).to(place)
        optimizer.zero_grad()
        net(images).square().mean().backward()
        set_rates(optimizer, 0.01 / (1 + step), 0.01)
        optimizer.step()
    return [weights.detach().cpu() for weights in net.state_dict().values()]


def room_for(name, tolerance):
    """Muon enlarges the last digits of a gradient's small singular values."""
    return tolerance | {"atol": max(1e-5, tolerance["atol"])} if name == "muon" else tolerance


@pytest.mark.parametrize("name", NAMES)
def test_an_optimiser_takes_the_steps_of_the_cpu(name, device, tolerance, waits_for):
    wanted = train(*begin(name, torch.device("cpu")), range(2 * STEPS))
    with waits_for() as waits:
        net, optimizer = begin(name, device)
        weights = train(net, optimizer, range(2 * STEPS))
    torch.testing.assert_close(weights, wanted, **room_for(name, tolerance))
    assert all(line == "a test" for _, line in waits)


@pytest.mark.parametrize("there_first", [True, False], ids=["from the GPU", "to the GPU"])
@pytest.mark.parametrize("name", NAMES)
def test_the_state_of_an_optimiser_goes_on_elsewhere(name, there_first, device, tolerance):
    places = [device, torch.device("cpu")] if there_first else [torch.device("cpu"), device]
    net, optimizer = begin(name, places[0])
    train(net, optimizer, range(STEPS))
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()["state"]}, file)
    file.seek(0)
    saved = torch.load(file, map_location="cpu", weights_only=True)
    net, optimizer = begin(name, places[1])
    net.load_state_dict(saved["net"])
    load_optimizer(optimizer, saved["optimizer"])
    wanted = train(*begin(name, torch.device("cpu")), range(2 * STEPS))
    weights = train(net, optimizer, range(STEPS, 2 * STEPS))
    torch.testing.assert_close(weights, wanted, **room_for(name, tolerance))


LAUNCHES = {
    "small": {"sgd": 2, "adam": 4, "adamw": 4, "lars": 35, "larc": 414, "muon": 155},
    "resnet18": {"sgd": 2, "adam": 4, "adamw": 4, "lars": 63, "larc": 1170, "muon": 233},
}
"""Of a step, at most; they may only fall."""


@pytest.mark.skipif(REAL, reason="the stand-in counts launches")
@pytest.mark.parametrize("encoder", LAUNCHES)
@pytest.mark.slow
def test_a_step_launches_no_more_than_before(encoder, device):
    from tests.standin.device import launches

    counted = {}
    for name in LAUNCHES[encoder]:
        backbone = build_backbone(encoder, image_size=32, channels=3)
        net = Model(SimCLR(), backbone, 64).online.to(device)
        optimizer = build_optimizer(
            name, net, lr=0.01, weight_decay=0.1, fused=True, on_device=True
        )
        for _ in range(2):  # the first makes the state
            for weights in net.parameters():
                weights.grad = torch.full_like(weights, 0.01)
            with launches() as made:
                optimizer.step()
        counted[name] = made.total()
    assert counted == LAUNCHES[encoder]
