"""Every reduction on tiles, and the one on sampled negatives, against the full matrix in
float64.
"""

import pytest
import torch
from torch.nn.functional import cross_entropy, logsigmoid, normalize, softplus

from nearfar.pairs import (
    blocks,
    cauchy,
    cosine,
    exponential,
    gaussian,
    log_sum_exp,
    logistic_sum,
    per_image_log_sum_exp,
    sample_others,
    sampled_sum,
    shared_rows,
    weighted,
    weighted_sum,
)

KERNELS = {"cosine": cosine(0.1), "gaussian": gaussian(0.5), "cauchy": cauchy()}


def views(batch, dim, dtype=torch.float64, near=0.5):
    """Two views that resemble each other, of rows that are not unit vectors."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(batch, dim, generator=generator, dtype=torch.float64)
    second = first + near * torch.randn(batch, dim, generator=generator, dtype=torch.float64)
    return [view.to(dtype).requires_grad_() for view in (first, second)]


def double(tensors):
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def relative(values, references):
    values, references = (
        torch.cat([part.double().flatten() for part in parts]) for parts in (values, references)
    )
    return ((values - references).norm() / references.norm()).item()


def weigh(results):
    """A scalar in which every entry of every result has its own weight."""
    scale = [
        torch.linspace(0.5 + k, 1.5, r.numel(), dtype=r.dtype).reshape(r.shape)
        for k, r in enumerate(results)
    ]
    return sum((result * weights).sum() for result, weights in zip(results, scale, strict=True))


def cosines(first, second):
    rows = normalize(torch.cat([first, second]), dim=1)
    return rows @ rows.T


def log_similarity(kernel, first, second):
    rows = torch.cat([first, second])
    if kernel.unit:
        return cosines(first, second) * kernel.scale + kernel.constant
    distances = (rows[:, None] - rows[None]).square().sum(-1)
    return -torch.log(1 + distances)


def masked(batch, across=False, group=None):
    """True where a pair is no pair of negatives."""
    same = torch.eye(batch, dtype=torch.bool)
    if group is not None:
        number = torch.arange(2 * batch) % batch // group
        return same.repeat(2, 2) | (number[:, None] != number)
    off = torch.ones(batch, batch, dtype=torch.bool) if across else same
    return torch.cat([torch.cat([off, same], 1), torch.cat([same, off], 1)])


def positives(kernel, logs):
    u = logs.diagonal(len(logs) // 2)
    return u if kernel.unit else torch.exp(-u)


class LogSumExp:
    results = 2

    def __init__(self, temperature, across=False, group=None):
        self.temperature, self.across, self.group = temperature, across, group

    def ours(self, first, second):
        return log_sum_exp(
            first, second, self.temperature, across=self.across, group_size=self.group
        )

    def plain(self, first, second):
        logs = cosines(first, second) / self.temperature
        sums = logs.masked_fill(masked(len(first), self.across, self.group), -torch.inf).logsumexp(
            1
        )
        return logs.diagonal(len(first)), sums.view(2, -1)


class Weighted:
    results = 2  # that are differentiable

    def __init__(self, kernel, sampled=False, group=None):
        self.kernel, self.sampled, self.group = kernel, sampled, group

    def weights(self, first):
        return torch.linspace(0.1, 2.0, 2 * len(first), dtype=torch.float64).view(2, -1)

    def others(self, batch):
        return (
            torch.arange(batch)[:, None] + 1 + torch.tensor([2, 0, 5, 1])[: batch - 1] % (batch - 1)
        ) % batch

    def ours(self, first, second):
        given = (
            self.weights(first).to(torch.promote_types(first.dtype, torch.float32)),
            self.kernel,
        )
        if self.sampled:
            return sampled_sum(first, second, self.others(len(first)), *given)
        return weighted_sum(first, second, *given, group_size=self.group)

    def plain(self, first, second):
        logs = log_similarity(self.kernel, first, second)
        counted = (~masked(len(first), group=self.group)).double()
        if self.sampled:
            counts = torch.zeros(len(first), len(first)).double()
            for column in self.others(len(first)).T:
                counts[torch.arange(len(first)), column] += 1
            counted = counts.repeat(2, 2)
        sums = (logs.exp() * counted).sum(1).view(2, -1)
        return positives(self.kernel, logs), (self.weights(first) * sums).sum(), sums


class PerImage:
    results = 2

    def temperatures(self, first):
        return torch.linspace(0.1, 0.7, len(first), dtype=torch.float64)

    def ours(self, first, second):
        dtype = torch.promote_types(first.dtype, torch.float32)
        return per_image_log_sum_exp(first, second, self.temperatures(first).to(dtype))

    def plain(self, first, second):
        cos = cosines(first, second)
        logits = (cos / self.temperatures(first).repeat(2)[:, None]).masked_fill(
            masked(len(first)), -torch.inf
        )
        mean = (logits.softmax(1) * cos).sum(1)
        return cos.diagonal(len(first)), logits.logsumexp(1).view(2, -1), mean.view(2, -1)


class Logistic:
    results = 2

    def __init__(self, scale, bias, across=False, group=None):
        self.numbers, self.across, self.group = (scale, bias), across, group

    def ours(self, first, second, *numbers):
        return logistic_sum(first, second, *numbers, across=self.across, group_size=self.group)

    def plain(self, first, second, scale, bias):
        cos = cosines(first, second)
        total = (
            softplus(scale * cos + bias, threshold=50)
            .masked_fill(masked(len(first), self.across, self.group), 0)
            .sum()
        )
        return cos.diagonal(len(first)), total / 2 if self.across else total


CASES = {
    f"log-sum-exp, {t}": LogSumExp(t) for t in (1.0, 0.1, 0.01)
}  # the last with a running maximum
CASES["log-sum-exp across"] = LogSumExp(0.1, across=True)
CASES |= {f"weighted, {name}": Weighted(kernel) for name, kernel in KERNELS.items()}
CASES |= {f"sampled, {name}": Weighted(kernel, True) for name, kernel in KERNELS.items()}
CASES["per image"] = PerImage()
CASES |= {
    f"logistic {numbers}": Logistic(*numbers)
    for numbers in [(5.0, -10.0), (100.0, -10.0), (1.0, 3.0)]
}
CASES["logistic across"] = Logistic(10.0, 0.0, across=True)
GROUPED = {
    "log-sum-exp": lambda group: LogSumExp(0.1, group=group),
    "log-sum-exp, a running maximum": lambda group: LogSumExp(0.01, group=group),
    "weighted, gaussian": lambda group: Weighted(gaussian(0.5), group=group),
    "weighted, cauchy": lambda group: Weighted(cauchy(), group=group),
    "logistic": lambda group: Logistic(5.0, -10.0, group=group),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def inputs_of(case, batch, dim, dtype=torch.float64):
    wide, numbers = torch.promote_types(dtype, torch.float32), vars(case).get("numbers", ())
    return views(batch, dim, dtype) + [
        torch.tensor(n, dtype=wide, requires_grad=True) for n in numbers
    ]


@pytest.mark.parametrize(
    ("batch", "dim", "tile"), [(2, 3, 512), (11, 16, 5), (11, 16, 11), (37, 24, 8), (64, 128, 512)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_case
def test_values_and_gradients_equal_the_full_matrix(monkeypatch, case, batch, dim, tile, dtype):
    """On all rows in one tile, a tile for each pair of views, and many; and again through a
    retained graph.
    """
    monkeypatch.setitem(blocks.TILE_ROWS, "cpu", tile)
    monkeypatch.setattr(weighted, "BLOCK", tile * dim)  # of sampled negatives
    inputs = inputs_of(case, batch, dim, dtype)
    exact = double(inputs)
    results, expected = case.ours(*inputs), case.plain(*exact)
    kernel, numbers = vars(case).get("kernel"), vars(case).get("numbers", (10,))
    size = 1 / vars(case).get(
        "temperature", 1 / numbers[0]
    )  # of the exponents, which are themselves rounded
    if kernel:
        size = kernel.scale if kernel.unit else log_similarity(kernel, *exact).abs().max().item()
    tolerance = max(1.5e-6, 1.2e-7 * size) if dtype == torch.float32 else 1e-11
    for result, value in zip(results, expected, strict=True):
        assert result.dtype == dtype and relative([result], [value]) < tolerance
    assert [result.requires_grad for result in results] == [
        k < case.results for k in range(len(results))
    ]
    loss = weigh(results[: case.results])
    gradients = torch.autograd.grad(loss, inputs, retain_graph=True)
    wanted = torch.autograd.grad(weigh(expected[: case.results]), exact)
    assert relative(gradients[:2], wanted[:2]) < tolerance
    for gradient, value in zip(gradients[2:], wanted[2:], strict=True):
        torch.testing.assert_close(
            gradient.double(), value, rtol=20 * tolerance, atol=20 * tolerance
        )
    again = torch.autograd.grad(loss, inputs)
    assert all(torch.equal(a, b) for a, b in zip(gradients, again, strict=True))
    with pytest.raises(RuntimeError, match="one backward pass"):
        torch.autograd.grad(weigh(case.ours(*inputs)[: case.results]), inputs, create_graph=True)


@pytest.mark.parametrize(
    ("batch", "group", "tile"), [(4, 2, 512), (130, 2, 512), (24, 12, 5), (60, 6, 13), (9, 9, 512)]
)
@pytest.mark.parametrize("case", GROUPED.values(), ids=GROUPED)
def test_negatives_of_a_group_equal_the_full_matrix_with_a_mask(
    monkeypatch, case, batch, group, tile
):
    """Many groups in a tile, many tiles in a group, and one group, which is the batch."""
    monkeypatch.setitem(blocks.TILE_ROWS, "cpu", tile)
    monkeypatch.setattr(blocks, "FEWEST_ROWS", 64 if tile == 512 else 4)
    monkeypatch.setattr(blocks, "GROUPED_ROWS", 20)
    monkeypatch.setitem(blocks.WIDE, "cpu", 1 if tile == 5 else 2**18)
    case = case(group)
    inputs = inputs_of(case, batch, 8)
    exact = double(inputs)
    results, expected = case.ours(*inputs), case.plain(*exact)
    assert all(relative([a], [b]) < 1e-11 for a, b in zip(results, expected, strict=True))
    gradients = torch.autograd.grad(weigh(results[: case.results]), inputs)
    wanted = torch.autograd.grad(weigh(expected[: case.results]), exact)
    assert all(relative([a], [b]) < 1e-11 for a, b in zip(gradients, wanted, strict=True))


def test_smaller_groups_are_less_work(monkeypatch):
    both = views(1024, 4)

    def pairs(group):
        made = blocks.Blocks(*both, unit=True, group_size=group).tiles()
        return sum(len(tile.x) * len(tile.y) for tile in made)

    # each pair once, but for those on a diagonal of tiles; smaller groups share tiles of 128 images
    assert [pairs(group) for group in (1024, 512, 128, 2)] == [
        10 * 512**2,
        6 * 512**2,
        24 * 128**2,
        24 * 128**2,
    ]


@pytest.mark.parametrize("group", [1, 0, 3, 8])
def test_groups_that_do_not_fit_are_refused(group):
    with pytest.raises(ValueError, match=rf"group_size must .* of 4, got {group}"):
        log_sum_exp(*views(4, 3), 0.1, group_size=group)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_case
def test_low_precision_is_accumulated_in_float32_and_autocast_stays_outside(case, dtype):
    inputs = inputs_of(case, 40, 32, dtype)
    exact = double(inputs)
    results, expected = case.ours(*inputs), case.ours(*exact)
    for result, value in zip(results, expected, strict=True):
        assert result.dtype == torch.float32 and relative([result], [value]) < 5e-6
    gradients = torch.autograd.grad(weigh(results[: case.results]), inputs)
    assert [gradient.dtype for gradient in gradients] == [tensor.dtype for tensor in inputs]
    assert (
        relative(gradients, torch.autograd.grad(weigh(expected[: case.results]), exact))
        < torch.finfo(dtype).eps
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = torch.autograd.grad(weigh(case.ours(*inputs)[: case.results]), inputs)
    assert all(torch.equal(a, b) for a, b in zip(gradients, inside, strict=True))


@pytest.mark.parametrize("view", [0, 1])
@every_case
def test_rows_that_are_changed_before_the_gradient_are_noticed(case, view):
    """The backward pass reads them again: the gradient would be that of other rows."""
    inputs = inputs_of(case, 5, 4)
    loss = weigh(case.ours(*inputs)[: case.results])
    with torch.no_grad():
        inputs[view].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("temperature", [0.02, 0.0167, 0.0166, 0.005, 0.001])
def test_small_temperatures_stay_finite_and_exact(temperature):
    inputs, case = views(40, 4, torch.float32, near=0.01), LogSumExp(temperature)
    exact = double(inputs)
    results, expected = case.ours(*inputs), case.plain(*exact)
    # the logits themselves are rounded to about 1e-7 / temperature, on either side of the switch at
    # 1 / 60
    assert relative(results, expected) < 1e-6
    gradients = torch.autograd.grad(weigh(results), inputs)
    assert relative(gradients, torch.autograd.grad(weigh(expected), exact)) < 3e-7 / temperature


def test_kept_tiles_are_those_made_again(monkeypatch):
    monkeypatch.setitem(blocks.TILE_ROWS, "cpu", 8)
    inputs = views(37, 16, torch.float32)
    kept = torch.autograd.grad(weigh(log_sum_exp(*inputs, 0.1)), inputs)
    monkeypatch.setattr(exponential, "KEPT", 0)
    again = torch.autograd.grad(weigh(log_sum_exp(*inputs, 0.1)), inputs)
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))


def test_loss_scaling_does_not_overflow_float16():
    """The stored gradient stays float32 until the incoming one has multiplied it."""
    inputs, weights, scale = views(200, 16, torch.float16), torch.full((2, 200), 1e-9), 2.0**30
    gradients = torch.autograd.grad(
        scale * weighted_sum(*inputs, weights, gaussian(0.5))[1], inputs
    )
    wide = [tensor.detach().float().requires_grad_() for tensor in inputs]
    expected = torch.autograd.grad(scale * weighted_sum(*wide, weights, gaussian(0.5))[1], wide)
    assert relative(gradients, expected) < 1e-3


def test_a_view_without_gradient_and_a_row_of_zeros():
    first, second = views(20, 8)
    with torch.no_grad():
        first[2] = 0
    both = torch.autograd.grad(weigh(log_sum_exp(first, second, 0.1)), [first, second])
    weigh(log_sum_exp(first, second.detach(), 0.1)).backward()
    assert torch.equal(first.grad, both[0]) and second.grad is None and first.grad.isfinite().all()


def test_across_gives_two_direction_info_nce_and_the_siglip_loss():
    first, second = views(23, 12)
    signs, dots = 2 * torch.eye(23) - 1, normalize(first, dim=1) @ normalize(second, dim=1).T
    positive, (rows, columns) = log_sum_exp(first, second, 0.07, across=True)
    info_nce = (
        torch.logaddexp(rows, positive) + torch.logaddexp(columns, positive) - 2 * positive
    ).mean() / 2
    entropies = [cross_entropy(logits / 0.07, torch.arange(23)) for logits in (dots, dots.T)]
    torch.testing.assert_close(info_nce, sum(entropies) / 2)
    scale, bias = torch.tensor(10.0).double(), torch.tensor(-10.0).double()
    positive, total = logistic_sum(first, second, scale, bias, across=True)
    siglip = (total + softplus(-(scale * positive + bias)).sum()) / 23
    torch.testing.assert_close(siglip, -logsigmoid(signs * (dots * scale + bias)).sum() / 23)


@pytest.mark.parametrize(("batch", "count"), [(2, 1), (5, 4), (200, 64), (200, 65), (200, 199)])
def test_samples_are_different_others(batch, count):
    others = sample_others(batch, count)
    assert others.shape == (batch, count)
    assert others.min() >= 0 and others.max() < batch
    assert (others != torch.arange(batch)[:, None]).all()
    ordered = others.sort(1).values
    assert (ordered[:, 1:] != ordered[:, :-1]).all()


@pytest.mark.parametrize("one_by_one", [64, 0])
def test_every_subset_is_equally_likely(monkeypatch, one_by_one):
    monkeypatch.setattr(weighted, "_ONE_BY_ONE", one_by_one)
    torch.manual_seed(0)
    counts = torch.zeros(5, 5, 5)
    rounds = 1200
    for _ in range(rounds):
        low, high = sample_others(5, 2).sort(1).values.T
        counts[torch.arange(5), low, high] += 1
    possible = counts[counts > 0]
    assert len(possible) == 5 * 6  # 4 over 2 subsets for each of 5 images
    chi_square = ((possible - rounds / 6).square() / (rounds / 6)).sum().item()
    assert chi_square < 60  # 25 degrees of freedom: above 60 once in 10 000 seeds


def test_a_share_is_less_work(monkeypatch):
    """With W processes each makes about 1/W of all ordered pairs, fewer where both rows are its
    own.
    """
    both = views(17, 6)
    monkeypatch.setitem(blocks.TILE_ROWS, "cpu", 1)

    def pairs():
        return sum(
            len(tile.x) * len(tile.y)
            for tile in blocks.Blocks(*both, unit=True, shared=True).tiles()
        )

    assert pairs() == 17 * 35
    with shared_rows([slice(0, 6), slice(6, 12), slice(12, 17)], 1):
        assert pairs() == 12 * (34 - 12) + 12 * 13 // 2
