"""What all losses on one set of rows have in common."""

import copy
import inspect

import pytest
import torch

from nearfar.losses import DCL, SACLR, ISogCLR, SigCLR, SimCLR, SogCLR

IMAGES = 40
LOSSES = {
    "simclr": lambda: SimCLR(),
    "simclr, cold": lambda: SimCLR(0.01),
    "dcl": lambda: DCL(),
    "dclw": lambda: DCL(weighted=True),
    "saclr matrix": lambda: SACLR(IMAGES, "matrix", "all"),
    "saclr row": lambda: SACLR(IMAGES, "row", "all"),
    "saclr cosine": lambda: SACLR(IMAGES, "row", "all", kernel="cosine"),
    "saclr cauchy": lambda: SACLR(IMAGES, "matrix", "all", kernel="cauchy"),
    "sigclr": lambda: SigCLR(learn_temperature=True),
    "sogclr": lambda: SogCLR(IMAGES),
    "isogclr": lambda: ISogCLR(IMAGES),
}
SAMPLED = {
    "saclr matrix 1": lambda: SACLR(IMAGES, "matrix", 1),
    "saclr row 1": lambda: SACLR(IMAGES, "row", 1),
    "saclr row 3": lambda: SACLR(IMAGES, "row", 3),
}
WITH_STATE = {name: make for name, make in (LOSSES | SAMPLED).items() if make().state_dict()}


def needs_index(loss):
    return "index" in inspect.signature(loss.forward).parameters


def evaluate(loss, views, index):
    views = [view.detach().clone().requires_grad_() for view in views]
    torch.manual_seed(1)
    value = loss(*views, index) if needs_index(loss) else loss(*views)
    return value, torch.autograd.grad(value, views)


@pytest.fixture
def batch():
    torch.manual_seed(0)
    first = torch.randn(20, 8)
    return [first, first + 0.5 * torch.randn(20, 8)], torch.randperm(IMAGES)[:20]


@pytest.mark.parametrize("make", (LOSSES | SAMPLED).values(), ids=LOSSES | SAMPLED)
def test_scalar_and_finite(make, batch):
    value, gradients = evaluate(make(), *batch)
    assert value.shape == () and torch.isfinite(value)
    assert all(torch.isfinite(gradient).all() and gradient.abs().sum() > 0 for gradient in gradients)


@pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)
def test_the_order_of_the_batch_does_not_matter(make, batch):
    views, index = batch
    order = torch.randperm(20)
    straight, shuffled = make().double(), make().double()
    for _ in range(2):
        value, gradients = evaluate(straight, [view.double() for view in views], index)
        other, other_gradients = evaluate(shuffled, [view.double()[order] for view in views], index[order])
    torch.testing.assert_close(other, value)
    for gradient, other_gradient in zip(gradients, other_gradients, strict=True):
        torch.testing.assert_close(other_gradient, gradient[order])


@pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)
def test_the_order_of_the_views_does_not_matter(make, batch):
    views, index = batch
    value, (first, second) = evaluate(make(), views, index)
    other, (other_first, other_second) = evaluate(make(), views[::-1], index)
    torch.testing.assert_close(other, value)
    torch.testing.assert_close(other_first, second, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(other_second, first, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", (LOSSES | SAMPLED).values(), ids=LOSSES | SAMPLED)
def test_float32_equals_float64(make, batch):
    views, index = batch
    value, gradients = evaluate(make(), views, index)
    exact, exact_gradients = evaluate(make().double(), [view.double() for view in views], index)
    assert exact.dtype == torch.float64
    tolerance = 2e-5 if make().__dict__.get("temperature") == 0.01 else 3e-6
    torch.testing.assert_close(value.double(), exact, rtol=tolerance, atol=tolerance)
    for gradient, exact_gradient in zip(gradients, exact_gradients, strict=True):
        assert (gradient - exact_gradient).norm() < tolerance * exact_gradient.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", (LOSSES | SAMPLED).values(), ids=LOSSES | SAMPLED)
def test_low_precision_inputs_lose_only_their_own_rounding(make, batch, dtype):
    views, index = batch
    views = [view.to(dtype) for view in views]
    value, gradients = evaluate(make(), views, index)
    exact, exact_gradients = evaluate(make(), [view.float() for view in views], index)
    assert value.dtype == torch.float32 and {gradient.dtype for gradient in gradients} == {dtype}
    torch.testing.assert_close(value, exact, rtol=1e-5, atol=1e-5)
    for gradient, exact_gradient in zip(gradients, exact_gradients, strict=True):
        assert (gradient - exact_gradient).norm() < torch.finfo(dtype).eps * exact_gradient.norm()


@pytest.mark.parametrize("make", WITH_STATE.values(), ids=WITH_STATE)
def test_a_restored_state_continues_exactly(make, batch):
    views, index = batch
    loss, restored, fresh = make(), make(), make()
    for _ in range(3):
        evaluate(loss, views, index)
        for parameter in loss.parameters():
            parameter.data += 0.1  # as an optimiser would
    restored.load_state_dict(copy.deepcopy(loss.state_dict()))
    assert not torch.equal(evaluate(fresh, views, index)[0], evaluate(copy.deepcopy(restored), views, index)[0])
    for _ in range(2):
        value, gradients = evaluate(loss, views, index)
        again, gradients_again = evaluate(restored, views, index)
        assert torch.equal(value, again)
        assert all(torch.equal(a, b) for a, b in zip(gradients, gradients_again, strict=True))
    for name, tensor in loss.state_dict().items():
        assert torch.equal(tensor, restored.state_dict()[name])


@pytest.mark.parametrize("make", (LOSSES | SAMPLED).values(), ids=LOSSES | SAMPLED)
def test_autocast_does_not_reach_inside(make, batch):
    views, index = batch
    outside, _ = evaluate(make(), views, index)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, _ = evaluate(make(), views, index)
    torch.testing.assert_close(inside, outside, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("make", (LOSSES | SAMPLED).values(), ids=LOSSES | SAMPLED)
@pytest.mark.usefixtures("unchecked")
def test_a_batch_of_one_and_unequal_views_are_refused(make):
    arguments = [torch.zeros(1, dtype=torch.long)] if needs_index(make()) else []
    with pytest.raises(ValueError, match="2 images or more"):
        make()(torch.randn(1, 4), torch.randn(1, 4), *arguments)
    with pytest.raises(ValueError, match="same shape"):
        make()(torch.randn(3, 4), torch.randn(2, 4), *arguments)


@pytest.mark.parametrize("make", [LOSSES["saclr row"], LOSSES["sogclr"], LOSSES["isogclr"]])
@pytest.mark.parametrize("index", [None, torch.arange(3)])
@pytest.mark.usefixtures("unchecked")
def test_a_missing_or_short_index_is_refused(make, index):
    with pytest.raises(ValueError, match="index"):
        make()(torch.randn(4, 3), torch.randn(4, 3), index)


@pytest.mark.parametrize("temperature", [0.0, -0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("make", [SimCLR, DCL, SigCLR, lambda t: SogCLR(4, t), lambda t: ISogCLR(4, t)])
def test_temperatures_out_of_range_are_refused(make, temperature):
    with pytest.raises(ValueError, match="temperature"):
        make(temperature)
