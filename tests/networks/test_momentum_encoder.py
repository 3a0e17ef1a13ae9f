"""The momentum encoder."""

import pytest
import torch
from torch import nn

from nearfar.networks import MomentumEncoder


def networks() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def test_starts_as_a_copy_without_gradient() -> None:
    online = networks()
    momentum_encoder = MomentumEncoder(online)
    rows = torch.rand(6, 4)
    torch.testing.assert_close(momentum_encoder(rows), online(rows))
    assert not momentum_encoder(rows).requires_grad
    assert [p for p in momentum_encoder.parameters() if p.requires_grad] == []
    assert {p.data_ptr() for p in momentum_encoder.parameters()}.isdisjoint(p.data_ptr() for p in online.parameters())
    assert all(p.requires_grad for p in online.parameters())


def test_follows_by_momentum_parameter_by_parameter() -> None:
    torch.manual_seed(0)
    online = networks()
    momentum_encoder = MomentumEncoder(online)
    expected = [p.detach().clone() for p in online.parameters()]
    for momentum in (0.9, 0.5, 0.99):
        for p in online.parameters():
            p.data.add_(torch.randn_like(p))
        expected = [
            momentum * old + (1 - momentum) * p.detach() for old, p in zip(expected, online.parameters(), strict=True)
        ]
        momentum_encoder.update(online, momentum)
    for own, wanted in zip(momentum_encoder.parameters(), expected, strict=True):
        torch.testing.assert_close(own.data, wanted)


def test_momentum_one_stays_and_zero_copies() -> None:
    online = networks()
    momentum_encoder = MomentumEncoder(online)
    before = [p.clone() for p in momentum_encoder.parameters()]
    for p in online.parameters():
        p.data.add_(1)
    momentum_encoder.update(online, 1.0)
    assert all(torch.equal(p, q) for p, q in zip(momentum_encoder.parameters(), before, strict=True))
    momentum_encoder.update(online, 0.0)
    assert all(torch.equal(p, q) for p, q in zip(momentum_encoder.parameters(), online.parameters(), strict=True))


def test_buffers_are_copied() -> None:
    online = networks()
    momentum_encoder = MomentumEncoder(online)
    online(torch.randn(32, 4) * 3 + 1)
    running = online[1].running_mean.clone()
    momentum_encoder.update(online, 0.75)
    torch.testing.assert_close(momentum_encoder.networks[1].running_mean, running)
    assert momentum_encoder.networks[1].num_batches_tracked == 1


def test_train_mode_uses_the_batch_statistics() -> None:
    momentum_encoder = MomentumEncoder(networks()).train()
    rows = torch.randn(64, 4) * 5
    hidden = momentum_encoder.networks[1](momentum_encoder.networks[0](rows))
    torch.testing.assert_close(hidden.mean(0), torch.zeros(8), atol=1e-5, rtol=0)


def test_state_is_in_the_state_dict() -> None:
    online = networks()
    momentum_encoder, again = MomentumEncoder(online), MomentumEncoder(networks())
    again.load_state_dict(momentum_encoder.state_dict())
    assert all(torch.equal(p, q) for p, q in zip(momentum_encoder.parameters(), again.parameters(), strict=True))


def test_bad_momentum_and_other_networks_are_refused() -> None:
    momentum_encoder = MomentumEncoder(networks())
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        momentum_encoder.update(networks(), 1.5)
    with pytest.raises(ValueError, match="other parameters"):
        momentum_encoder.update(nn.Linear(4, 8), 0.9)
