"""The approximate search, against the exact one."""

import sys

import pytest
import torch

from nearfar.neighbours import approximate_rows, nearest_rows


@pytest.fixture
def rows():
    """5000 rows around 50 centres, as features are."""
    pytest.importorskip("faiss")
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(50, 24, generator=generator)
    return centres[torch.arange(5000) % 50] + 0.5 * torch.randn(5000, 24, generator=generator)


@pytest.mark.parametrize("with_queries", [False, True])
def test_it_finds_the_share_that_it_says(rows, with_queries, bars):
    queries = rows[::3] + 0.1 if with_queries else None
    nearest, share = approximate_rows(rows, queries, 10)
    last = bars[-1]
    exact = nearest_rows(rows, queries, 10)
    true = (nearest.index[:, :, None] == exact.index[:, None]).any(1).float().mean()
    assert share >= 0.98 and abs(float(true) - share) < 0.01
    assert nearest.index.shape == exact.index.shape and last[1:] == (len(exact.index),) * 2
    same = (nearest.index == exact.index).all(1)
    torch.testing.assert_close(nearest.distance[same], exact.distance[same], atol=1e-5, rtol=0)
    if not with_queries:
        assert not (nearest.index == torch.arange(len(rows))[:, None]).any()


def test_looking_through_all_lists_is_exact(rows):
    nearest, share = approximate_rows(rows, k=5, wanted=1.1)
    assert share == 1 and (nearest.index == nearest_rows(rows, k=5).index).float().mean() > 0.999


def test_a_row_that_many_copies_hide_from_itself_still_gets_k_others(rows):
    nearest, _ = approximate_rows(torch.cat([rows, rows[:1].expand(40, -1)]), k=3)
    assert not (nearest.index == torch.arange(len(nearest.index))[:, None]).any()
    assert (nearest.distance[:1] < 1e-5).all() and nearest.index.shape[1] == 3


def test_without_faiss_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ValueError, match="pip install 'nearfar\\[faiss\\]'"):
        approximate_rows(torch.eye(3))
