"""Muon against torch's own, its matrices against the singular value decomposition, its vectors against AdamW."""

import copy

import pytest
import torch
from torch import nn

from nearfar.training.optimizers import Muon, build_optimizer, orthogonal


@pytest.mark.parametrize("shape", [(3, 8, 20), (2, 20, 8), (4, 16, 24)])
def test_singular_values_end_close_to_one(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    out = orthogonal(matrices)
    values = torch.linalg.svdvals(out)
    assert values.min() > 0.6
    assert values.max() < 1.25
    inside = left.mT @ out @ right.mT  # the singular vectors are those of the input
    torch.testing.assert_close(inside, torch.diag_embed(inside.diagonal(dim1=1, dim2=2)), rtol=0, atol=1e-4)
    assert not orthogonal(torch.zeros(2, 3, 5)).any()
    torch.testing.assert_close(orthogonal(matrices * 1e4), out)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon from 2.9 on")
def test_matrices_move_as_by_torch():
    torch.manual_seed(0)
    ours, theirs = nn.Parameter(torch.randn(24, 40)), nn.Parameter(torch.empty(24, 40))
    theirs.data.copy_(ours.data)
    options = dict(lr=0.01, momentum=0.9, weight_decay=0.1)
    mine = Muon([ours], **options)
    other = torch.optim.Muon([theirs], nesterov=True, adjust_lr_fn="match_rms_adamw", **options)
    for _ in range(4):
        gradient = torch.randn(24, 40)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.step()
        other.step()
    step = 0.01 * 0.2 * 40**0.5 * (1 / 24) ** 0.5  # root mean square of one step's entries
    assert (ours - theirs).abs().max() < 0.1 * step  # torch rounds to bfloat16 on the way


def test_vectors_move_as_by_adamw_and_convolutions_as_their_matrix():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    twin = copy.deepcopy(net)
    flat = nn.Parameter(net[0].weight.detach().flatten(1).clone())
    mine = build_optimizer("muon", net, lr=0.02, weight_decay=0.05)
    vectors = [p for p in twin.parameters() if p.ndim == 1]
    adamw, matrix = torch.optim.AdamW(vectors, lr=0.02, weight_decay=0.0), Muon([flat], lr=0.02, weight_decay=0.05)
    for _ in range(3):
        gradients = [torch.randn_like(p) for p in net.parameters()]
        for p, q, g in zip(net.parameters(), twin.parameters(), gradients, strict=True):
            p.grad, q.grad = g.clone(), g.clone()
        flat.grad = gradients[0].flatten(1)
        for optimizer in (mine, adamw, matrix):
            optimizer.step()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        if p.ndim == 1:
            torch.testing.assert_close(p, q)
    torch.testing.assert_close(net[0].weight.flatten(1), flat)


def test_numbers_out_of_range():
    with pytest.raises(ValueError, match="Muon needs"):
        Muon([nn.Parameter(torch.zeros(2, 2))], lr=-1.0)
