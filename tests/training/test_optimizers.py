"""Parameter groups, LARS and Muon against plain loops and other implementations, and the learning
rate over a run.
"""

import copy
import math

import pytest
import torch
from torch import nn

from nearfar.methods import Head
from nearfar.networks import MomentumEncoder
from nearfar.training.optimizers import (
    LARS,
    GroupRules,
    Muon,
    build_optimizer,
    orthogonal,
    parameter_groups,
    rate_factor,
    scaled_lr,
    set_rates,
)


def parameters(*shapes, dtype=torch.float64):
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]


# ---- groups


def test_decay_is_left_off_by_dimension():
    net, loss = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(2, 3)), nn.Module()
    loss.bias = nn.Parameter(torch.tensor(-10.0))  # as SigCLR's
    decayed, rest = parameter_groups([net, loss], 0.1)
    assert {id(p) for p in decayed["params"]} == {id(net[0].weight), id(net[2].weight)}
    wanted = {id(p) for p in (net[0].bias, net[1].weight, net[1].bias, net[2].bias, loss.bias)}
    assert {id(p) for p in rest["params"]} == wanted
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)


def test_the_momentum_encoder_is_left_out_and_shared_parameters_stand_once():
    online = Head((8, 2)).build(4)
    groups = parameter_groups([nn.ModuleList([online, MomentumEncoder(online)]), online], 0.1)
    params = [id(p) for group in groups for p in group["params"]]
    assert sorted(params) == sorted(id(p) for p in online.parameters())


def test_constant_modules_are_marked():
    net, predictor = Head((8, 2)).build(4), Head((4, 2)).build(2)
    optimizer = build_optimizer(
        "sgd", [net, predictor], lr=0.1, weight_decay=0.1, rules=GroupRules(constant=[predictor])
    )
    constant = {
        id(p) for group in optimizer.param_groups if group["constant_lr"] for p in group["params"]
    }
    assert constant == {id(p) for p in predictor.parameters()}


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "lars", "muon"])
def test_zero_gradient_moves_only_what_decays(name):
    net = nn.Linear(3, 3)
    nn.init.ones_(net.bias)
    nn.init.ones_(net.weight)
    optimizer = build_optimizer(name, net, lr=0.1, weight_decay=0.5)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert torch.equal(net.bias.data, torch.ones(3))
    # LARS has its ratio eta |w| / |decay w| on top, of 0.002; Adam's first step has the length of
    # the rate.
    factor = 0.9 if name == "adam" else 1 - 0.05 * (0.002 if name == "lars" else 1.0)
    torch.testing.assert_close(net.weight.data, torch.full((3, 3), factor))


def test_biases_and_norms_can_decay_and_have_a_rate_of_their_own():
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    before = [p.detach().clone() for p in net.parameters()]
    optimizer = build_optimizer(
        "sgd",
        net,
        lr=0.1,
        weight_decay=0.5,
        rules=GroupRules(decay_all=True, vector_lr=0.024),
    )
    for group in optimizer.param_groups:
        group["lr"] *= group["lr_scale"]
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    for p, old in zip(net.parameters(), before, strict=True):
        lr = 0.1 if p.ndim > 1 else 0.0024
        torch.testing.assert_close(p.data, old - lr * (1 + 0.5 * old))


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'adam"):
        build_optimizer("adamv", nn.Linear(2, 2), lr=0.1, weight_decay=0)


# ---- LARS


