"""`check_loss` finds what is wrong: for each check a loss with one mistake, and a loss with none."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import references as plain
from nearfar.losses import SimCLR
from nearfar.testing import CHECKS, TOGETHER, Case, check_loss, check_losses


def simclr(z1, z2, temperature=0.2):
    return plain.simclr(z1, z2, temperature)


class Plain(nn.Module):
    """SimCLR by its whole matrix, in float32 at least; correct, but for memory and processes."""

    def exact(self, *views):
        kind = torch.promote_types(views[0].dtype, torch.float32)
        return [view.to(kind) for view in views]

    def forward(self, z1, z2):
        with torch.autocast("cpu", enabled=False):
            return simclr(*self.exact(z1, z2))


class OneSided(Plain):
    def forward(self, z1, z2):
        return super().forward(z1, z2.detach())


class ByPosition(Plain):
    def forward(self, z1, z2):
        return super().forward(z1, z2) + z1[0].sum().to(torch.float32)


class Rounded(Plain):
    def exact(self, *views):
        return [view + (view.bfloat16().to(view.dtype) - view).detach() for view in views]


class Coarse(Plain):
    """Full precision for float64 alone."""

    def exact(self, *views):
        kind = views[0].dtype
        return [view if kind == torch.float64 else view + (view + 1).sin() / 99 for view in views]


class Half(Plain):
    def exact(self, *views):
        return views


class Autocast(Plain):
    def forward(self, z1, z2):
        return simclr(*self.exact(z1, z2))


class Divided(Plain):
    def exact(self, *views):
        return [view / view.norm(dim=1, keepdim=True) for view in super().exact(*views)]


class Standardised(Plain):
    def exact(self, *views):
        return [view / view.std(0) for view in super().exact(*views)]


class Averaged(Plain):
    """With a running mean, which nothing shields."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, z1, z2):
        value = super().forward(z1, z2)
        if self.training:
            self.mean.lerp_(value.detach().float(), 0.1)
        return value + self.mean


class Unsaved(Averaged):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()), persistent=False)


class Restless(Averaged):
    def forward(self, z1, z2):
        self.mean += 1
        return super().forward(z1, z2)


class Learned(Plain):
    """With a learned temperature, whose gradient is twice the true one."""

    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(-math.log(0.2)))

    def forward(self, z1, z2):
        scale = 2 * self.log_scale - self.log_scale.detach()
        with torch.autocast("cpu", enabled=False):
            return simclr(*self.exact(z1, z2), (-scale).exp())


class Unpicklable(Plain):
    def __init__(self):
        super().__init__()
        self.function = lambda: None

    def __deepcopy__(self, memo):
        return Unpicklable()


class WhereCompiled(Plain):
    def forward(self, z1, z2):
        value = super().forward(z1, z2)
        return 1.01 * value if torch.compiler.is_compiling() else value


class Moving(Plain):
    """Divides by its average before the step, which a compiler computes anew when it has moved."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(()))

    def forward(self, z1, z2):
        before, similar = self.mean.log1p(), (z1 * z2).sum(1).sigmoid()
        with torch.no_grad():
            self.mean.copy_((0.5 * before + similar).mean())
        return (similar / before).mean()


class Counting(Plain):
    """Scaled by the number of its calls, which is no tensor."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def get_extra_state(self):
        return self.calls

    def set_extra_state(self, calls):
        self.calls = calls

    def forward(self, z1, z2):
        self.calls += 1
        return super().forward(z1, z2) / (1 + self.calls)


class Overwriting(Plain):
    def forward(self, z1, z2):
        z2.data.div_(z2.detach().norm(dim=1, keepdim=True))
        return super().forward(z1, z2)


