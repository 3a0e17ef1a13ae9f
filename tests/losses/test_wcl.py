"""WCL: the weak labels are connected components of nearest neighbours, each view those of the other,
and images of a label attract each other.
"""

import pytest
import torch

from nearfar.losses import WCL, SimCLR, wcl
from nearfar.pairs.arithmetic import unit_rows
from references.pairs import weak_labels


def rows(batch, dim=5, seed=0):
    chance = torch.Generator().manual_seed(seed)
    return unit_rows(torch.randn(batch, dim, dtype=torch.float64, generator=chance))


def groups_of(label):
    return {tuple((label == number).nonzero().flatten().tolist()) for number in label.unique()}


@pytest.mark.parametrize("batch", [2, 3, 7, 64, 501])
@pytest.mark.parametrize("dim", [1, 2, 16])
def test_labels_are_the_components_that_scipy_finds(batch, dim):
    """In one dimension all rows are ties, 1 and -1."""
    z = rows(batch, dim, seed=batch)
    assert groups_of(wcl.weak_labels(z)) == groups_of(weak_labels(z))


def test_a_long_chain_of_nearest_rows_is_one_component():
    """Each row is a little nearer to the next than to the one before."""
    angles = torch.linspace(1, 0, 200, dtype=torch.float64).square().cumsum(0) / 100
    z = torch.stack([angles.cos(), angles.sin()], 1)
    assert wcl.nearest_others(z)[:-1].tolist() == list(range(1, 200))
    assert len(wcl.weak_labels(z).unique()) == 1


def test_neighbours_are_the_same_in_parts_of_any_size(monkeypatch):
    z = rows(40)
    whole = wcl.nearest_others(z)
    monkeypatch.setattr(wcl, "TILE", 130)
    assert torch.equal(wcl.nearest_others(z), whole)
    assert not (whole == torch.arange(40)).any()


def test_each_view_has_the_labels_of_the_other():
    """Two pairs in the one view, other pairs in the other."""
    first, second = torch.eye(4).double()[[0, 0, 1, 1]], torch.eye(4).double()[[0, 1, 0, 1]]
    z = rows(4, 4)
    assert groups_of(wcl.weak_labels(first)) == {(0, 1), (2, 3)}
    assert groups_of(wcl.weak_labels(second)) == {(0, 2), (1, 3)}
    weak = WCL(1.0)(z, z, first, second) - SimCLR(1.0)(z, z)
    # the one image of the label is at a right angle, and one of three others is equal
    assert weak.item() == pytest.approx(torch.tensor(2 + torch.e).log().item())


def test_rows_that_follow_its_gradient_gather_by_label():
    """Four loose groups of three, which are always joined, become four points far apart."""
    z = torch.eye(4).repeat_interleave(3, 0) + 0.4 * rows(12, 4).float()
    assert len(wcl.weak_labels(unit_rows(z)).unique()) == 4
    start = unit_rows(z) @ unit_rows(z).T
    z, instances = z.requires_grad_(), rows(12, 4, seed=1).float()
    optimiser, loss = torch.optim.Adam([z], lr=0.05), WCL(0.5)
    for _ in range(100):
        optimiser.zero_grad()
        loss(instances, instances, z, z).backward()
        optimiser.step()
    cosine = unit_rows(z.detach()) @ unit_rows(z.detach()).T
    together = torch.block_diag(*[torch.ones(3, 3)] * 4).bool()
    assert start[together].min() < 0.9 < 0.99 < cosine[together].min()
    assert cosine[~together].max() < 0
