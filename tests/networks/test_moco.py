"""MoCo's parts: the momentum encoder, the queue against a plain list, batch normalisation in
groups.
"""

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from nearfar.networks import MomentumEncoder, Queue, SplitBatchNorm, shuffled, split_batch_norm


def networks() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def test_the_momentum_encoder_starts_as_a_copy_without_gradient() -> None:
    online = networks()
    momentum_encoder = MomentumEncoder(online)
    rows = torch.rand(6, 4)
    torch.testing.assert_close(momentum_encoder(rows), online(rows))
    assert not momentum_encoder(rows).requires_grad
    assert not any(p.requires_grad for p in momentum_encoder.parameters())
    assert {p.data_ptr() for p in momentum_encoder.parameters()}.isdisjoint(
        p.data_ptr() for p in online.parameters()
    )
    assert all(p.requires_grad for p in online.parameters())
    again = MomentumEncoder(networks())
    again.load_state_dict(momentum_encoder.state_dict())
    torch.testing.assert_close(again(rows), momentum_encoder(rows))


def test_it_follows_by_momentum_parameter_by_parameter() -> None:
    online = networks()
    momentum_encoder = MomentumEncoder(online)
    expected = [p.detach().clone() for p in online.parameters()]
    for momentum in (0.9, 0.5, 1.0, 0.99):
        for p in online.parameters():
            p.data.add_(torch.randn_like(p))
        expected = [
            momentum * old + (1 - momentum) * p.detach()
            for old, p in zip(expected, online.parameters(), strict=True)
        ]
        momentum_encoder.update(online, momentum)
    for own, wanted in zip(momentum_encoder.parameters(), expected, strict=True):
        torch.testing.assert_close(own.data, wanted)
    momentum_encoder.update(online, 0.0)
    assert all(
        torch.equal(p, q)
        for p, q in zip(momentum_encoder.parameters(), online.parameters(), strict=True)
    )
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        momentum_encoder.update(online, 1.5)
    with pytest.raises(ValueError, match="other parameters"):
        momentum_encoder.update(nn.Linear(4, 8), 0.9)


def test_its_buffers_are_copied_and_it_normalises_by_its_batch() -> None:
    online = networks()
    momentum_encoder = MomentumEncoder(online).train()
    rows = torch.randn(64, 4) * 5
    hidden = momentum_encoder.networks[:2](rows)
    torch.testing.assert_close(hidden.mean(0), torch.zeros(8), atol=1e-5, rtol=0)
    online(torch.randn(32, 4) * 3 + 1)
    momentum_encoder.update(online, 0.75)
    torch.testing.assert_close(momentum_encoder.networks[1].running_mean, online[1].running_mean)
    assert momentum_encoder.networks[1].num_batches_tracked == 1


def keys(first: int, count: int) -> torch.Tensor:
    """Unit rows [count, 4] that differ by their number."""
    angles = torch.arange(first, first + count, dtype=torch.float32) * 0.1
    return torch.stack([angles.cos(), angles.sin(), *[torch.zeros(count)] * 2], 1)