class Frozen(Plain):
    """With weights that a user means to learn."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.ones(6))
        self.bias = nn.Parameter(torch.ones(()))

    def forward(self, z1, z2):
        weights = self.weights.detach().to(z1.dtype)
        return super().forward(z1 * weights, z2) + self.bias


WRONG = {
    "reference": (SimCLR(0.3), r"step 1: the value is \S+ instead of \S+"),
    "gradcheck": (Rounded(), r"along its own direction the gradient is \S+ and the slope"),
    "gradients": (OneSided(), r"argument 2 \(view\) gets no gradient"),
    "permutation": (ByPosition(), r"step 1: the value is"),
    "float32": (Coarse(), r"the (value|gradient)"),
    "half": (Half(), r"the value is in torch.bfloat16, \S+ from"),
    "autocast": (Autocast(), r"inside the value is"),
    "zero_rows": (Divided(), r"one row of zeros: the value is nan"),
    "equal_rows": (Standardised(), r"all rows equal: the value is nan"),
    "bad_batch": (Averaged(), r"after a row of nan mean is not finite"),
    "learned_temperature": (Learned(), r"the gradient of log_scale is \S+, and the slope"),
    "memory": (Plain(), r"a batch of 2100 makes a tensor \[4200, 4200\]"),
    "pickling": (Unpicklable(), r"raised \w+: .*pickle"),
    "state_dict": (Unsaved(), r"step 1 afterwards: the value"),
    "evaluation": (Restless(), r"a call in evaluation moves the state: mean is"),
    "processes": (SimCLR(), r"after 3 steps on rank 0 the weight 0.weight is off by"),
    "unequal_parts": (SimCLR(), r"after 3 steps on rank 0 the weight 0.weight is off by"),
    "compiled": (WhereCompiled(), r"step 1: a value is"),
}


@pytest.mark.slow
def test_a_state_that_the_compiler_reads_after_it_moved_is_found():
    report = check_loss(Moving(), skip=only("compiled"))
    assert [*report.failures] == ["compiled"], report


def only(check):
    return {other: "not asked for" for other in CHECKS if other != check}


def test_every_check_can_fail():
    assert {*WRONG} == {*CHECKS}


SLOW = {*TOGETHER, "compiled"}  # they start processes or a compiler


@pytest.mark.parametrize(
    "check",
    [pytest.param(check, marks=[pytest.mark.slow] * (check in SLOW)) for check in WRONG],
)
def test_a_mistake_is_found_and_said_in_one_line(check):
    loss, words = WRONG[check]
    report = check_loss(loss, reference=simclr, skip=only(check))
    assert not report and [*report.failures] == [check]
    assert "\n" not in report.failures[check]
    assert re.match(words, report.failures[check]), report.failures[check]
    with pytest.raises(AssertionError, match=f"{check} +FAILS"):
        report.raise_for_failures()


@pytest.mark.parametrize(
    ("check", "loss", "words"),
    [
        ("evaluation", Counting(), "after a call in evaluation, "),
        ("gradients", Overwriting(), "argument 2 (view) is changed"),
        ("learned_temperature", Frozen(), "weights gets no gradient"),
    ],
)
def test_a_mistake_that_leaves_values_and_tensors_right_is_found(check, loss, words):
    report = check_loss(loss, skip=only(check))
    assert report.failures[check].startswith(words), report


def test_a_bad_row_is_tried_in_a_small_batch_too():
    report = check_loss(Averaged(), batch=3, skip=only("bad_batch"))
    assert report.failures["bad_batch"].startswith("after a row of nan")


def test_what_no_check_could_fail_on_is_refused():
    """A loss at rest and a batch of one image passed all checks."""
    for loss, given, words in (
        (Restless().eval(), {}, "in evaluation"),
        (Plain, {}, "an object of an"),
        (simclr, {}, "an object of an"),
        (Plain(), {"batch": 1}, "`batch` must be"),
        (Plain(), {"tolerance": math.nan}, "`tolerance` must be"),
    ):
        with pytest.raises(ValueError, match=words):
            check_loss(loss, **given)


def test_a_correct_loss_has_no_failure_but_those_that_it_means():
    skip = {"memory": "it is the plain form", **dict.fromkeys(TOGETHER, "below")}
    report = check_loss(Plain(), reference=simclr, skip=skip)
    report.raise_for_failures()
    assert report and report["memory"].skipped and report["memory"].words == "it is the plain form"
    assert str(report).count("holds") == len(CHECKS) - 4
    assert str(report).splitlines()[0] == "Plain"


@pytest.mark.slow
def test_losses_share_processes_and_each_has_its_own_report():
    cases = {
        "gathers": Case(SimCLR(gather=True)),
        "raises": Case(Refuses()),
        "cannot be sent": Case(Unpicklable()),
    }
    reports = check_losses(cases, dict.fromkeys(cases, only("unequal_parts")))
    assert [report.loss for report in reports] == [*cases]
    assert reports[0] and not reports[1] and not reports[2]
    assert reports[1]["unequal_parts"].words == "raised ValueError: no batch of 12 rows"
    assert reports[2]["unequal_parts"].words.startswith("it cannot be pickled for another process")


class Refuses(Plain):
    def forward(self, z1, z2):
        if len(z1) == 12:
            raise ValueError("no batch of 12 rows")
        return super().forward(z1, z2)


def test_the_state_of_torchs_generator_is_left_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    check_loss(Plain(), skip=dict.fromkeys(TOGETHER, "slow"))
    assert torch.equal(torch.get_rng_state(), before)


def test_names_that_do_not_exist_are_said():
    with pytest.raises(ValueError, match="no input 'rows'"):
        check_loss(Plain(), ("rows", "view"))
    with pytest.raises(ValueError, match="no check 'speed'"):
        check_loss(Plain(), skip={"speed": "slow"})
    with pytest.raises(ValueError, match="a view or views"):
        check_loss(Plain(), ("key", "queue"))


def test_any_kind_of_input_is_made():
    """A loss of all kinds, whose index and queue are within their ranges."""

    class Everything(nn.Module):
        def forward(self, view, views, key, keys, queue, index):
            assert view.shape == key.shape and view.shape in ((12, 6), (8, 6))
            assert views.shape == keys.shape == (3, *view.shape)
            assert index.min() >= 0 and index.max() < 40 and len(index.unique()) == len(view)
            torch.testing.assert_close(queue.norm(dim=1), torch.ones(40, dtype=queue.dtype))
            rows = torch.cat([view[None], views, key.detach()[None], keys.detach()])
            return -F.cosine_similarity(rows[:4], rows[4:], dim=2).mean()

    kinds = ("view", "views", "key", "keys", "queue", "index")
    skip = {check: "not asked for" for check in CHECKS if check not in ("gradients", "gradcheck")}
    check_loss(Everything(), kinds, skip=skip).raise_for_failures()
