"""NNCLR against a loop written from its formula."""

import math

import pytest
import torch
from torch.nn import functional as F

from nearfar.losses import NNCLR
from nearfar.losses import nnclr as nnclr_module
from nearfar.losses.nnclr import nearest


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def naive(projection, prediction, queue, t):
    projection, prediction, total = unit(projection), unit(prediction), 0.0
    for i in range(len(projection)):
        neighbour = min(queue, key=lambda row: float((row - projection[i]).norm()))
        every = [math.exp(float(neighbour @ p) / t) for p in prediction]
        total -= math.log(every[i] / sum(every))
    return total / len(projection)


PROJECTION, PREDICTION, QUEUE = rows(6, 5), rows(6, 5, seed=1), unit(rows(31, 5, seed=2))


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_is_the_loop(temperature):
    ours = NNCLR(temperature)(PROJECTION, PREDICTION, QUEUE).item()
    assert ours == pytest.approx(naive(PROJECTION, PREDICTION, QUEUE, temperature), rel=1e-10)


@pytest.mark.parametrize("tile", [2**20, 20])
def test_gradient_is_that_of_cross_entropy(tile, monkeypatch):
    monkeypatch.setattr(nnclr_module, "TILE", tile)
    prediction = PREDICTION.clone().requires_grad_()
    (ours,) = torch.autograd.grad(3 * NNCLR(0.1)(PROJECTION, prediction, QUEUE), prediction)
    neighbours = QUEUE[(unit(PROJECTION) @ QUEUE.T).argmax(1)]
    logits = neighbours @ F.normalize(prediction, dim=1).T / 0.1
    (theirs,) = torch.autograd.grad(3 * F.cross_entropy(logits, torch.arange(6)), prediction)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_nearest_by_tiles(monkeypatch):
    monkeypatch.setattr(nnclr_module, "TILE", 24)  # 4 keys at a time, 3 left over
    expected = QUEUE[(unit(PROJECTION) @ QUEUE.T).argmax(1)]
    assert torch.equal(nearest(unit(PROJECTION), QUEUE), expected)
    assert torch.equal(nearest(QUEUE, QUEUE), QUEUE)
