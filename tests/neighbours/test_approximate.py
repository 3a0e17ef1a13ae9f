"""The approximate search, against the exact one."""

import warnings

import pytest
import torch

from nearfar.neighbours import approximate, approximate_rows, nearest_rows


@pytest.fixture
def rows():
    """5000 rows around 50 centres, as features are."""
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


def test_equal_rows_fill_fewer_lists_than_there_are():
    """Without a warning: most rows are copies of a few."""
    few = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))
    rows = few[torch.arange(4000) % 30]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nearest, share = approximate_rows(rows, k=3)
    assert share >= 0.98
    torch.testing.assert_close(nearest.distance, torch.zeros(4000, 3), atol=1e-6, rtol=0)
