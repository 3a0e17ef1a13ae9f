"""SIGReg and LeJEPA: the statistic against its closed form, what it leads to, draws and memory."""

import math

import pytest
import torch

from nearfar.losses import LeJEPA, SIGReg
from tests.pairs.test_memory import Live


def rows(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def epps_pulley(s):
    """The statistic of numbers [n] with the integral over all t in closed form, from all pairs."""
    pairs = (-(s[:, None] - s).square() / 2).exp().sum() / len(s)
    singles = (-s.square() / 4).exp().sum()
    return (
        math.sqrt(2 * math.pi) * pairs
        - 2 * math.sqrt(math.pi) * singles
        + len(s) * math.sqrt(2 * math.pi / 3)
    )


@pytest.mark.parametrize("scale", [0.1, 0.5, 1.0])
def test_is_the_closed_form_of_epps_and_pulley(scale):
    """In one dimension both directions, 1 and -1, have the same statistic."""
    s = scale * rows(50, seed=2) + 0.3
    ours = SIGReg(num_directions=5)(s[:, None])
    assert ours.item() == pytest.approx(epps_pulley(s).item(), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("batch", [64, 2048])
def test_of_a_normal_sample_it_is_the_same_whatever_the_size(batch):
    """Its mean is the integral of (1 - exp(-t^2)) exp(-t^2 / 2)."""
    torch.manual_seed(0)  # of the directions
    z = rows(batch, 256, seed=batch).float()
    expected = math.sqrt(2 * math.pi) * (1 - 1 / math.sqrt(3))
    assert SIGReg()(z).item() == pytest.approx(expected, rel=0.1)
    assert SIGReg()(1.5 * z).item() > expected + 0.02 * batch


@pytest.mark.parametrize("row", [0.0, 0.3, 1e4])
def test_of_equal_rows_it_is_finite_and_grows_with_the_batch(row):
    values = []
    for batch in (8, 16):
        z = torch.full((2, batch, 4), row, requires_grad=True)
        torch.manual_seed(0)
        value = LeJEPA(lam=1.0)(z)
        value.backward()
        assert z.grad.isfinite().all()
        values.append(value.item())
    assert values[1] == pytest.approx(2 * values[0], rel=1e-5)


def test_rows_that_follow_its_gradient_become_standard_normal():
    """From a short line beside 0: mean 0, covariance 1, and 68 % within one deviation."""
    line = torch.tensor([[0.1, 0.2, 0.3]], dtype=torch.float64)
    z = (1 + rows(256, 1) @ line + 0.1 * rows(256, 3, seed=1)).requires_grad_()
    torch.manual_seed(0)
    optimiser, loss = torch.optim.Adam([z], lr=0.1), SIGReg(64)
    for _ in range(200):
        optimiser.zero_grad()
        loss(z).backward()
        optimiser.step()
    z = z.detach()
    assert z.mean(0).abs().max() < 0.1
    torch.testing.assert_close(z.T.cov(), torch.eye(3).double(), rtol=0, atol=0.15)
    assert (z.abs() < 1).double().mean().item() == pytest.approx(0.683, abs=0.03)


def test_small_views_predict_and_are_not_predicted():
    z = rows(3, 6, 4)
    target = z[:2].mean(0)
    expected = (z - target).square().mean()
    torch.testing.assert_close(LeJEPA(lam=0.0)(z), expected)
    assert LeJEPA(lam=0.0, large_views=3)(z) < expected  # the mean of all views is nearer


def test_directions_are_drawn_anew_and_follow_torchs_seed():
    z, loss = rows(20, 8), SIGReg(3)
    torch.manual_seed(7)
    first, second = loss(z), loss(z)
    torch.manual_seed(7)
    assert torch.equal(loss(z), first) and not torch.equal(first, second)
    torch.manual_seed(7)
    views = LeJEPA(lam=1.0, num_directions=3)(torch.stack([z, z]))
    torch.testing.assert_close(views, first)  # all views on the same directions


def test_gradient_is_that_of_finite_differences():
    def value(z):
        torch.manual_seed(1)
        return LeJEPA(0.3, 7)(z)

    assert torch.autograd.gradcheck(value, (rows(3, 5, 2).requires_grad_(),))


def test_memory_is_that_of_a_few_projections():
    """Linear in the batch and in the directions; cos and sin of all 8 points would be 16 of
    them.
    """
    for batch, directions in ((256, 512), (512, 512), (256, 1024)):
        z, loss = torch.randn(2, batch, 8, requires_grad=True), LeJEPA(num_directions=directions)
        with Live() as live:
            loss(z).backward()
        assert live.peak < 10 * 4 * 2 * batch * directions