def test_the_queue_starts_as_unit_gaussian_rows() -> None:
    torch.manual_seed(3)
    queue = Queue(2000, 16)
    expected = torch.randn(2000, 16, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(queue(), F.normalize(expected))
    with pytest.raises(ValueError, match="1 or more"):
        Queue(0, 4)


@pytest.mark.parametrize("batches", [[1, 6, 5], [23, 2], [7, 30, 1], [2, 0, 3]])
def test_any_batch_size_wraps_as_a_ring(batches: list[int]) -> None:
    queue, again, place, first = Queue(7, 4), Queue(7, 4), 0, 0
    ring = queue()
    for count in batches:
        again.load_state_dict(queue.state_dict())  # the state survives a restart
        queue = again
        rows = keys(first, count)
        queue.push(3 * rows)
        for row in rows:
            ring[place] = row
            place = (place + 1) % 7
        first += count
    torch.testing.assert_close(queue(), ring)
    assert queue.pointer.item() == place


def test_a_push_between_forward_and_backward_does_no_harm() -> None:
    queue, query = Queue(4, 4), torch.rand(2, 4, requires_grad=True)
    rows = queue()
    loss = (query @ rows.T).exp().sum()
    expected = (query @ rows.T).exp().detach() @ rows
    queue.push(keys(0, 4).requires_grad_())
    loss.backward()
    torch.testing.assert_close(query.grad, expected)
    assert not queue().requires_grad


@pytest.mark.parametrize("shape", [(12, 5), (12, 5, 3, 3)])
def test_each_group_is_normalised_by_its_own_statistics(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    norm = SplitBatchNorm(5, groups=3).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    rows = torch.randn(shape, dtype=torch.float64) * torch.arange(1, 13).view(
        -1, *[1] * (len(shape) - 1)
    )
    out = norm(rows)
    over = [0, 2, 3][: len(shape) - 1]
    per_channel = (1, -1, 1, 1)[: len(shape)]
    for start in (0, 4, 8):
        part = rows[start : start + 4]
        mean, var = part.mean(over, keepdim=True), part.var(over, keepdim=True, unbiased=False)
        wanted = (part - mean) / (var + 1e-5).sqrt() * norm.weight.view(
            per_channel
        ) + norm.bias.view(per_channel)
        torch.testing.assert_close(out[start : start + 4], wanted)


def test_one_group_and_eval_mode_are_plain_batch_norm() -> None:
    plain, split = nn.BatchNorm1d(4), SplitBatchNorm(4, groups=1)
    rows = torch.randn(10, 4) * 2 + 1
    torch.testing.assert_close(split(rows), plain(rows))
    four = SplitBatchNorm(4, groups=4)
    four.load_state_dict(plain.state_dict())
    torch.testing.assert_close(four.eval()(rows[:3]), plain.eval()(rows[:3]))
    with pytest.raises(ValueError, match="divide into 4"):
        four.train()(rows)
    with pytest.raises(ValueError, match="1 or more"):
        SplitBatchNorm(3, groups=0)


@pytest.mark.parametrize(
    "name", ["resnet10t", "regnetx_002"]
)  # plain layers, and timm's fused ones with an activation
def test_converted_nets_keep_state_and_meaning(name: str) -> None:
    torch.manual_seed(0)
    net = timm.create_model(name, num_classes=0)
    images = torch.rand(4, 3, 64, 64)
    names, wanted = list(net.state_dict()), net.eval()(images)
    halves = torch.cat([net.train()(half) for half in images.chunk(2)])
    split = split_batch_norm(timm.create_model(name, num_classes=0), 2)
    assert list(split.state_dict()) == names
    assert not any(type(m) is nn.BatchNorm2d for m in split.modules())
    fresh = {
        key: value
        for key, value in net.state_dict().items()
        if "running" not in key and "num_b" not in key
    }
    split.load_state_dict(fresh, strict=False)
    torch.testing.assert_close(split.eval()(images), wanted)
    torch.testing.assert_close(split.train()(images), halves, atol=1e-4, rtol=1e-4)


def test_shuffled_returns_rows_in_order_and_mixes_groups() -> None:
    torch.manual_seed(0)
    rows = torch.randn(8, 4)
    torch.testing.assert_close(shuffled(lambda x: x * 2, rows), rows * 2)
    norm = SplitBatchNorm(4, groups=2)
    assert len({shuffled(norm, rows)[0, 0].item() for _ in range(6)}) > 1


@pytest.mark.parametrize("size", [3, 5, 8])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e30])
def test_keys_that_are_not_finite_do_not_enter_the_queue(size, bad):
    """Pushed are the others, in their order, whatever the size of the queue; 1e30 has no finite
    length.
    """
    torch.manual_seed(0)
    queue, wanted = Queue(size, 4), Queue(size, 4)
    wanted.load_state_dict(queue.state_dict())
    for places in ([], [0], [5], [1, 2, 5], range(6), []):
        keys = torch.randn(6, 4)
        good = keys[[row for row in range(6) if row not in places]]
        keys[list(places)] = bad
        queue.push(keys)
        if len(good):
            wanted.push(good)
        assert torch.equal(queue.stored, wanted.stored)
        assert torch.equal(queue.pointer, wanted.pointer)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("converted", ["before", "after"])
def test_the_momentum_encoder_of_a_half_precision_model_moves(dtype, converted):
    """A thousandth of the way a step, which is below the resolution of bfloat16."""
    torch.manual_seed(0)
    online = torch.nn.Linear(4, 2)
    if converted == "before":
        follower = MomentumEncoder(online.to(dtype))
    else:
        follower = MomentumEncoder(online).to(dtype)
        online.to(dtype)
    before = follower.networks.weight.clone()
    with torch.no_grad():
        online.weight += 1
    for _ in range(100):
        follower.update(online, momentum=0.999)
    moved = follower.networks.weight - before
    torch.testing.assert_close(moved, torch.full_like(moved, 1 - 0.999**100), rtol=0.05, atol=0)
    assert follower(torch.zeros(3, 4, dtype=dtype)).dtype == torch.float32
