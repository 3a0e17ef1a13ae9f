"""SigCLR against its plain form, in all its modes."""

import math

import pytest
import torch

import references as plain
from nearfar.losses import SigCLR

MODES = {  # the rows of the paper's Table 2, and a fixed bias
    "fixed t, no bias": ({"bias": None}, []),
    "learned t, no bias": ({"bias": None, "learn_temperature": True}, ["log_scale"]),
    "fixed t, learned bias": ({}, ["bias"]),
    "learned t, learned bias": ({"learn_temperature": True}, ["bias", "log_scale"]),
    "fixed t, fixed bias": ({"bias": -3.0, "learn_bias": False}, []),
}


@pytest.mark.parametrize(("options", "learned"), MODES.values(), ids=MODES)
@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_value_and_all_gradients_equal_the_plain_form(options, learned, temperature):
    torch.manual_seed(0)
    views = [torch.randn(6, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    loss = SigCLR(temperature, **options).double()
    assert sorted(dict(loss.named_parameters())) == learned
    log_scale = torch.tensor(-math.log(temperature), dtype=torch.float64, requires_grad=True)
    bias = torch.tensor(options.get("bias", -10.0) or 0.0, dtype=torch.float64, requires_grad=True)
    value, expected = loss(*views), plain.sigclr(*views, 1 / log_scale.exp(), bias)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)  # log_scale was rounded to float32 first
    inputs = {"bias": bias, "log_scale": log_scale}
    gradients = torch.autograd.grad(value, [*views, *(getattr(loss, name) for name in learned)])
    expected_gradients = torch.autograd.grad(expected, [*views, *(inputs[name] for name in learned)])
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-9)


def test_a_bias_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="bias"):
        SigCLR(bias=math.nan)
