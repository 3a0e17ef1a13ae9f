"""The approximate search, against the exact one."""

import sys

import numpy as np
import pytest
import torch

from nearfar.neighbours import approximate, approximate_rows, nearest_rows
from nearfar.neighbours.approximate import update_nearest


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


def test_partitions_of_the_rows_change_nothing(rows, monkeypatch):
    """Each holds its part of every list; of some queries a partition has fewer than k rows."""
    whole, share = approximate_rows(rows, k=20)
    monkeypatch.setattr(approximate, "PARTITION", 4 * 24 * 300)
    divided, again = approximate_rows(rows, k=20)
    assert again == share
    assert torch.equal(divided.index, whole.index)
    assert torch.equal(divided.distance, whole.distance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_rows_of_any_floats_are_searched_as_float32(rows, dtype):
    nearest, _ = approximate_rows(rows.to(dtype), rows[:7].to(dtype), k=3)
    same, _ = approximate_rows(rows.to(dtype).float(), rows[:7].to(dtype).float(), k=3)
    assert torch.equal(nearest.index, same.index)
    assert torch.equal(nearest.distance, same.distance)


def test_a_row_that_many_copies_hide_from_itself_still_gets_k_others(rows):
    nearest, _ = approximate_rows(torch.cat([rows, rows[:1].expand(40, -1)]), k=3)
    assert not (nearest.index == torch.arange(len(nearest.index))[:, None]).any()
    assert (nearest.distance[:1] < 1e-5).all() and nearest.index.shape[1] == 3


def test_without_faiss_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ValueError, match="pip install 'nearfar\\[faiss\\]'"):
        approximate_rows(torch.eye(3))


@pytest.mark.parametrize(
    ("added", "removed"),
    [
        ([], []),
        ([30], []),
        (range(500, 520), []),
        ([], [3]),
        (range(20, 35), [5, 200]),
        ([7], [400]),
    ],
)
def test_neighbours_that_are_brought_up_to_date_are_those_of_all(added, removed):
    rows = torch.randn(600, 8, generator=torch.Generator().manual_seed(0))
    rows[7] = rows[400] = rows[200]  # equal ones, of which the first come first
    kept, left = (np.delete(np.arange(600), list(gone)) for gone in (added, removed))
    place = np.where(np.isin(left, kept), np.searchsorted(kept, left), -1)
    before, afresh = (nearest_rows(rows[chosen], k=10) for chosen in (kept, left))
    updated = update_nearest(rows[left], before, torch.from_numpy(place), 10)
    assert updated is not None
    assert torch.equal(updated.index, afresh.index)
    assert torch.equal(updated.distance, afresh.distance)


@pytest.mark.parametrize("copies", [0, 25])
def test_tiles_of_the_rows_change_nothing_of_what_is_brought_up_to_date(monkeypatch, copies):
    """Also where more new rows than neighbours lie at one place."""
    rows = torch.randn(600, 8, generator=torch.Generator().manual_seed(1))
    rows[500 : 500 + copies] = rows[:1]
    new = torch.arange(600) % 23 == 5
    new[500 : 500 + copies] = True
    place = torch.where(new, -1, (~new).cumsum(0) - 1)
    monkeypatch.setattr(approximate, "ROWS", 64)
    monkeypatch.setattr(approximate, "QUERIES", 16)
    updated = update_nearest(rows, nearest_rows(rows[~new], k=10), place, 10)
    afresh = nearest_rows(rows, k=10)
    assert torch.equal(updated.index, afresh.index)
    assert torch.equal(updated.distance, afresh.distance)


def test_neighbours_of_many_new_rows_are_not_brought_up_to_date():
    rows = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    before = nearest_rows(rows[:80], k=10)
    place = torch.cat([torch.arange(80), torch.full((20,), -1)])
    assert update_nearest(rows, before, place, 10) is None
    reverse = torch.arange(80).flip(0)
    assert update_nearest(rows[:80].flip(0), before, reverse, 10) is None
    assert update_nearest(rows[:80], before, torch.arange(80), 9) is None
