"""A learned temperature begins at its number, stays in its range and is shown."""

import math

import pytest
import torch

from nearfar import losses as L
from nearfar import testing

LOSSES = {
    "SimCLR": (L.SimCLR, ["view", "view"]),
    "DCL": (L.DCL, ["view", "view"]),
    "SigCLR": (L.SigCLR, ["view", "view"]),
    "MoCo": (L.MoCo, ["view", "key", "queue"]),
    "JCL": (L.JCL, ["view", "keys", "queue"]),
    "SCE": (L.SCE, ["view", "key", "queue"]),
    "NNCLR": (L.NNCLR, ["key", "view", "queue"]),
}
every_loss = pytest.mark.parametrize("name", LOSSES)


def inputs(name):
    return testing.make_inputs(LOSSES[name][1], 8, 5, 40, 20, dtype=torch.float64)


@every_loss
@pytest.mark.parametrize("temperature", [0.01, 0.02, 0.4, 1.0, 2.5, 100.0])
def test_begins_as_the_fixed_temperature_and_is_shown(name, temperature):
    learned = LOSSES[name][0](temperature=temperature, learn_temperature=True)
    fixed = LOSSES[name][0](temperature=temperature)
    torch.manual_seed(0)
    value = learned(*inputs(name))
    torch.manual_seed(0)
    torch.testing.assert_close(value, fixed(*inputs(name)), rtol=2e-5, atol=1e-5)
    assert learned.monitored["temperature"].item() == pytest.approx(temperature, rel=1e-5)


@every_loss
@pytest.mark.parametrize(("log_scale", "temperature"), [(9.0, 0.01), (-9.0, 100.0)])
def test_is_brought_back_into_its_range(name, log_scale, temperature):
    loss = LOSSES[name][0](learn_temperature=True)
    with torch.no_grad():
        loss.log_scale.fill_(log_scale)
    assert loss(*inputs(name)).isfinite()
    assert math.exp(-loss.log_scale.item()) == pytest.approx(temperature, rel=1e-5)


@every_loss
@pytest.mark.parametrize("temperature", [0.0099, 100.1])
@pytest.mark.usefixtures("unchecked")
def test_a_start_outside_the_range_is_refused(name, temperature):
    with pytest.raises(ValueError, match="temperature"):
        LOSSES[name][0](temperature=temperature, learn_temperature=True)


NUMBERS = {
    "sigma": (lambda x: L.DCL(sigma=x), [1e-3, 5.0], [0.0, -1.0, math.inf, math.nan]),
    "iterations": (lambda x: L.SwAV(6, 9, iterations=x), [1, 4], [0, -1]),
    "num_images of SogCLR": (L.SogCLR, [1, 9], [0, -1]),
    "num_images of iSogCLR": (L.ISogCLR, [1, 9], [0, -1]),
    "lr of iSogCLR": (lambda x: L.ISogCLR(8, lr=x), [0.0, 1.0], [-1e-9, math.inf, math.nan]),
    "rho of iSogCLR": (lambda x: L.ISogCLR(8, rho=x), [0.0, 1.0], [-1e-9, math.inf, math.nan]),
    "temperature of SogCLR": (lambda x: L.SogCLR(8, x), [1 / 60, 0.02, 3.0], [1 / 61, 0.0]),
    "group_size": (lambda x: L.SimCLR(group_size=x), [None, 2, 3], [1, 0, -2]),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.usefixtures("unchecked")
def test_numbers_are_taken_up_to_the_ends_of_their_range_and_not_beyond(name):
    make, right, wrong = NUMBERS[name]
    for number in right:
        make(number)
    for number in wrong:
        with pytest.raises(ValueError, match=name.split()[0]):
            make(number)
