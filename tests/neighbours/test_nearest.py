"""The nearest rows, against all pairs in float64."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nearfar.neighbours import nearest as searching
from nearfar.neighbours import nearest_rows


def all_pairs(rows, queries, metric):
    """Every distance in float64 [queries, rows]."""
    rows, queries = rows.double(), queries.double()
    if metric == "euclidean":
        return (queries[:, None] - rows).norm(dim=2)
    unit = torch.nn.functional.normalize
    return 1 - unit(queries, dim=1) @ unit(rows, dim=1).T


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize(
    ("count", "k", "chunk"),
    [(900, 7, None), (900, 7, 64), (900, 1, 899), (900, 300, 64), (5, 4, 2)],
)
def test_they_are_those_of_all_pairs(metric, count, k, chunk):
    rows = torch.randn(count, 16, generator=torch.Generator().manual_seed(count)) + 3
    distances = all_pairs(rows, rows, metric).fill_diagonal_(torch.inf)
    expected = distances.sort(1)
    nearest = nearest_rows(rows, k=k, metric=metric, chunk=chunk)
    torch.testing.assert_close(
        nearest.distance.double(), expected.values[:, :k], rtol=1e-5, atol=1e-7
    )
    assert (nearest.index == expected.indices[:, :k]).double().mean() > 0.999
    assert not (nearest.index == torch.arange(count)[:, None]).any()


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("chunk", [None, 50])
def test_of_equal_distances_the_first_rows_come_first(metric, chunk):
    """Whole numbers, whose inner products are exact: 700 rows on four places, most of them equally
    far.
    """
    rows = 2 * torch.eye(4)[torch.arange(700) % 4]
    nearest = nearest_rows(rows, k=9, metric=metric, chunk=chunk)
    for i in (0, 5, 398, 699):
        assert nearest.index[i].tolist() == [j for j in range(i % 4, 700, 4) if j != i][:9]
    assert (nearest.distance == 0).all()
    others = nearest_rows(rows, torch.tensor([[1.0, 1, 0, 0]]), 8, metric=metric, chunk=chunk)
    assert others.index.tolist() == [[0, 1, 4, 5, 8, 9, 12, 13]]


def test_a_copy_is_at_distance_zero_and_small_distances_have_all_their_digits():
    rows = torch.nn.functional.normalize(
        torch.randn(50, 32, generator=torch.Generator().manual_seed(0)), dim=1
    )
    near = rows.clone()
    near[:, 0] += 1e-4
    for metric in ("cosine", "euclidean"):
        same, close = (
            nearest_rows(rows, rows, 1, metric=metric),
            nearest_rows(rows, near, 1, metric=metric),
        )
        assert (same.distance == 0).all() and same.index[:, 0].tolist() == list(range(50))
        exact = all_pairs(rows, near, metric).amin(1)
        torch.testing.assert_close(close.distance[:, 0].double(), exact, rtol=5e-3, atol=0)


def test_a_query_that_is_a_row_does_not_find_itself():
    rows = torch.tensor([[1.0, 0], [1, 0.1], [0, 1]])
    nearest = nearest_rows(rows, rows[[0, 0]], 2, own=torch.tensor([0, -1]))
    assert nearest.index.tolist() == [[1, 2], [0, 1]]


def test_a_row_of_zeros_is_at_distance_one():
    rows = torch.tensor([[0.0, 0], [1, 0], [-1, 0]])
    assert nearest_rows(rows, rows[:2], 3).distance.tolist() == [[1, 1, 1], [0, 1, 2]]


class LargestTensor(TorchDispatchMode):
    """Remembers the largest result of any operation, in numbers."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return out


def test_no_matrix_of_all_pairs_is_made(bars):
    rows = torch.randn(2000, 8)
    with LargestTensor() as seen:
        nearest_rows(rows, k=5, chunk=100)
    assert seen.largest <= 2000 * 8
    assert bars == [("comparing images", 100 * (i + 1), 2000) for i in range(20)]


def test_what_cannot_be_searched_is_named():
    rows = torch.randn(5, 3)
    with pytest.raises(ValueError, match=r"5 neighbours .* 4 rows"):
        nearest_rows(rows, k=5)
    with pytest.raises(ValueError, match="0 neighbours"):
        nearest_rows(rows, k=0)
    with pytest.raises(ValueError, match=r"rows of 3 .* 2 numbers"):
        nearest_rows(rows, rows[:, :2], 1)
    with pytest.raises(ValueError, match="chunk"):
        nearest_rows(rows, k=1, chunk=0)


@pytest.mark.parametrize("left", [300, 299, 150])
def test_the_nearest_among_some_rows_are_those_of_these_alone(monkeypatch, left):
    """In parts of 64 rows, of which all others are known as neighbours."""
    monkeypatch.setattr(searching, "ROWS", 64)
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(300, 8, generator=generator)
    some = torch.randperm(300, generator=generator)[:left].sort().values
    among = nearest_rows(rows, k=299).among(some, 7)
    alone = nearest_rows(rows[some], k=7)
    assert torch.equal(among.index, alone.index)
    torch.testing.assert_close(among.distance, alone.distance, atol=1e-6, rtol=0)


def test_fewer_neighbours_among_some_rows_are_filled_up_at_infinity():
    rows = torch.eye(4) + torch.tensor([1.0, 0.5, 0.2, 0.1])
    among = nearest_rows(rows, k=1).among(torch.tensor([2, 3]), 1)
    known = nearest_rows(rows, k=1).index[2:, 0] >= 2
    assert torch.equal(among.distance[:, 0].isfinite(), known)