@pytest.mark.parametrize("decay", [0.0, 1e-2])
def test_lars_is_the_loop_of_its_definition(decay):
    params = parameters((4, 3), (5,), (), (2, 3, 3, 3), (6, 6), (3, 2))
    params[4].data.zero_()  # no weight yet: ratio 1
    optimizer = LARS(params, lr=0.3, weight_decay=decay)
    weights = [p.detach().clone() for p in params]
    moving = [torch.zeros_like(w) for w in weights]
    for step in range(5):
        gradients = [torch.randn_like(p) for p in params]
        gradients[5].zero_()  # no gradient
        for p, g in zip(params, gradients, strict=True):
            p.grad = g.clone()
        optimizer.param_groups[0]["lr"] = lr = 0.3 / (step + 1)
        optimizer.step()
        assert all(torch.equal(p.grad, g) for p, g in zip(params, gradients, strict=True))
        for number, (w, update) in enumerate(zip(weights, gradients, strict=True)):
            if w.ndim > 1:
                update = update + decay * w
                size, below = w.norm().item(), update.norm().item()
                update = 0.001 * size / below * update if size > 0 and below > 0 else update
            moving[number] = 0.9 * moving[number] + update
            weights[number] = w - lr * moving[number]
    for p, w in zip(params, weights, strict=True):
        torch.testing.assert_close(p.data, w, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [LARS, Muon])
def test_state_survives_a_restart_and_parameters_without_gradient_stay(kind):
    def run(restart):
        moved, still = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2, 2))
        optimizer = kind([moved, still], lr=0.5, weight_decay=0.1)
        for step in range(4):
            if restart and step == 2:
                state = optimizer.state_dict()
                optimizer = kind([moved, still], lr=1.0)
                optimizer.load_state_dict(state)
            moved.grad = torch.tensor([[1.0, 2, 3], [3, 2, 1]]) * (step + 1)
            optimizer.step()
        assert torch.equal(still.data, torch.ones(2, 2))
        return moved.data

    assert torch.equal(run(restart=True), run(restart=False))


def test_larc_is_apex():
    """Every parameter is scaled and decays; the norms stand below the line one by one."""
    params = parameters((4, 3), (5,), (6, 6))
    params[2].data.zero_()
    before = [p.detach().clone() for p in params]
    optimizer = build_optimizer("larc", nn.ParameterList(params), lr=0.3, weight_decay=0.1)
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer.step()
    for p, w in zip(params[:2], before, strict=False):
        ratio = 0.001 * w.norm() / (p.grad.norm() + 0.1 * w.norm())
        torch.testing.assert_close(p.data, w - 0.3 * ratio * (p.grad + 0.1 * w))
    torch.testing.assert_close(params[2].data, -0.3 * params[2].grad)


@pytest.mark.parametrize("decay", [0.01, 0.0])
def test_larc_clip_is_solo_learn(decay):
    """Its released code: no layer moves faster than plain momentum would move it, and vectors are
    not scaled.
    """
    slow, fast, vector = params = parameters((4, 3), (6, 6), (5,))
    before = [p.detach().clone() for p in params]
    optimizer = build_optimizer("larc-clip", nn.ParameterList(params), lr=0.3, weight_decay=decay)
    slow.grad, fast.grad, vector.grad = (
        100 * torch.randn_like(slow),
        1e-3 * torch.randn_like(fast),
        vector.data.clone(),
    )
    optimizer.step()
    ratio = 0.02 * before[0].norm() / (slow.grad.norm() + decay * before[0].norm())
    torch.testing.assert_close(slow.data, before[0] - ratio * (slow.grad + decay * before[0]))
    ratio = 0.02 * before[1].norm() / (fast.grad.norm() + decay * before[1].norm())
    assert ratio > 0.3
    torch.testing.assert_close(fast.data, before[1] - 0.3 * (fast.grad + decay * before[1]))
    torch.testing.assert_close(vector.data, 0.7 * before[2])


def test_a_tenth_of_a_loss_is_a_tenth_of_the_rate_and_ten_times_the_decay_where_it_is_clipped():
    """An assumption of the recipe of Barlow Twins."""
    torch.manual_seed(0)
    start, gradient = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    for size in (1e-4, 1.0, 100.0):
        moved = []
        for scale, lr, decay in ((0.1, 0.3, 1e-4), (1.0, 0.03, 1e-3)):
            weight = nn.Parameter(start.clone())
            optimizer = build_optimizer(
                "larc-clip", nn.ParameterList([weight]), lr=lr, weight_decay=decay
            )
            for _ in range(2):
                weight.grad = scale * size * gradient
                optimizer.step()
            moved.append(weight.data)
        torch.testing.assert_close(*moved)


