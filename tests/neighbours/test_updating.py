"""Neighbours that are brought up to date, against those that are found from nothing."""

import numpy as np
import pytest
import torch

from nearfar.neighbours import approximate_rows, nearest_rows, updating
from nearfar.neighbours.approximate import learn_lists
from nearfar.neighbours.updating import update_nearest


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
    monkeypatch.setattr(updating, "ROWS", 64)
    monkeypatch.setattr(updating, "QUERIES", 16)
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


def share_of(near, true, rows):
    """The share of the true neighbours of some rows that were found."""
    same = near.index[rows, :, None] == true.index[rows, None]
    return float(same.any(1).float().mean())


@pytest.mark.parametrize("removed", [0, 40])
def test_lists_find_as_many_of_new_rows_as_the_search_from_nothing(log, removed):
    """Of new rows and of those that new ones are near, on rows around centres of unequal size."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(60, 24, generator=generator)
    spread = 0.5 * torch.randn(6000, 24, generator=generator)
    rows = centres[torch.arange(6000).sqrt().int() % 60] + spread
    new = torch.arange(6000) % 37 == 5  # 162 of them
    earlier = torch.where(~new)[0]
    lists = learn_lists(rows[earlier])
    before, _ = approximate_rows(rows[earlier], k=10, lists=lists)
    place = torch.where(new, -1, (~new).cumsum(0) - 1)
    left = torch.arange(removed, 6000)
    rows, place, new = rows[left], place[left], new[left]
    lists = lists.extended(rows, place)
    updated = update_nearest(rows, before, place, 10, lists)
    assert updated is not None
    true = nearest_rows(rows, k=10)
    (line,) = [line for line in log.lines if "lost a neighbour" in line]
    measured = float(line.split("found ")[1].split(" %")[0]) / 100
    assert measured >= 0.98
    assert abs(share_of(updated, true, new) - measured) < 0.01
    touched = ~new & new[true.index].any(1)
    assert touched.sum() > 1000 and share_of(updated, true, touched) > 0.97
    same = (updated.index == true.index).all(1)
    torch.testing.assert_close(updated.distance[same], true.distance[same], atol=1e-5, rtol=0)
    assert not (updated.index == torch.arange(len(rows))[:, None]).any()
    assert bool((updated.distance.diff(dim=1) >= 0).all()) and updated.index.min() >= 0


@pytest.mark.parametrize("pairs", [updating.PAIRS, 3])
def test_one_list_gives_the_neighbours_of_all(monkeypatch, pairs):
    """Also where more new rows than neighbours lie at one place."""
    monkeypatch.setattr(updating, "PAIRS", pairs)
    rows = torch.randn(70, 8, generator=torch.Generator().manual_seed(2))
    rows[40:45] = rows[7:8]
    rows[50] = 0
    new = torch.zeros(70, dtype=torch.bool)
    new[40:46] = True
    lists = learn_lists(rows[~new])
    assert len(lists.centres) == 1
    place = torch.where(new, -1, (~new).cumsum(0) - 1)
    before = nearest_rows(rows[~new], k=3)
    updated = update_nearest(rows, before, place, 3, lists.extended(rows, place))
    true = nearest_rows(rows, k=3)
    assert torch.equal(updated.index, true.index)
    torch.testing.assert_close(updated.distance, true.distance, atol=1e-6, rtol=0)


def test_a_row_that_is_gone_is_replaced_by_lists_without_a_new_one():
    rows = torch.randn(70, 8, generator=torch.Generator().manual_seed(3))
    lists, before = learn_lists(rows), nearest_rows(rows, k=3)
    (rare,) = [row for row in range(70) if (before.index == row).sum() == 1][:1]
    left = torch.cat([torch.arange(rare), torch.arange(rare + 1, 70)])
    updated = update_nearest(rows[left], before, left, 3, lists.extended(rows[left], left))
    true = nearest_rows(rows[left], k=3)
    assert torch.equal(updated.index, true.index)
    torch.testing.assert_close(updated.distance, true.distance, atol=1e-6, rtol=0)


def test_lists_whose_centres_are_of_fewer_rows_are_not_used():
    rows = torch.randn(120, 8, generator=torch.Generator().manual_seed(0))
    lists, before = learn_lists(rows[:100]), nearest_rows(rows[:110], k=5)
    place = torch.arange(120).where(torch.arange(120) < 110, -1)
    of_earlier = torch.arange(120).where(torch.arange(120) < 100, -1)
    assert update_nearest(rows, before, place, 5) is not None
    assert update_nearest(rows, before, place, 5, lists.extended(rows, of_earlier)) is None
