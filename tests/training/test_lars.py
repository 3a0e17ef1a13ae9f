"""LARS against a loop over parameters written from its definition."""

import pytest
import timm.optim
import torch
from torch import Tensor, nn

from nearfar.training.optimizers import LARS, build_optimizer


def naive_step(weights: list[Tensor], gradients: list[Tensor], moving: list[Tensor], lr: float, decay: float) -> None:
    """One step for plain tensors, in place: eta 0.001, momentum 0.9."""
    for number, (w, g) in enumerate(zip(weights, gradients, strict=True)):
        update = g
        if w.ndim > 1:
            update = g + decay * w
            size = w.norm().item()
            below = update.norm().item()
            ratio = 0.001 * size / below if size > 0 and below > 0 else 1.0
            update = ratio * update
        moving[number] = 0.9 * moving[number] + update
        weights[number] = w - lr * moving[number]


@pytest.mark.parametrize("decay", [0.0, 1e-2])
def test_matches_the_plain_loop(decay: float) -> None:
    torch.manual_seed(0)
    shapes = [(4, 3), (5,), (), (2, 3, 3, 3), (6, 6), (3, 2)]
    params = [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in shapes]
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
        naive_step(weights, gradients, moving, lr, decay)
    for p, w in zip(params, weights, strict=True):
        torch.testing.assert_close(p.data, w, rtol=1e-10, atol=1e-12)


def test_step_length_is_set_by_the_weight_not_by_the_gradient() -> None:
    ends = []
    for scale in (1e-4, 1.0, 1e4):
        p = nn.Parameter(torch.full((3, 4), 2.0))
        p.grad = torch.ones(3, 4) * scale
        LARS([p], lr=1.0, weight_decay=0.0).step()
        ends.append((2.0 - p.data).norm() / torch.full((3, 4), 2.0).norm())
    for moved in ends:
        assert moved.item() == pytest.approx(1e-3, rel=1e-3)


def test_the_decay_is_added_before_the_norm_is_taken() -> None:
    p = nn.Parameter(torch.tensor([[3.0, 4.0]]))
    p.grad = torch.tensor([[-1.5, -2.0]])  # |g + 1 w| = 2.5, |g| + 1 |w| = 7.5
    LARS([p], lr=1.0, weight_decay=1.0).step()
    moved = (torch.tensor([[3.0, 4.0]]) - p.data).norm().item()
    assert moved == pytest.approx(0.001 * 5 / 2.5 * 2.5, rel=1e-3)


def test_one_dimensional_parameters_get_no_decay() -> None:
    p = nn.Parameter(torch.tensor([10.0, -10.0]))
    p.grad = torch.zeros(2)
    LARS([p], lr=1.0, weight_decay=1.0).step()
    assert torch.equal(p.data, torch.tensor([10.0, -10.0]))


def test_gradients_are_left_as_they_were() -> None:
    p = nn.Parameter(torch.ones(2, 2))
    p.grad = torch.full((2, 2), 0.5)
    LARS([p], lr=1.0, weight_decay=0.1).step()
    assert torch.equal(p.grad, torch.full((2, 2), 0.5))


def test_state_survives_a_restart() -> None:
    def run(restart: bool) -> Tensor:
        p = nn.Parameter(torch.ones(2, 3))
        optimizer = LARS([p], lr=10.0, weight_decay=0.1)
        for step in range(4):
            if restart and step == 2:
                state = optimizer.state_dict()
                optimizer = LARS([p], lr=1.0)
                optimizer.load_state_dict(state)
            p.grad = torch.tensor([[1.0, 2, 3], [3, 2, 1]]) * (step + 1)
            optimizer.step()
        return p.data

    assert torch.equal(run(restart=True), run(restart=False))


def test_parameters_without_gradient_stay_and_a_closure_is_run() -> None:
    still, moved = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    optimizer = LARS([still, moved], lr=1.0, weight_decay=0.5)

    def closure() -> Tensor:
        loss = moved.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0
    assert torch.equal(still.data, torch.ones(2, 2)) and not torch.equal(moved.data, torch.ones(2, 2))


@pytest.mark.parametrize("wrong", [{"lr": -1.0}, {"weight_decay": -0.1}, {"momentum": 1.0}, {"trust": 0.0}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="LARS needs"):
        LARS([nn.Parameter(torch.ones(1, 1))], **{"lr": 0.1, **wrong})


def test_as_apex_has_it() -> None:
    """Every parameter is scaled and decays; the norms stand below the line one by one."""
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in ((4, 3), (5,), (6, 6))]
    params[2].data.zero_()
    before = [p.detach().clone() for p in params]
    optimizer = LARS(params, lr=0.3, weight_decay=0.1, larc=True)
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer.step()
    for p, w in zip(params[:2], before, strict=False):
        ratio = 0.001 * w.norm() / (p.grad.norm() + 0.1 * w.norm())
        torch.testing.assert_close(p.data, w - 0.3 * ratio * (p.grad + 0.1 * w))
    torch.testing.assert_close(params[2].data, -0.3 * params[2].grad)


