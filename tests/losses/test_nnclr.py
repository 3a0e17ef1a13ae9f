"""NNCLR against its plain form."""

import pytest
import torch

import references as plain
from nearfar.losses import NNCLR
from nearfar.losses import nnclr as nnclr_module
from nearfar.losses.nnclr import nearest


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


PROJECTION, PREDICTION, QUEUE = rows(6, 5), rows(6, 5, seed=1), plain.unit(rows(31, 5, seed=2))


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_is_the_plain_form(temperature):
    ours = NNCLR(temperature)(PROJECTION, PREDICTION, QUEUE).item()
    assert ours == pytest.approx(plain.nnclr(PROJECTION, PREDICTION, QUEUE, temperature).item(), rel=1e-10)


@pytest.mark.parametrize("tile", [2**20, 20])
def test_gradient_is_that_of_the_plain_form(tile, monkeypatch):
    monkeypatch.setattr(nnclr_module, "TILE", tile)
    prediction = PREDICTION.clone().requires_grad_()
    (ours,) = torch.autograd.grad(3 * NNCLR(0.1)(PROJECTION, prediction, QUEUE), prediction)
    (theirs,) = torch.autograd.grad(3 * plain.nnclr(PROJECTION, prediction, QUEUE), prediction)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_nearest_by_tiles(monkeypatch):
    monkeypatch.setattr(nnclr_module, "TILE", 24)  # 4 keys at a time, 3 left over
    expected = QUEUE[(plain.unit(PROJECTION) @ QUEUE.T).argmax(1)]
    assert torch.equal(nearest(plain.unit(PROJECTION), QUEUE), expected)
    assert torch.equal(nearest(QUEUE, QUEUE), QUEUE)
