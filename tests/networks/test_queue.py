"""The queue against a plain list."""

import pytest
import torch
import torch.nn.functional as F

from nearfar.networks import Queue


def keys(first: int, count: int, dim: int = 4) -> torch.Tensor:
    """Unit rows that differ by their number."""
    angles = torch.arange(first, first + count, dtype=torch.float32) * 0.1
    return torch.stack([angles.cos(), angles.sin(), *[torch.zeros(count)] * (dim - 2)], 1)


def test_starts_as_unit_gaussian_rows() -> None:
    torch.manual_seed(3)
    queue = Queue(2000, 16)
    expected = torch.randn(2000, 16, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(queue.rows, F.normalize(expected))
    assert queue.rows.mean(0).abs().max() < 0.03  # spread over the sphere


@pytest.mark.parametrize("batches", [[3, 3, 3, 3], [7, 7], [1, 6, 5], [10], [23, 2], [7, 30, 1], [2, 0, 3]])
def test_any_batch_size_wraps_as_a_ring(batches: list[int]) -> None:
    queue, ring, place, first = Queue(7, 4), None, 0, 0
    ring = queue.rows
    for count in batches:
        rows = keys(first, count)
        queue.push(rows)
        for row in rows:
            ring[place] = row
            place = (place + 1) % 7
        first += count
    torch.testing.assert_close(queue.rows, ring)
    assert queue.pointer.item() == place


def test_rows_are_made_unit_and_carry_no_gradient() -> None:
    queue = Queue(4, 3)
    rows = (torch.tensor([[3.0, 0, 4], [0, 0.1, 0]])).requires_grad_()
    queue.push(rows)
    torch.testing.assert_close(queue.rows[:2], torch.tensor([[0.6, 0, 0.8], [0, 1, 0]]))
    assert not queue.rows.requires_grad


def test_push_between_forward_and_backward_does_no_harm() -> None:
    queue, query = Queue(4, 4), torch.rand(2, 4, requires_grad=True)
    rows = queue.rows
    loss = (query @ rows.T).exp().sum()
    expected = (query @ rows.T).exp().detach() @ rows
    queue.push(keys(0, 4))
    loss.backward()
    torch.testing.assert_close(query.grad, expected)


def test_state_survives_a_restart() -> None:
    queue, again = Queue(5, 4), Queue(5, 4)
    queue.push(keys(0, 3))
    again.load_state_dict(queue.state_dict())
    for each in (queue, again):
        each.push(keys(3, 4))
    assert torch.equal(queue.rows, again.rows)


@pytest.mark.parametrize(("size", "dim"), [(0, 4), (-1, 4), (4, 0)])
def test_an_empty_queue_is_refused(size: int, dim: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Queue(size, dim)