@pytest.mark.parametrize(
    ("name", "share", "rules"),
    [
        (
            "lars",
            2.0,
            GroupRules(vector_lr=2.0),
        ),  # SimCLR and BYOL on ImageNet, whose code adds the two views up
        ("lars", 0.2, GroupRules(vector_lr=0.2)),  # SogCLR on ImageNet at temperature 0.1
        ("larc", 0.6, GroupRules()),  # SogCLR on CIFAR at temperature 0.3, all parameters adapted
    ],
)
def test_recipes_whose_code_has_another_multiple_of_the_loss_make_the_same_steps(
    name, share, rules
):
    """Theirs: decay 0.01 on `share` times the gradient. Ours: the decay divided by it, another rate
    for vectors.
    """
    ends = []
    for scale, decay, more in (
        (share, 0.01, GroupRules()),
        (1.0, 0.01 / share, rules),
    ):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)).double()
        nn.init.normal_(net[1].bias)  # apex adapts no parameter that is zero
        optimizer = build_optimizer(name, net, lr=0.3, weight_decay=decay, rules=more)
        for _ in range(3):
            for p in net.parameters():
                p.grad = scale * torch.randn_like(p)
            for group in optimizer.param_groups:
                group["lr"] = 0.3 * group["lr_scale"]
            optimizer.step()
        ends.append([p.detach() for p in net.parameters()])
    for theirs, ours in zip(*ends, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "lars", "muon"])
def test_a_rate_that_is_a_tensor_keeps_its_place_and_makes_the_same_steps(name):
    """As a number and as a tensor, which a captured step reads: one part in ten million apart."""
    ends = []
    for on_device in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 16), nn.Linear(16, 4))
        rules = GroupRules(constant=[net[3]])
        optimizer = build_optimizer(
            name, net, lr=0.3, weight_decay=0.01, rules=rules, fused=True, on_device=on_device
        )
        rates = [group["lr"] for group in optimizer.param_groups]
        for step in range(3):
            for p in net.parameters():
                p.grad = torch.randn_like(p)
            set_rates(optimizer, 0.3 / (1 + step), 0.3)
            optimizer.step()
        if on_device:
            groups = optimizer.param_groups
            assert all(group["lr"] is rate for group, rate in zip(groups, rates, strict=True))
            values = {round(float(group["lr"]), 6): group["constant_lr"] for group in groups}
            assert values == {0.1: False, 0.3: True}
        ends.append([p.detach() for p in net.parameters()])
    for numbers, tensors in zip(*ends, strict=True):
        torch.testing.assert_close(tensors, numbers, rtol=1e-6, atol=1e-6)


# ---- Muon


def test_matrices_of_several_shapes_move_together_as_each_alone():
    shapes = [(4, 6), (6, 4), (4, 6), (4, 3, 3, 3), (6, 4, 1, 1), (5, 5)]
    together, alone = (parameters(*shapes, dtype=torch.float32) for _ in range(2))
    optimizers = [Muon(together, lr=0.1), *(Muon([p], lr=0.1) for p in alone)]
    for _ in range(3):
        for p, q in zip(together, alone, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(together, alone, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 8, 20), (2, 20, 8)])
