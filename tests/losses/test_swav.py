"""SwAV: codes by Sinkhorn, swapped prediction, prototypes and queue."""

import pytest
import torch

import references as plain
from nearfar.losses import SwAV
from nearfar.losses.non_contrastive import sinkhorn


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def swav(**options) -> SwAV:
    torch.manual_seed(0)
    return SwAV(5, **{"num_prototypes": 4, **options})


@pytest.mark.parametrize("views", [2, 5])
def test_value_and_gradient_are_those_of_the_plain_form_whose_codes_stop_it(views):
    loss, z = swav().double(), rows(views, 6, 5).requires_grad_()
    ours, theirs = loss(z), plain.swav(z, loss.prototypes)
    torch.testing.assert_close(ours, theirs)
    gradients = (torch.autograd.grad(value, (z, loss.prototypes)) for value in (ours, theirs))
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


def test_codes_do_not_overflow():
    codes = sinkhorn(torch.tensor([[1.0, -1.0], [0.9, -1.0], [-1.0, 1.0], [-1.0, 0.9]]), 1e-3, 3)
    torch.testing.assert_close(
        codes, torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    )


def test_prototypes_are_unit_rows_and_get_no_gradient_while_frozen():
    loss, z = swav(), rows(2, 6, 5).float().requires_grad_()
    loss.prototypes.data.mul_(3)
    loss.freeze_prototypes = True
    loss(z).backward()
    assert loss.prototypes.grad is None and z.grad.norm() > 0
    torch.testing.assert_close(loss.prototypes.norm(dim=1), torch.ones(4))
    loss.freeze_prototypes = False
    (loss(z) + loss(2 * z + 1)).backward()  # two steps before one backward
    assert loss.prototypes.grad.norm() > 0 and z.grad.isfinite().all()


def test_the_queue_takes_part_once_it_is_full():
    loss, without = swav(queue_size=10), swav()
    first, second, third = (rows(2, 6, 5, seed=s).float() for s in (1, 2, 3))
    assert loss(first).item() == without(first).item()
    assert loss.queued == 6
    assert loss(second).item() == without(second).item()
    assert loss.queued == 10
    for view in range(2):  # newest first
        torch.testing.assert_close(
            loss.queue[view], plain.unit(torch.cat((second[view], first[view]))[:10])
        )
    past = loss.queue.clone()
    with_queue = loss(third).item()
    assert with_queue != pytest.approx(without(third).item(), rel=1e-4)
    expected = plain.swav(
        third, loss.prototypes.detach(), past=past
    )  # balanced together, the batch's part is kept
    assert with_queue == pytest.approx(expected.item(), rel=1e-5)


def test_the_queue_can_be_left_out_and_rests_in_evaluation():
    loss, without, z = swav(queue_size=4), swav(), rows(2, 6, 5).float()
    loss(z)
    loss.use_queue = False
    before = loss.queue.clone()
    assert loss(2 * z + 1).item() == without(2 * z + 1).item()
    assert torch.equal(loss.queue, before)
    loss.use_queue = True
    loss.eval()(-z)
    assert torch.equal(loss.queue, before)
