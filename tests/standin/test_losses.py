"""Every loss on the stand-in: the value and the gradients of the CPU, and nothing waits for the device."""

import pytest
import torch

from tests.losses.test_contract import CASES, inputs, make
from tests.standin.device import NAME, synchronisations


def evaluate(loss, given):
    given = [x.detach().requires_grad_(x.is_floating_point()) for x in given]
    torch.manual_seed(1)
    value = loss(*given)
    value.backward()
    return value, [x.grad for x in given]


@pytest.mark.parametrize("name", CASES)
def test_a_loss_is_the_same_and_waits_for_nothing(name):
    given = inputs(name, dtype=torch.float32)
    here, there = make(name), make(name).to(NAME)
    for _ in range(2):  # the second time with the state that the first has left
        wanted, wanted_gradients = evaluate(here, given)
        moved = [x.to(NAME) for x in given]
        with synchronisations() as waits:
            value, gradients = evaluate(there, moved)
        assert value.device.type == NAME and value.item() == pytest.approx(wanted.item(), rel=1e-5, abs=1e-6)
        for gradient, other in zip(gradients, wanted_gradients, strict=True):
            assert (gradient is None) == (other is None)
            assert gradient is None or torch.allclose(gradient.cpu(), other, rtol=1e-4, atol=1e-6)
        assert waits == []
    for key, saved in there.state_dict().items():
        assert torch.allclose(saved.cpu(), here.state_dict()[key]), key
