"""Batch normalisation in groups."""

import pytest
import timm
import torch
from torch import nn

from nearfar.networks import SplitBatchNorm, shuffled, split_batch_norm


@pytest.mark.parametrize("shape", [(12, 5), (12, 5, 3, 3)])
def test_each_group_is_normalised_by_its_own_statistics(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    norm = SplitBatchNorm(5, groups=3).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    rows = torch.randn(shape, dtype=torch.float64) * torch.arange(1, 13).view(-1, *[1] * (len(shape) - 1))
    out = norm(rows)
    over = [0, 2, 3][: len(shape) - 1]
    per_channel = (1, -1, 1, 1)[: len(shape)]
    for start in (0, 4, 8):
        part = rows[start : start + 4]
        mean, var = part.mean(over, keepdim=True), part.var(over, keepdim=True, unbiased=False)
        wanted = (part - mean) / (var + 1e-5).sqrt() * norm.weight.view(per_channel) + norm.bias.view(per_channel)
        torch.testing.assert_close(out[start : start + 4], wanted)


def test_one_group_and_eval_mode_are_plain_batch_norm() -> None:
    plain, split = nn.BatchNorm1d(4), SplitBatchNorm(4, groups=1)
    rows = torch.randn(10, 4) * 2 + 1
    torch.testing.assert_close(split(rows), plain(rows))
    four = SplitBatchNorm(4, groups=4)
    four.load_state_dict(plain.state_dict())
    torch.testing.assert_close(four.eval()(rows[:3]), plain.eval()(rows[:3]))


def test_running_statistics_approach_those_of_the_groups() -> None:
    torch.manual_seed(0)
    norm = SplitBatchNorm(3, groups=4)
    for _ in range(50):
        norm(torch.randn(64, 3) * 2 + 5)
    torch.testing.assert_close(norm.running_mean, torch.full((3,), 5.0), atol=0.4, rtol=0)
    torch.testing.assert_close(norm.running_var, torch.full((3,), 4.0), atol=1.2, rtol=0)


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="divide into 4"):
        SplitBatchNorm(3, groups=4)(torch.rand(10, 3))
    with pytest.raises(ValueError, match="1 or more"):
        SplitBatchNorm(3, groups=0)


@pytest.mark.parametrize("name", ["resnet10t", "regnetx_002"])  # plain layers, and timm's fused ones with an activation
def test_converter_keeps_state_and_meaning(name: str) -> None:
    torch.manual_seed(0)
    net = timm.create_model(name, num_classes=0)
    images = torch.rand(4, 3, 64, 64)
    keys, wanted = list(net.state_dict()), net.eval()(images)
    halves = torch.cat([net.train()(half) for half in images.chunk(2)])
    split = split_batch_norm(timm.create_model(name, num_classes=0), 2)
    assert list(split.state_dict()) == keys
    assert not any(type(m) is nn.BatchNorm2d for m in split.modules())
    fresh = {key: value for key, value in net.state_dict().items() if "running" not in key and "num_b" not in key}
    split.load_state_dict(fresh, strict=False)
    torch.testing.assert_close(split.eval()(images), wanted)
    torch.testing.assert_close(split.train()(images), halves, atol=1e-4, rtol=1e-4)


def test_shuffled_returns_rows_in_order_and_mixes_groups() -> None:
    torch.manual_seed(0)
    rows = torch.randn(8, 4)
    torch.testing.assert_close(shuffled(lambda x: x * 2, rows), rows * 2)
    norm = SplitBatchNorm(4, groups=2)
    outs = {shuffled(norm, rows)[0, 0].item() for _ in range(6)}
    assert len(outs) > 1