def test_singular_values_end_close_to_one(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    out = orthogonal(matrices)
    values = torch.linalg.svdvals(out)
    assert values.min() > 0.6
    assert values.max() < 1.25
    inside = left.mT @ out @ right.mT  # the singular vectors are those of the input
    torch.testing.assert_close(
        inside, torch.diag_embed(inside.diagonal(dim1=1, dim2=2)), rtol=0, atol=1e-4
    )
    assert not orthogonal(torch.zeros(2, 3, 5)).any()
    torch.testing.assert_close(orthogonal(matrices * 1e4), out)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon from 2.9 on")
def test_matrices_move_as_by_torch():
    (ours,) = parameters((24, 40), dtype=torch.float32)
    theirs = nn.Parameter(ours.detach().clone())
    mine = Muon([ours], lr=0.01, weight_decay=0.1)
    options = dict(lr=0.01, momentum=0.9, weight_decay=0.1)
    other = torch.optim.Muon([theirs], nesterov=True, adjust_lr_fn="match_rms_adamw", **options)
    for _ in range(4):
        ours.grad = torch.randn(24, 40)
        theirs.grad = ours.grad.clone()
        mine.step()
        other.step()
    step = 0.01 * 0.2 * 40**0.5 * (1 / 24) ** 0.5  # root mean square of one step's entries
    assert (ours - theirs).abs().max() < 0.1 * step  # torch rounds to bfloat16 on the way


def test_vectors_move_as_by_adamw_and_convolutions_as_their_matrix():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    twin = copy.deepcopy(net)
    flat = nn.Parameter(net[0].weight.detach().flatten(1).clone())
    mine = build_optimizer("muon", net, lr=0.02, weight_decay=0.05)
    vectors = [p for p in twin.parameters() if p.ndim == 1]
    adamw, matrix = (
        torch.optim.AdamW(vectors, lr=0.02, weight_decay=0.0),
        Muon([flat], lr=0.02, weight_decay=0.05),
    )
    for _ in range(3):
        gradients = [torch.randn_like(p) for p in net.parameters()]
        for p, q, g in zip(net.parameters(), twin.parameters(), gradients, strict=True):
            p.grad, q.grad = g.clone(), g.clone()
        flat.grad = gradients[0].flatten(1)
        for optimizer in (mine, adamw, matrix):
            optimizer.step()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        if p.ndim == 1:
            torch.testing.assert_close(p, q)
    torch.testing.assert_close(net[0].weight.flatten(1), flat)


# ---- the learning rate


def test_learning_rate_rules():
    assert scaled_lr(0.06, 512, "linear") == pytest.approx(0.12)
    assert scaled_lr(0.3, 256, "linear", reference=64) == pytest.approx(1.2)  # SigCLR
    assert scaled_lr(0.075, 128, "sqrt", reference=1) == pytest.approx(
        0.848528, rel=1e-6
    )  # SACLR on ImageNet
    assert scaled_lr(0.1, 64, "none") == 0.1


def test_warmup_then_cosine_in_exact_numbers():
    factors = [rate_factor(step, 12, 4) for step in range(13)]
    assert factors[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert factors[6] == pytest.approx((1 + math.sqrt(0.5)) / 2)
    assert factors[8] == pytest.approx(0.5)  # halfway down
    assert factors[12] == pytest.approx(0.0)
    assert [rate_factor(step, 2, 2) for step in range(3)] == [
        0.5,
        1.0,
        1.0,
    ]  # a run that is all warm-up


def test_the_warmup_never_exceeds_the_peak_between_two_steps():
    assert rate_factor(9.5, 100, 10) == 1.0 and rate_factor(8.5, 100, 10) == pytest.approx(0.95)


def test_schedule_ends_at_the_final_factor_and_stays():
    factors = [rate_factor(step, 10, 0, final=0.2) for step in (0, 5, 10, 15)]
    assert factors == pytest.approx([1.0, 0.6, 0.2, 0.2])


def test_drops_take_the_place_of_the_cosine():
    """MoCo v1's fall to a tenth, those of W-MSE's code to a fifth; SwAV's scripts begin at 0.3 of
    4.8.
    """
    factors = [rate_factor(step, 20, 2, drops=[12, 16]) for step in (0, 1, 2, 11, 12, 15, 16, 19)]
    assert factors == pytest.approx([0.5, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])
    assert [rate_factor(step, 20, 2, 0.0, [12, 16], 0.2) for step in (11, 12, 16)] == pytest.approx(
        [1, 0.2, 0.04]
    )
    assert [rate_factor(step, 12, 4, start=1 / 16) for step in (0, 3)] == pytest.approx(
        [1 / 16 + 15 / 64, 1]
    )
