"""Losses that keep a running estimate against their plain forms over several steps: SACLR, SogCLR,
iSogCLR.

And SACLR's theorem, and the collapse of its matrix form as printed.
"""

import inspect

import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import normalize

import references as plain
from nearfar.losses import DCL, SACLR, ISogCLR, SigCLR, SimCLR, SogCLR, running
from nearfar.pairs import sample_others


def same_steps(loss, reference, **options):
    """Compare values and gradients of five steps, in which images return; the state of the plain
    form.
    """
    torch.manual_seed(0)
    state, images, batch = {}, 9, 5
    for step in range(5):
        index = torch.randperm(images)[:batch]
        views = [torch.randn(batch, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        sampled = getattr(loss, "negatives", "all")
        if sampled != "all":
            torch.manual_seed(step)
            options["others"] = sample_others(batch, sampled)
        torch.manual_seed(step)
        value, expected = loss(*views, index), reference(state, *views, index, images, **options)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(
            torch.autograd.grad(value, views), torch.autograd.grad(expected, views)
        )
    return state


@pytest.mark.parametrize("scale", ["matrix", "row"])
@pytest.mark.parametrize("negatives", [1, 3, "all"])
@pytest.mark.parametrize(
    ("kernel", "bandwidth"), [("gaussian", 0.6), ("cosine", 0.3), ("cauchy", 0.7)]
)
def test_saclr(scale, negatives, kernel, bandwidth):
    loss = SACLR(
        9, scale, negatives, kernel=kernel, bandwidth=bandwidth, initial_partition=0.05
    ).double()
    loss.partition.fill_(0.05)  # in full precision
    options = {
        "per_image": scale == "row",
        "kernel": kernel,
        "bandwidth": bandwidth,
        "initial": 0.05,
    }
    state = same_steps(loss, plain.saclr, **options)
    torch.testing.assert_close(loss.partition.reshape(-1), state["partition"])


def test_sogclr():
    loss = SogCLR(9, temperature=0.2, gamma=0.7).double()
    state = same_steps(loss, plain.sogclr, temperature=0.2, gamma=0.7)
    assert torch.equal(loss.seen, ~state["u"].isnan()) and loss.seen.sum() > 5
    torch.testing.assert_close(loss.u[loss.seen], state["u"][loss.seen])


@pytest.mark.parametrize("limit", [1.5, 0.2])
def test_isogclr(limit):
    numbers = {"lr": 0.03, "rho": 0.3, "beta": 0.8, "gamma": 0.7, "gradient_limit": limit}
    loss = ISogCLR(9, 0.2, (0.15, 0.3), **numbers).double()
    loss.temperatures.fill_(0.2)  # in full precision
    state = same_steps(
        loss, plain.isogclr, temperature=0.2, temperature_range=(0.15, 0.3), **numbers
    )
    assert torch.equal(loss.seen, ~state["u"].isnan())
    torch.testing.assert_close(loss.u[loss.seen], state["u"][loss.seen])
    torch.testing.assert_close(loss.momentum, state["momentum"])
    torch.testing.assert_close(loss.temperatures, state["temperatures"])
    assert len(loss.temperatures.unique()) > 3  # temperatures did move apart


def test_the_gradient_of_isogclr_is_that_of_its_objective():
    """At gamma = 1 a row's term is t_i log(mean of exp((s_ij - s_pos) / t_i)), written out here for
    each row.
    """
    torch.manual_seed(0)
    loss = ISogCLR(6, gamma=1.0).double()
    loss.temperatures.copy_(torch.linspace(0.05, 0.7, 6))
    views = torch.randn(2, 6, 5, dtype=torch.float64, requires_grad=True)
    rows, temperatures = normalize(views.flatten(0, 1), dim=1), loss.temperatures.repeat(2)
    terms = []
    for i in range(12):
        positive = rows[i] @ rows[(i + 6) % 12]
        others = torch.stack([rows[i] @ rows[j] for j in range(12) if j % 6 != i % 6])
        terms.append(temperatures[i] * ((others - positive) / temperatures[i]).exp().mean().log())
    (expected,) = torch.autograd.grad(sum(terms) / 12, views)
    (gradient,) = torch.autograd.grad(loss.eval()(*views, torch.arange(6)), views)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize(("with_positive", "loss"), [(False, DCL), (True, SimCLR)])
def test_theorem_1(with_positive, loss):
    """With Z the batch's own mean the gradient is DCL's, or SimCLR's if the positive is counted
    among the columns.

    Bandwidth 0.5 is a softmax temperature of 0.25. The views mirror each other, so that both rows
    of an image have the same mean and the row form, which keeps one Z for an image, can hold it.
    """
    torch.manual_seed(0)
    first, normal = (
        torch.randn(7, 5, dtype=torch.float64),
        plain.unit(torch.randn(5, dtype=torch.float64)),
    )
    views = [
        first.requires_grad_(),
        (first - 2 * torch.outer(first @ normal, normal)).detach().requires_grad_(),
    ]
    rows = plain.unit(torch.cat(views))
    q = torch.exp((rows @ rows.T - 1) / 0.25)
    positive, masked = q.diagonal(7).repeat(2), torch.eye(7, dtype=torch.bool).repeat(2, 2)
    counted = (q.masked_fill(masked, 0).sum(1) + (positive if with_positive else 0)).detach()
    torch.testing.assert_close(counted[:7], counted[7:])
    saclr = SACLR(
        7, "row", "all", bandwidth=0.5, alpha=0.0, rho=0.0, count_positive=with_positive
    ).double()
    saclr.partition.copy_(counted[:7] / (12 + with_positive))
    value = saclr(*views, torch.arange(7))
    torch.testing.assert_close(saclr.partition, counted[:7] / (12 + with_positive))  # seen anew
    torch.testing.assert_close(
        torch.autograd.grad(value, views), torch.autograd.grad(loss(0.25)(*views), views)
    )


def test_the_row_form_finds_the_z_of_theorem_1():
    """With rho = 0 and alpha = 0 one step leaves the batch's own mean in Z."""
    torch.manual_seed(0)
    first = torch.randn(6, 4, dtype=torch.float64)
    views = [
        first.clone().requires_grad_(),
        first.clone().requires_grad_(),
    ]  # equal views, hence equal means
    loss = SACLR(6, "row", "all", alpha=0.0, rho=0.0).double()
    loss(*views, torch.arange(6))
    gradients = torch.autograd.grad(loss(*views, torch.arange(6)), views)
    torch.testing.assert_close(gradients, torch.autograd.grad(DCL(0.25)(*views), views))


def test_the_row_form_says_how_far_its_normalisers_are_apart():
    loss = SACLR(8, "row", "all", rho=0.0)
    loss(*torch.randn(2, 6, 4), torch.arange(6))
    expected = loss.partition.double().numpy().std()
    assert loss.monitored["partition_deviation"].item() == pytest.approx(expected)
    matrix = SACLR(8)
    matrix(*torch.randn(2, 6, 4))
    assert "partition_deviation" not in matrix.monitored


def test_a_rho_of_1_computes_no_update(monkeypatch):
    views = torch.randn(2, 6, 4)
    moved = []
    monkeypatch.setattr(running, "move", lambda *args: moved.append(args))
    for rho in (1.0, 0.9):
        for scale in ("matrix", "row"):
            loss = SACLR(6, scale, rho=rho)
            loss(*views, torch.arange(6))
            assert (loss.partition == 0.01).all() and loss.monitored["positive"] > 0
        assert len(moved) == (0 if rho == 1 else 2)


def spread_after_training(loss):
    """1 - mean cosine between images, after a linear map of noisy digits was trained with
    `loss`.
    """
    torch.manual_seed(0)
    digits = torch.tensor(load_digits().data[:512], dtype=torch.float32) / 16
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
    optimiser = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(200):
        images = digits[torch.randperm(512)[:64]]
        views = [net(images + 0.2 * torch.randn_like(images)) for _ in range(2)]
        optimiser.zero_grad()
        loss(*views).backward()
        optimiser.step()
    with torch.no_grad():
        rows = normalize(net(digits), dim=1)
        return 1 - (rows @ rows.T).mean().item()


class Printed:
    """The matrix form as Eq. 6 and 8 print it, over the batch's pairs of different images."""

    def __init__(self, num_images, alpha=0.125, rho=0.99, bandwidth=0.5):
        self.n, self.alpha, self.rho, self.bandwidth = num_images, alpha, rho, bandwidth
        self.inverse = num_images**2 * 0.01

    def __call__(self, z1, z2):
        z1, z2, batch = normalize(z1, dim=1), normalize(z2, dim=1), len(z1)
        rows = torch.cat([z1, z2])
        others = 1 - torch.eye(batch).repeat(2, 2)
        q = torch.exp((rows @ rows.T - 1) / self.bandwidth**2) * others
        positive = torch.exp(((z1 * z2).sum(1) - 1) / self.bandwidth**2)
        all_four = q.sum() / (batch * (batch - 1))
        loss = -2 * positive.log().mean() + self.n / self.inverse * all_four
        seen = self.n**2 * (2 * self.alpha * positive.mean() + (1 - self.alpha) * all_four)
        self.inverse = self.rho * self.inverse + (1 - self.rho) * seen.item()
        return loss / 2


@pytest.mark.slow
def test_the_printed_matrix_form_collapses_and_ours_does_not():
    assert spread_after_training(Printed(512)) < 0.05
    assert spread_after_training(SACLR(512, "matrix", "all")) > 0.5
    assert spread_after_training(SACLR(512, "matrix", 1)) > 0.5


IN_GROUPS = {
    "SimCLR": lambda **given: SimCLR(**given),
    "DCL": lambda **given: DCL(**given),
    "SigCLR": lambda **given: SigCLR(**given),
    "SogCLR": lambda **given: SogCLR(12, **given),
    "SACLR, matrix": lambda **given: SACLR(12, negatives="all", **given),
    "SACLR, row": lambda **given: SACLR(12, "row", negatives="all", **given),
}


@pytest.mark.parametrize("make", IN_GROUPS.values(), ids=IN_GROUPS)
def test_a_loss_in_groups_is_the_mean_over_the_groups_each_as_a_batch(make):
    torch.manual_seed(0)
    views = [torch.randn(12, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    loss, index = make(group_size=3).double(), torch.randperm(12)
    indexed = "index" in inspect.signature(loss.forward).parameters
    value = loss(*views, *([index] if indexed else []))
    alone = [make().double() for _ in range(4)]  # each with the same state before
    parts = [
        group(*(view[rows] for view in views), *([index[rows]] if indexed else []))
        for group, rows in zip(alone, torch.arange(12).split(3), strict=True)
    ]
    expected = torch.stack(parts).mean()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(
        torch.autograd.grad(value, views), torch.autograd.grad(expected, views)
    )
    for (
        name,
        state,
    ) in loss.named_buffers():  # one normaliser moves as the mean does; numbers of images are apart
        running = torch.stack([group.get_buffer(name) for group in alone]).double()
        start = make().double().get_buffer(name).double()
        moved = start + (running - start).sum(0) / (1 if state.ndim else 4)
        torch.testing.assert_close(state.double(), moved)


def test_sampled_negatives_have_no_groups():
    with pytest.raises(ValueError, match='group_size is for negatives="all"'):
        SACLR(9, negatives=2, group_size=3)


def test_a_loss_in_half_precision_keeps_its_numbers_in_float32_and_its_matrices_are_weights():
    class Loss(running.FullPrecision):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(1.001))
            self.prototypes = torch.nn.Parameter(torch.ones(2, 3))
            self.inner = torch.nn.Linear(2, 2)
            self.register_buffer("averages", torch.full((3,), 1.001))
            self.register_buffer("queue", torch.ones(2, 3))
            self.register_buffer("seen", torch.ones(3, dtype=torch.bool))
            self.register_buffer("later", None)

    loss = Loss().bfloat16()
    assert loss.scale.dtype == loss.averages.dtype == torch.float32
    assert loss.scale.item() == loss.averages[0].item() == torch.tensor(1.001).item()
    halves = (loss.prototypes, loss.queue, *loss.inner.parameters())
    assert {weights.dtype for weights in halves} == {torch.bfloat16}
    assert loss.seen.dtype == torch.bool and loss.later is None
    loss.double()
    assert {loss.scale.dtype, loss.averages.dtype, loss.inner.weight.dtype} == {torch.float64}
