"""Arithmetic that all reductions share: dtypes, devices, the way out of autocast, checks, and matrix
products.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nearfar.pairs.arithmetic import (
    AT_ONCE,
    _onednn_works,
    add_product_,
    apart_from_scale,
    check_queue,
    dot_products,
    is_exact,
    rows_not_finite,
    weighted_rows,
    without_autocast,
)


@pytest.mark.parametrize("learned", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [torch.float64, torch.float32, torch.bfloat16])
def test_a_learned_temperature_is_the_inverse_of_a_scale_in_the_dtype_of_the_rows(learned, rows):
    """1 / 0.25 is 4, and its slope is -1 / 0.25^2; the temperature itself has none."""
    given = torch.tensor(0.25, dtype=learned, requires_grad=True)
    temperature, scale = apart_from_scale(given, torch.ones(2, 3, dtype=rows))
    wide = torch.float64 if rows == torch.float64 else torch.float32
    assert temperature.dtype == scale.dtype == wide
    assert (temperature.item(), scale.item()) == (0.25, 4) and not temperature.requires_grad
    assert torch.autograd.grad(scale, given)[0].item() == -16


def test_a_learned_temperature_goes_to_the_device_of_the_rows_and_a_number_stays_one():
    _, scale = apart_from_scale(torch.tensor(0.25), torch.ones(2, 3, device="meta"))
    assert scale.device.type == "meta"
    assert apart_from_scale(2, torch.ones(2, 3)) == (2.0, None)


def test_products_need_float32_unless_the_user_chose_bfloat16():
    rows, half = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bfloat16)
    assert is_exact(rows) and not is_exact(rows, half) and not is_exact(half)
    with without_autocast(rows):
        assert is_exact(rows)
    for chosen, exact in ((torch.bfloat16, False), (torch.float16, True)):
        with torch.autocast("cpu", dtype=chosen):
            with without_autocast(rows):
                assert is_exact(rows) == exact
                assert (rows @ rows.T).dtype == torch.float32
            assert (rows @ rows.T).dtype == chosen
        assert is_exact(rows)


def test_a_queue_has_rows_of_the_width_of_the_embeddings():
    check_queue(3, torch.ones(1, 3))
    for queue in (torch.ones(5, 4), torch.ones(3), torch.ones(5, 3, 3)):
        with pytest.raises(ValueError, match=r"must be \[keys, 3\]"):
            check_queue(3, queue)
    with pytest.raises(ValueError, match="1 key or more, got 0"):
        check_queue(3, torch.ones(0, 3))


class _Called(TorchDispatchMode):
    """Notes the operators of torch that run inside."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.name())
        return function(*args, **(kwargs or {}))


def products(dtype):
    """The three products, checked by loops over numbers, and the operators that made them."""
    x, y = torch.randn(4, 3, dtype=dtype), torch.randn(5, 3, dtype=dtype)
    total = torch.ones(4, 3, dtype=dtype)
    with _Called() as called:
        dots = dot_products(x, y)
        sums = weighted_rows(dots, y)
        add_product_(total, dots, y)
    by_hand = [
        [sum(a * b for a, b in zip(u, v, strict=True)) for v in y.tolist()] for u in x.tolist()
    ]
    weighted = [
        [sum(w * row[k] for w, row in zip(weights, y.tolist(), strict=True)) for k in range(3)]
        for weights in by_hand
    ]
    torch.testing.assert_close(dots, torch.tensor(by_hand, dtype=dtype))
    torch.testing.assert_close(sums, torch.tensor(weighted, dtype=dtype))
    torch.testing.assert_close(total, 1 + torch.tensor(weighted, dtype=dtype))
    return called.names


ONEDNN = "mkldnn::_linear_pointwise"
has_onednn = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@pytest.mark.skipif(not has_onednn, reason="a build of torch without oneDNN")
def test_products_of_float32_are_those_of_onednn_and_of_float64_those_of_torch():
    names = products(torch.float32)
    assert ONEDNN in names and not {"aten::mm", "aten::addmm_"} & names
    names = products(torch.float64)
    assert ONEDNN not in names and {"aten::mm", "aten::addmm_"} <= names


def missing(*given):
    raise RuntimeError("no such operator")


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        (torch.backends.mkldnn, "is_available", lambda: False),
        (torch.ops.mkldnn, "_linear_pointwise", missing),
    ],
    ids=["without the library", "without the operator"],
)
def test_products_without_onednn_are_those_of_torch(monkeypatch, where, name, value):
    _onednn_works.cache_clear()
    try:
        monkeypatch.setattr(where, name, value, raising=False)
        assert {"aten::mm", "aten::addmm_"} <= products(torch.float32)
    finally:
        _onednn_works.cache_clear()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_rows_that_are_not_finite_are_found_in_every_part(bad):
    rows = torch.zeros(2 * AT_ONCE + 5, 3)
    rows[0, 2], rows[AT_ONCE, 0], rows[2 * AT_ONCE + 4, 1] = bad, bad, bad
    rows[7] = torch.finfo(torch.float32).max
    assert rows_not_finite(rows).tolist() == [0, AT_ONCE, 2 * AT_ONCE + 4]
    assert len(rows_not_finite(torch.empty(0, 3))) == 0
