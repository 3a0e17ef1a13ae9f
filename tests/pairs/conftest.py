"""Full-matrix float64 references and inputs for the pair reductions."""

import pytest
import torch
from torch.nn.functional import normalize

from nearfar.pairs import blocks


class Full:
    """All logits of two views at once, in float64, as a plain program would make them."""

    def __init__(self, first, second, across=False):
        self.first, self.second = first, second
        batch = len(first)
        same = torch.eye(batch, dtype=torch.bool)
        off = torch.ones(batch, batch, dtype=torch.bool) if across else same
        self.masked = torch.cat([torch.cat([off, same], 1), torch.cat([same, off], 1)])
        self.positive = torch.arange(2 * batch).roll(batch)

    def cosines(self):
        rows = normalize(torch.cat([self.first, self.second]), dim=1)
        return rows @ rows.T

    def squared_distances(self):
        rows = torch.cat([self.first, self.second])
        return (rows[:, None] - rows[None]).square().sum(-1)

    def log_similarity(self, kernel):
        if kernel.unit:
            return self.cosines() * kernel.scale + kernel.constant
        if kernel.exponential:
            return -self.squared_distances() * kernel.scale / 2
        return -torch.log(1 + self.squared_distances())


@pytest.fixture
def full():
    return Full


@pytest.fixture
def views():
    def make(batch, dim, dtype=torch.float32, seed=0, spread=1.0, near=0.5):
        """Two views that resemble each other, of rows that are not unit vectors."""
        generator = torch.Generator().manual_seed(seed)
        first = torch.randn(batch, dim, generator=generator, dtype=torch.float64)
        second = first + near * torch.randn(batch, dim, generator=generator, dtype=torch.float64)
        return [(spread * view).to(dtype).requires_grad_() for view in (first, second)]

    return make


@pytest.fixture
def double():
    def make(tensors):
        return [tensor.detach().double().requires_grad_() for tensor in tensors]

    return make


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setitem(blocks.TILE_ROWS, "cpu", 5)


@pytest.fixture
def relative():
    def error(values, references):
        values, references = (torch.cat([part.double().flatten() for part in parts]) for parts in (values, references))
        return ((values - references).norm() / references.norm()).item()

    return error
