"""Types and shapes are checked while the tests run."""

from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from nearfar.losses import SimCLR
from nearfar.networks import Queue, SmallNet
from nearfar.views import View
from tools.typechecker import checked, checked_once

in_tests = checked_once(typechecker=checked)


@in_tests
def products(
    rows: Float[Tensor, "n dim"],
    others: "Float[Tensor, 'm dim']",
    scale: float = 1.0,
    *,
    cut: int = 0,
) -> Float[Tensor, "n m"]:
    return scale * (rows @ others.T)[: len(rows) - cut]


@in_tests
@dataclass
class Pair:
    first: Float[Tensor, " n"]
    second: Float[Tensor, " n"]


def test_arguments_that_fit_are_passed_on():
    assert products(torch.ones(2, 3), others=torch.ones(4, 3), scale=2).tolist() == [[6.0] * 4] * 2
    assert products.__name__ == "products" and products.__annotations__["scale"] is float
    assert Pair(torch.ones(2), torch.ones(2)).second.shape == (2,)


@pytest.mark.parametrize(
    "call",
    [
        lambda: products(torch.ones(2, 3), torch.ones(4, 5)),
        lambda: products(torch.ones(2, 3), torch.ones(4, 3, dtype=torch.int64)),
        lambda: products(torch.ones(2, 3), torch.ones(3)),
        lambda: products(torch.ones(2, 3), torch.ones(4, 3), "2"),
        lambda: products(torch.ones(2, 3), torch.ones(4, 3), cut=1),
        lambda: Pair(torch.ones(2), torch.ones(3)),
        lambda: SimCLR()(torch.ones(2, 3), torch.ones(3, 3)),
        lambda: SimCLR()(torch.zeros(4, 3), torch.zeros(4, 3, 2)),
        lambda: Queue("8", 4),
        lambda: SmallNet(image_size="32"),
        lambda: SmallNet(image_size=32)(torch.zeros(3, 32, 32)),
        lambda: View(scale="small"),
    ],
)
def test_wrong_types_and_shapes_raise(call):
    with pytest.raises(TypeCheckError):
        call()


def test_calls_have_sizes_of_their_own():
    """A call inside another one, and one that raised, leave no sizes behind."""

    @in_tests
    def twice(rows: Float[Tensor, "n dim"]) -> Float[Tensor, "n n"]:
        products(torch.ones(1, 5), torch.ones(6, 5))
        with pytest.raises(TypeCheckError):
            products(torch.ones(1, 7), torch.ones(6, 5))
        return products(rows, rows)

    assert twice(torch.ones(2, 3)).shape == (2, 2)


def test_a_check_that_is_switched_off_lets_all_through(unchecked):
    with pytest.raises(RuntimeError):
        products(torch.ones(2, 3), torch.ones(4, 5))
