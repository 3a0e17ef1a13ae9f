"""Parameter groups and the learning rate over a run."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from nearfar.networks import MomentumEncoder, mlp
from nearfar.training.optimizers import LARS, build_optimizer, parameter_groups, rate_factor, scaled_lr


class Bias(nn.Module):
    """A loss with one learnable number, as SigCLR's."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(-10.0))


def test_decay_is_left_off_by_dimension() -> None:
    net, loss = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(2, 3)), Bias()
    decayed, rest = parameter_groups([net, loss], 0.1)
    assert {id(p) for p in decayed["params"]} == {id(net[0].weight), id(net[2].weight)}
    wanted = {id(p) for p in (net[0].bias, net[1].weight, net[1].bias, net[2].bias, loss.bias)}
    assert {id(p) for p in rest["params"]} == wanted
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)


def test_the_momentum_encoder_is_left_out_and_shared_parameters_stand_once() -> None:
    online = mlp(4, (8, 2))
    groups = parameter_groups([nn.ModuleList([online, MomentumEncoder(online)]), online], 0.1)
    params = [id(p) for group in groups for p in group["params"]]
    assert sorted(params) == sorted(id(p) for p in online.parameters())


def test_constant_modules_are_marked() -> None:
    net, predictor = mlp(4, (8, 2)), mlp(2, (4, 2))
    optimizer = build_optimizer("sgd", [net, predictor], lr=0.1, weight_decay=0.1, constant=[predictor])
    constant = {id(p) for group in optimizer.param_groups if group["constant_lr"] for p in group["params"]}
    assert constant == {id(p) for p in predictor.parameters()}


@pytest.mark.parametrize("name", ["sgd", "adamw", "lars", "muon"])
def test_zero_gradient_moves_only_what_decays(name: str) -> None:
    net = nn.Linear(3, 3)
    nn.init.ones_(net.bias)
    nn.init.ones_(net.weight)
    optimizer = build_optimizer(name, net, lr=0.1, weight_decay=0.5)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert torch.equal(net.bias.data, torch.ones(3))
    # SGD and AdamW shrink by lr * decay; LARS by its ratio eta |w| / |decay w| on top, of 0.002
    factor = 1 - 0.05 * (0.002 if name == "lars" else 1.0)
    torch.testing.assert_close(net.weight.data, torch.full((3, 3), factor))


def test_names_and_momentum() -> None:
    net = nn.Linear(2, 2)
    sgd, adamw, lars = (build_optimizer(n, net, lr=0.1, weight_decay=0, momentum=0.8) for n in ("sgd", "adamw", "lars"))
    assert type(sgd) is torch.optim.SGD and sgd.param_groups[0]["momentum"] == 0.8
    assert type(adamw) is torch.optim.AdamW and adamw.param_groups[0]["betas"] == (0.8, 0.999)
    assert type(lars) is LARS and lars.param_groups[0]["momentum"] == 0.8


def test_bad_arguments_are_refused() -> None:
    net = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="did you mean 'adam"):
        build_optimizer("adamv", net, lr=0.1, weight_decay=0)
    with pytest.raises(ValueError, match="0 or more"):
        build_optimizer("sgd", net, lr=-0.1, weight_decay=0)
    with pytest.raises(ValueError, match="no parameter"):
        build_optimizer("sgd", nn.ReLU(), lr=0.1, weight_decay=0)


def test_adam_decays_through_the_gradient() -> None:
    """The first step of Adam has the length of the rate whatever the gradient, so also where it is the decay alone."""
    net = nn.Linear(3, 3)
    before = net.weight.detach().clone()
    optimizer = build_optimizer("adam", net, lr=0.01, weight_decay=0.5)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    torch.testing.assert_close(net.weight.data, before - 0.01 * before.sign(), rtol=1e-4, atol=1e-5)


def test_biases_and_norms_can_decay_and_have_a_rate_of_their_own() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    before = [p.detach().clone() for p in net.parameters()]
    optimizer = build_optimizer("sgd", net, lr=0.1, weight_decay=0.5, decay_all=True, vector_lr=0.024)
    for group in optimizer.param_groups:
        group["lr"] *= group["lr_scale"]
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    for p, old in zip(net.parameters(), before, strict=True):
        lr = 0.1 if p.ndim > 1 else 0.0024
        torch.testing.assert_close(p.data, old - lr * (1 + 0.5 * old))


def test_drops_take_the_place_of_the_cosine() -> None:
    factors = [rate_factor(step, 20, 2, drops=[12, 16]) for step in (0, 1, 2, 11, 12, 15, 16, 19)]
    assert factors == pytest.approx([0.5, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_learning_rate_rules() -> None:
    assert scaled_lr(0.06, 512, "linear") == pytest.approx(0.12)
    assert scaled_lr(0.3, 256, "linear", reference=64) == pytest.approx(1.2)  # SigCLR
    assert scaled_lr(0.075, 128, "sqrt", reference=1) == pytest.approx(0.848528, rel=1e-6)  # SACLR on ImageNet
    assert scaled_lr(0.1, 64, "sqrt") == pytest.approx(0.05)
    assert scaled_lr(0.1, 64, "none") == 0.1
    with pytest.raises(ValueError, match="linear, sqrt or none"):
        scaled_lr(0.1, 64, "cubic")
    with pytest.raises(ValueError, match="1 or more"):
        scaled_lr(0.1, 0, "linear")


def test_warmup_then_cosine_in_exact_numbers() -> None:
    factors = [rate_factor(step, 12, 4) for step in range(13)]
    assert factors[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert factors[8] == pytest.approx(0.5)  # halfway down
    assert factors[6] == pytest.approx((1 + math.sqrt(0.5)) / 2)
    assert factors[12] == pytest.approx(0.0)
    assert all(a >= b for a, b in pairwise(factors[4:]))


def test_schedule_ends_at_the_final_factor_and_stays() -> None:
    assert rate_factor(10, 10, 0, final=0.001) == pytest.approx(0.001)
    assert rate_factor(15, 10, 0, final=0.001) == pytest.approx(0.001)
    assert rate_factor(5, 10, 0, final=0.2) == pytest.approx(0.6)
    assert rate_factor(0, 10, 0) == 1.0


def test_drops_and_the_start_of_the_warm_up_can_be_others_than_a_tenth_and_nothing():
    """W-MSE's code drops to a fifth; SwAV's scripts begin at 0.3 of 4.8."""
    assert [rate_factor(step, 20, 2, 0.0, [12, 16], 0.2) for step in (11, 12, 16)] == pytest.approx([1, 0.2, 0.04])
    assert [rate_factor(step, 12, 4, start=1 / 16) for step in (0, 3)] == pytest.approx([1 / 16 + 15 / 64, 1])


def test_a_run_that_is_all_warmup() -> None:
    assert [rate_factor(step, 2, 2) for step in range(3)] == [0.5, 1.0, 1.0]