def test_clipped_as_solo_learn_has_it() -> None:
    """Its released code: no layer moves faster than plain momentum would move it, and vectors are not scaled."""
    torch.manual_seed(0)
    slow, fast, vector = (nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in ((4, 3), (6, 6), (5,)))
    before = [p.detach().clone() for p in (slow, fast, vector)]
    optimizer = build_optimizer("larc-clip", nn.ParameterList([slow, fast, vector]), lr=0.3, weight_decay=0.01)
    slow.grad, fast.grad, vector.grad = 100 * torch.randn_like(slow), 1e-3 * torch.randn_like(fast), vector.data.clone()
    optimizer.step()
    ratio = 0.02 * before[0].norm() / (slow.grad.norm() + 0.01 * before[0].norm())
    torch.testing.assert_close(slow.data, before[0] - ratio * (slow.grad + 0.01 * before[0]))
    ratio = 0.02 * before[1].norm() / (fast.grad.norm() + 0.01 * before[1].norm())
    assert ratio > 0.3
    torch.testing.assert_close(fast.data, before[1] - 0.3 * (fast.grad + 0.01 * before[1]))
    torch.testing.assert_close(vector.data, 0.7 * before[2])


@pytest.mark.parametrize("form", ["larc", "clip"])
@pytest.mark.parametrize("decay", [0.0, 1e-2])
def test_both_ready_made_forms_make_the_steps_of_timm(form: str, decay: float) -> None:
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in ((64, 32), (16, 8, 3, 3), (16, 1, 3, 3))]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    options = dict(lr=0.3, momentum=0.9, weight_decay=decay)
    mine = LARS(ours, trust=0.02, **{form: True}, **options)
    other = timm.optim.Lars(theirs, trust_coeff=0.02, eps=0, always_adapt=True, trust_clip=form == "clip", **options)
    for step in range(5):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p) * 0.01**step
            q.grad = p.grad.clone()
        mine.step()
        other.step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [1e-4, 1.0, 100.0])
def test_a_tenth_of_a_loss_is_a_tenth_of_the_rate_and_ten_times_the_decay_where_it_is_clipped(size: float) -> None:
    """What the recipe of Barlow Twins takes for granted."""
    torch.manual_seed(0)
    start, gradient = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    moved = []
    for scale, lr, decay in ((0.1, 0.3, 1e-4), (1.0, 0.03, 1e-3)):
        weight = nn.Parameter(start.clone())
        optimizer = LARS([weight], lr=lr, weight_decay=decay, trust=0.02, clip=True)
        for _ in range(2):
            weight.grad = scale * size * gradient
            optimizer.step()
        moved.append(weight.data)
    torch.testing.assert_close(*moved)


@pytest.mark.parametrize(
    ("name", "share", "numbers"),
    [
        ("lars", 2.0, dict(vector_lr=2.0)),  # SimCLR and BYOL on ImageNet, whose code adds the two views up
        ("lars", 0.2, dict(vector_lr=0.2)),  # SogCLR on ImageNet at temperature 0.1
        ("larc", 2.0, {}),  # iSogCLR on CIFAR, all parameters adapted
        ("larc", 0.6, {}),  # SogCLR on CIFAR at temperature 0.3
    ],
)
def test_recipes_whose_code_has_another_multiple_of_the_loss_make_the_same_steps(
    name: str, share: float, numbers: dict[str, float]
) -> None:
    """Theirs: decay 0.01 on `share` times the gradient. Ours: the decay divided by it, another rate for vectors."""
    ends = []
    for scale, decay, more in ((share, 0.01, {}), (1.0, 0.01 / share, numbers)):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)).double()
        nn.init.normal_(net[1].bias)  # apex adapts no parameter that is zero
        optimizer = build_optimizer(name, net, lr=0.3, weight_decay=decay, **more)
        for _ in range(3):
            for p in net.parameters():
                p.grad = scale * torch.randn_like(p)
            for group in optimizer.param_groups:
                group["lr"] = 0.3 * group["lr_scale"]
            optimizer.step()
        ends.append([p.detach() for p in net.parameters()])
    for theirs, ours in zip(*ends, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-12)
