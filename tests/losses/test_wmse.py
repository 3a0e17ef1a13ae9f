"""W-MSE against its plain form, and its sub-batches."""

import pytest
import torch

import references as plain
from nearfar.losses import WMSE


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def correlated(batch: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    z1 = rows(batch, dim) @ rows(dim, dim, seed=5) + 2
    return z1, z1 + 0.7 * rows(batch, dim, seed=1)


def test_one_part_is_the_plain_form():
    z1, z2 = correlated(13, 4)
    assert WMSE(eps=0.0)(z1, z2).item() == pytest.approx(plain.wmse(z1, z2, eps=0.0).item(), rel=1e-9)


def test_left_over_images_join_the_other_parts():
    z1, z2 = correlated(23, 3)
    torch.manual_seed(7)
    ours = WMSE(sub_batch=7, eps=0.0)(z1, z2).item()  # 3 parts of 8, 8 and 7
    torch.manual_seed(7)
    order = torch.randperm(23)
    expected = plain.wmse(z1, z2, [order[:8], order[8:16], order[16:]], eps=0.0).item()
    assert ours == pytest.approx(expected, rel=1e-9)


def test_iterations_are_averaged():
    z1, z2 = correlated(20, 3)
    torch.manual_seed(3)
    twice = WMSE(sub_batch=6, iterations=2)(z1, z2).item()
    torch.manual_seed(3)
    one, two = WMSE(sub_batch=6)(z1, z2).item(), WMSE(sub_batch=6)(z1, z2).item()
    assert one != two
    assert twice == pytest.approx((one + two) / 2, rel=1e-12)


def test_scale_and_offset_do_not_matter():
    loss = WMSE(sub_batch=16)
    z1, z2 = correlated(16, 4)
    assert loss(1e-3 * z1 + 5, 40 * z2).item() == pytest.approx(loss(z1, z2).item(), rel=1e-6)


def test_whitened_rows_are_white():
    z = torch.stack(correlated(50, 6))
    for w in WMSE(eps=0.0)._whiten(z):
        torch.testing.assert_close(w.T.cov(), torch.eye(6, dtype=torch.float64))


def test_gradient_reaches_both_views():
    z1, z2 = (z.requires_grad_() for z in correlated(10, 3))
    assert torch.autograd.gradcheck(WMSE(), (z1, z2))
    WMSE()(z1, z2).backward()
    assert z1.grad.norm() > 0
    assert z2.grad.norm() > 0


def test_collapse_and_nan_do_not_stop_the_program():
    z = torch.ones(16, 4, requires_grad=True)
    loss = WMSE()(z, z)
    loss.backward()
    assert loss.isfinite()
    assert z.grad.isfinite().all()
    assert WMSE()(torch.full((16, 4), torch.nan), torch.zeros(16, 4)).isnan()


def test_too_few_images():
    with pytest.raises(ValueError, match="whitening 8 features needs more than 8 images at a time, got 8"):
        WMSE()(rows(8, 8), rows(8, 8))
    with pytest.raises(ValueError, match="got 5"):
        WMSE(sub_batch=5)(rows(20, 8), rows(20, 8))
    with pytest.raises(ValueError, match="iterations must be 1 or more"):
        WMSE(iterations=0)
    with pytest.raises(ValueError, match="sub_batch must be 2 or more"):
        WMSE(sub_batch=0)
