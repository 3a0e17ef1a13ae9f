"""One contract for any loss on embeddings: `check_loss(loss)` tries an `nn.Module` of two or more
views, and says in a table what holds and what does not.

    from nearfar.testing import check_loss

    if __name__ == "__main__":  # two checks start processes
        report = check_loss(MyLoss(), ("view", "view"), reference=my_formula)
        print(report)
        report.raise_for_failures()

Each check is a function `check_NAME` that returns None, or one line that says what is wrong; a
check that does not concern a loss is left out by its name, with a reason.
"""

from __future__ import annotations

import copy
import math
import pickle
import re
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError, gradcheck
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nearfar.messages import check_known, check_range

__all__ = ["Case", "Outcome", "Report", "check_loss", "check_losses", "make_inputs"]

KINDS = {
    "view": "embeddings [batch, dim] that get a gradient",
    "views": "embeddings [3, batch, dim] that get a gradient",
    "key": "embeddings [batch, dim] that get none",
    "keys": "embeddings [3, batch, dim] that get none",
    "queue": "unit rows [keys, dim] of past batches, which get no gradient",
    "index": "numbers [batch] of the images in the training set",
}
"""What an argument of a loss may be."""

LEARNED = ("view", "views")
WIDE = 2100  # rows: a tile of them fits a budget of 16 MiB, their square does not
EXACT = {"rtol": 1e-9, "atol": 1e-10}  # of one process and two, in float64
LONGEST = 120.0, 30.0  # seconds, and for each loss, after which processes are ended


@dataclass(frozen=True)
class Case:
    """A loss, and what it is tried on.

    loss: in training mode, in float32; every check takes a copy. kinds: what its arguments are, of
    `KINDS`. reference: a plain form with the same arguments, or None. initialise: called in both
    processes of `processes` and `unequal_parts`. strict: each of two processes has the
    value of the joined batch, not only their mean, and a bad batch leaves the state exactly as
    it was.

    >>> case = Case(torch.nn.CosineEmbeddingLoss(), ("view", "key"), batch=4)
    >>> [list(x.shape) for x in case.inputs()]
    [[4, 6], [4, 6]]
    """

    loss: nn.Module
    kinds: tuple[str, ...] = ("view", "view")
    reference: Callable[..., Tensor] | None = None
    batch: int = 12
    dim: int = 6
    images: int = 40
    keys: int = 40
    tolerance: float = 5e-6
    fullgraph: bool = False
    initialise: Callable[[], None] | None = None
    strict: bool = False

    def copy(self, dtype: torch.dtype | None = None) -> nn.Module:
        """Return a loss that no check has touched yet."""
        made = copy.deepcopy(self.loss)
        return made if dtype is None else made.to(dtype)

    def inputs(self, dtype: torch.dtype = torch.float64, step: int = 0) -> list[Tensor]:
        """Return arguments; those of another step are other ones."""
        return make_inputs(
            self.kinds, self.batch, self.dim, self.images, self.keys, dtype=dtype, step=step
        )


@dataclass(frozen=True)
class Outcome:
    """Outcome of a check. words: what is wrong, or why the check was skipped, or empty.

    >>> Outcome("memory", passed=False, skipped=True, words="a plain form").check
    'memory'
    """

    check: str
    passed: bool
    skipped: bool = False
    words: str = ""


@dataclass(frozen=True)
class Report:
    """The outcomes of all checks of one loss; `str` gives a table, `bool` whether none failed.

    >>> report = Report("Mine", (Outcome("half", passed=False, words="the value is nan"),))
    >>> bool(report), report.failures
    (False, {'half': 'the value is nan'})
    """

    loss: str
    outcomes: tuple[Outcome, ...] = field(default=())

    @property
    def failures(self) -> dict[str, str]:
        """Return what is wrong, by the name of the check."""
        return {
            outcome.check: outcome.words
            for outcome in self.outcomes
            if not outcome.passed and not outcome.skipped
        }

    def __getitem__(self, check: str) -> Outcome:
        return next(outcome for outcome in self.outcomes if outcome.check == check)

    def __bool__(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        lines = [self.loss]
        for outcome in self.outcomes:
            verdict = "skipped" if outcome.skipped else "holds" if outcome.passed else "FAILS"
            about, *more = textwrap.wrap(outcome.words, 76) or [""]
            lines.append(f"  {outcome.check:<21}{verdict:<9}{about}".rstrip())
            lines += [" " * 32 + line for line in more]
        return "\n".join(lines)

    def raise_for_failures(self) -> None:
        """Raise AssertionError with the table if a check failed."""
        if self.failures:
            raise AssertionError(str(self))


def check_loss(
    loss: nn.Module,
    inputs: Sequence[str] = ("view", "view"),
    *,
    reference: Callable[..., Tensor] | None = None,
    skip: Mapping[str, str] | None = None,
    batch: int = 12,
    dim: int = 6,
    images: int = 40,
    tolerance: float = 5e-6,
    fullgraph: bool = False,
    initialise: Callable[[], None] | None = None,
) -> Report:
    """Try a loss on the contract that every loss of nearfar keeps, on a CPU.

    The checks, by name:

    - `reference`: value and gradient of three steps in float64 are those of the plain form;
    - `gradcheck`: the gradient is that of finite differences in float64;
    - `gradients`: views get a gradient that is not 0; keys, queues and indices get none, and no
      argument is changed in place;
    - `permutation`: the order of the batch does not matter;
    - `float32`: value and gradient in float32 are those in float64 to `tolerance`;
    - `half`: rows in bfloat16 give the float32 value of these rows, and gradients in bfloat16;
    - `autocast`: inside autocast to bfloat16 the value is the same;
    - `zero_rows`, `equal_rows`: value and gradient are finite where a row is zero, where all are,
      and where all are equal;
    - `bad_batch`: after a batch with NaN or infinity the state and later values are finite;
    - `processes`: two processes in DistributedDataParallel, with 10 rows each of a batch of 20, are
      one process on the joined batch: value, state and weights of three steps in float64;
    - `unequal_parts`: the same with 12 and 8 rows;
    - `compiled`: three steps by torch.compile are those without it, state included;
    - `learned_temperature`: each parameter that is one number has the gradient of finite
      differences, and one of several numbers gets a gradient;
    - `memory`: forward and backward hold no tensor with two dimensions of the batch;
    - `pickling`: a loss that was pickled after a step continues as the one that was not;
    - `state_dict`: so does one that loaded its state;
    - `evaluation`: in evaluation, without gradients, the state rests, whatever it consists of.

    Args:
        loss: in training mode; every check takes a copy. It must be set to gather rows of all
            processes, if it can.
        inputs: what the arguments of its `forward` are, of `KINDS`.
        reference: a plain form that takes the same arguments, differentiated by autograd; one with
            state keeps it itself.
        skip: reasons by the names of the checks that are left out.
        batch: images in a batch.
        dim: dimension of the embeddings.
        images: images in the training set, for an index.
        tolerance: relative error of float32.
        fullgraph: whether `compiled` forbids breaks of the graph.
        initialise: called in both processes of `processes` and `unequal_parts`; a function of a
            module.

    Returns:
        The report: a table as text, false if a check failed.

    Raises:
        ValueError: for a kind of input or a name in `skip` that does not exist, for what is no
            module or not in training mode, and for a batch of fewer than 2.

    >>> slow = dict.fromkeys(("processes", "unequal_parts", "compiled"), "they start processes")
    >>> report = check_loss(nearfar.losses.SimCLR(gather=True), skip=slow)
    >>> bool(report), report["memory"].passed, report["compiled"].words
    (True, True, 'they start processes')
    """
    made = Case(
        loss,
        tuple(inputs),
        reference,
        batch,
        dim,
        images,
        tolerance=tolerance,
        fullgraph=fullgraph,
        initialise=initialise,
    )
    [report] = check_losses({type(loss).__name__: made}, {type(loss).__name__: skip or {}})
    return report


def check_losses(
    cases: Mapping[str, Case], skip: Mapping[str, Mapping[str, str]] | None = None
) -> list[Report]:
    """Try many losses, which share the processes that the checks start.

    Args:
        cases: losses by name.
        skip: reasons by the names of losses and checks.

    Returns:
        One report for each loss, in order.

    Raises:
        ValueError: as for `check_loss`.

    >>> check_losses({})
    []
    """
    reasons = {name: dict((skip or {}).get(name, {})) for name in cases}
    for name, case in cases.items():
        _check_arguments(case, reasons[name])
        if case.reference is None:
            reasons[name].setdefault("reference", "no plain form was given")
    failures: dict[str, dict[str, str | None]] = {name: {} for name in cases}
    for check, together in TOGETHER.items():
        chosen = {name: case for name, case in cases.items() if check not in reasons[name]}
        for name, words in together(chosen).items():
            failures[name][check] = words
    for name, case in cases.items():
        for check, alone in ALONE.items():
            if check not in reasons[name]:
                failures[name][check] = _tried(alone, case)
    return [
        Report(name, tuple(_outcome(check, failures[name], reasons[name]) for check in CHECKS))
        for name in cases
    ]


def _check_arguments(case: Case, reasons: Mapping[str, str]) -> None:
    if not isinstance(case.loss, nn.Module):
        raise ValueError(f"a loss is an object of an nn.Module, not {case.loss!r:.60}")
    if not case.loss.training:
        raise ValueError("the loss is in evaluation, where its state rests: call its train()")
    check_range("batch", case.batch, 2)
    check_range("dim", case.dim, 1)
    check_range("images", case.images, 1)
    check_range("tolerance", case.tolerance, 0)
    for kind in case.kinds:
        check_known("input", kind, KINDS)
    if not {*case.kinds} & {*LEARNED}:
        raise ValueError("one input must be a view or views, which get a gradient")
    for check in reasons:
        check_known("check", check, CHECKS)


def _outcome(check: str, failures: Mapping[str, str | None], reasons: Mapping[str, str]) -> Outcome:
    if check in reasons:
        return Outcome(check, passed=False, skipped=True, words=reasons[check])
    return Outcome(check, passed=failures[check] is None, words=failures[check] or "")


def _tried(check: Callable[[Case], str | None], case: Case) -> str | None:
    """Run a check; an error is one line too."""
    with torch.random.fork_rng(devices=[]):
        try:
            return check(case)
        except Exception as error:  # whatever the loss of others raises
            return _in_one_line(error)


def _in_one_line(error: BaseException) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"raised {type(error).__name__}: {first}"[:300]


# --- inputs, one step, comparisons


def make_inputs(
    kinds: Sequence[str],
    batch: int = 12,
    dim: int = 6,
    images: int = 40,
    keys: int = 40,
    *,
    dtype: torch.dtype = torch.float64,
    step: int = 0,
) -> list[Tensor]:
    """Return arguments of a loss by their kinds, the same for the same numbers.

    Embeddings are three times a normal sample; those of another step differ by a tenth of that, an
    index names other images, and a queue stays.

    >>> [list(x.shape) for x in make_inputs(["views", "queue", "index"], batch=8)]
    [[3, 8, 6], [40, 6], [8]]
    """
    made, noise = [], torch.Generator().manual_seed(step)
    for position, kind in enumerate(kinds):
        chance = torch.Generator().manual_seed(10 + position)
        if kind == "index":
            order = torch.randperm(images, generator=chance)
            made.append((order.repeat(1 + batch // images)[:batch] + 7 * step) % images)
            continue
        shape = {"queue": (keys, dim), "views": (3, batch, dim), "keys": (3, batch, dim)}
        rows = torch.randn(shape.get(kind, (batch, dim)), dtype=torch.float64, generator=chance)
        rows = normalize(rows, dim=-1) if kind == "queue" else 3 * rows
        if step and kind != "queue":
            rows = rows + 0.3 * torch.randn(rows.shape, dtype=torch.float64, generator=noise)
        made.append(rows.to(dtype).requires_grad_())
    return made


def step_of(
    loss: Callable[..., Tensor], given: Sequence[Tensor], seed: int = 1
) -> tuple[Tensor, list[Tensor | None]]:
    """Return the value of a loss, and for each argument its gradient or None; torch's seed is set,
    so that what is drawn is the same each time.
    """
    rows = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in given]
    torch.default_generator.manual_seed(seed)  # all is on the CPU
    value = loss(*rows)
    learned = [x for x in rows if x.requires_grad]
    gradients = iter(torch.autograd.grad(value, learned, allow_unused=True))
    return value.detach(), [next(gradients) if x.requires_grad else None for x in rows]


def _far(actual: Tensor, expected: Tensor, rtol: float, atol: float = 0.0) -> str | None:
    """Say how far two tensors are apart, by the norm of their difference; None within tolerance."""
    if actual.shape != expected.shape:
        return f"shape {list(actual.shape)} instead of {list(expected.shape)}"
    exact = expected.double()
    apart, size = (actual.double() - exact).norm().item(), exact.norm().item()
    if apart <= rtol * size + atol:
        return None
    if actual.numel() == 1:
        return f"{actual.item():.7g} instead of {expected.item():.7g}"
    if not math.isfinite(apart):
        return "not finite"
    share = f"{apart / size:.1%}" if apart > 1e-3 * size > 0 else f"{apart / max(size, 1e-30):.1e}"
    return f"off by {share} of its norm"


def _differences(
    kinds: Sequence[str],
    actual: tuple[Tensor, Sequence[Tensor | None]],
    expected: tuple[Tensor, Sequence[Tensor | None]],
    rtol: float,
    atol: float = 0.0,
) -> str | None:
    """Compare value and gradients of the views."""
    if words := _far(actual[0], expected[0], rtol, atol):
        return f"the value is {words}"
    for position, kind in enumerate(kinds):
        gradient, expected_gradient = actual[1][position], expected[1][position]
        if kind not in LEARNED or (gradient is None and expected_gradient is None):
            continue
        if gradient is None or expected_gradient is None:
            return f"the gradient of {_argument(kinds, position)} is missing"
        if words := _far(gradient, expected_gradient, rtol, atol):
            return f"the gradient of {_argument(kinds, position)} is {words}"
    return None


def _argument(kinds: Sequence[str], position: int) -> str:
    return f"argument {position + 1} ({kinds[position]})"


def state_of(loss: nn.Module) -> dict[str, Tensor]:
    """Return copies of all tensors that a loss keeps, by name, also of those that it does not save:
    attributes that are tensors.
    """
    state = {key: x for key, x in loss.state_dict().items() if isinstance(x, Tensor)}
    for prefix, module in loss.named_modules():
        named = {**dict(module.named_buffers(recurse=False)), **vars(module)}
        for key, value in named.items():
            if isinstance(value, Tensor):
                state.setdefault(f"{prefix}.{key}".strip("."), value)
    return {key: x.detach().clone() for key, x in state.items()}


def _moved(
    actual: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    rtol: float = 0.0,
    atol: float = 0.0,
) -> str | None:
    """Name the first tensor of a state that is not as expected."""
    for key, value in expected.items():
        if key not in actual:
            return f"{key} is missing"
        if words := _far(actual[key], value, rtol, atol):
            return f"{key} is {words}"
    return None


# --- checks of a loss alone


def check_reference(case: Case) -> str | None:
    """Value and gradients of three steps against the plain form, in float64."""
    assert case.reference is not None
    loss = case.copy(torch.float64)
    for step in range(3):
        given = case.inputs(step=step)
        words = _differences(
            case.kinds, step_of(loss, given), step_of(case.reference, given), 1e-7, 1e-10
        )
        if words:
            return f"step {step + 1}: {words}"
    return None


def check_gradcheck(case: Case) -> str | None:
    """The gradient of the views against finite differences, in float64."""
    small = make_inputs(case.kinds, min(case.batch, 8), case.dim, case.images, case.keys)
    learned = [position for position, kind in enumerate(case.kinds) if kind in LEARNED]

    def value(*views: Tensor) -> Tensor:
        given = [x.detach() for x in small]
        for position, view in zip(learned, views, strict=True):
            given[position] = view
        torch.default_generator.manual_seed(1)
        return case.copy(torch.float64)(*given)

    views = [small[position] for position in learned]
    try:
        gradcheck(value, views, atol=1e-5, rtol=1e-4, fast_mode=True)
    except GradcheckError as error:
        if "mismatch" not in str(error):
            raise
        _, gradients = step_of(value, views)
        gradient = gradients[0]
        assert gradient is not None
        with torch.no_grad():
            ahead, back = (value(views[0] + h * gradient, *views[1:]) for h in (1e-6, -1e-6))
        slope = ((ahead - back) / 2e-6).item()
        return (
            f"along its own direction the gradient is {gradient.square().sum().item():.6g} and the "
            f"slope of the value {slope:.6g}"
        )
    return None


def check_gradients(case: Case) -> str | None:
    """Views get a gradient; keys, queues and indices get none; all stay as they are."""
    value, gradients = step_of(case.copy(), case.inputs(torch.float32))
    if value.shape != ():
        return f"the value has shape {list(value.shape)}, not that of a number"
    for position, (kind, gradient) in enumerate(zip(case.kinds, gradients, strict=True)):
        none = gradient is None or not gradient.any()
        if none == (kind in LEARNED):
            return f"{_argument(case.kinds, position)} gets {'no' if none else 'a'} gradient"
    given = [x.detach() for x in case.inputs(torch.float32)]
    rows = [x.clone().requires_grad_(x.is_floating_point()) for x in given]
    case.copy()(*rows).backward()
    for position, (before, after) in enumerate(zip(given, rows, strict=True)):
        if not torch.equal(before, after):
            return f"{_argument(case.kinds, position)} is changed in place"
    return None


def check_permutation(case: Case) -> str | None:
    """Two steps on a batch in another order: the same value, and gradients in that order."""
    straight, permuted = case.copy(torch.float64), case.copy(torch.float64)
    order = torch.randperm(case.batch, generator=torch.Generator().manual_seed(1))
    for step in range(2):
        given = case.inputs(step=step)
        mixed = [
            x if kind == "queue" else x[order] if kind == "index" else x.index_select(-2, order)
            for kind, x in zip(case.kinds, given, strict=True)
        ]
        value, gradients = step_of(straight, given)
        moved = [
            None if x is None or kind == "queue" else x.index_select(-2, order)
            for kind, x in zip(case.kinds, gradients, strict=True)
        ]
        if words := _differences(case.kinds, step_of(permuted, mixed), (value, moved), 1e-6, 1e-9):
            return f"step {step + 1}: {words}"
    return None


def check_float32(case: Case) -> str | None:
    """Value and gradient in float32 against float64, of the same rows."""
    single = case.inputs(torch.float32)
    exact = [x.double() if x.is_floating_point() else x for x in single]
    in_float32, wanted = step_of(case.copy(), single), step_of(case.copy(torch.float64), exact)
    if (in_float32[0].dtype, wanted[0].dtype) != (torch.float32, torch.float64):
        return f"rows of float32 give {in_float32[0].dtype}, and rows of float64 {wanted[0].dtype}"
    return _differences(case.kinds, in_float32, wanted, case.tolerance, case.tolerance * 1e-2)


def check_half(case: Case) -> str | None:
    """Rows in bfloat16 give what these rows give in float32."""
    half = case.inputs(torch.bfloat16)
    value, gradients = step_of(case.copy(), half)
    exact = [x.float() if x.is_floating_point() else x for x in half]
    wanted, expected = step_of(case.copy(), exact)
    if value.dtype != torch.float32:
        apart = abs(value.item() - wanted.item())
        return f"the value is in {value.dtype}, {apart:.1e} from {wanted.item():.6g}"
    if words := _far(value, wanted, 1e-5, 1e-5):
        return f"the value is {words}"
    for gradient in gradients:
        if gradient is not None and gradient.dtype != torch.bfloat16:
            return f"the gradient is in {gradient.dtype}, and the rows in bfloat16"
    return _differences(
        case.kinds, (wanted, gradients), (wanted, expected), torch.finfo(torch.bfloat16).eps
    )


def check_autocast(case: Case) -> str | None:
    """The value in autocast to bfloat16 is that outside."""
    rows = case.inputs(torch.float32)
    outside, _ = step_of(case.copy(), rows)
    with torch.autocast("cpu", torch.bfloat16):
        inside, _ = step_of(case.copy(), rows)
    if words := _far(inside, outside, 1e-7):
        return f"inside the value is {words}"
    return None


def _finite(case: Case, change: Callable[[Tensor], Tensor], words: str) -> str | None:
    """Return whether value and gradients are finite where the views and keys are changed."""
    given = [
        x if kind in ("index", "queue") else change(x.detach())
        for kind, x in zip(case.kinds, case.inputs(torch.float32), strict=True)
    ]
    value, gradients = step_of(case.copy(), given)
    if not value.isfinite():
        return f"{words}: the value is {value.item()}"
    for position, gradient in enumerate(gradients):
        if gradient is not None and not gradient.isfinite().all():
            return f"{words}: the gradient of {_argument(case.kinds, position)} is not finite"
    return None


def check_zero_rows(case: Case) -> str | None:
    """Value and gradient are finite where one row is zero, and where all are."""

    def first_is_zero(x: Tensor) -> Tensor:
        x[..., 0, :] = 0
        return x

    return _finite(case, first_is_zero, "one row of zeros") or _finite(
        case, torch.zeros_like, "all rows zero"
    )


def check_equal_rows(case: Case) -> str | None:
    """Value and gradient are finite where all rows are equal, as after a collapse."""
    return _finite(case, torch.ones_like, "all rows equal") or _finite(
        case, lambda x: x[..., :1, :].expand_as(x).clone(), "all images of a view equal"
    )


def check_bad_batch(case: Case) -> str | None:
    """After a batch with NaN or infinity state and later values are finite; where the case is
    strict, the state is what it was.
    """
    embeddings = [n for n, kind in enumerate(case.kinds) if kind not in ("queue", "index")]
    which = [embeddings, embeddings[:1]] if len(embeddings) > 1 else [embeddings]
    loss, step = case.copy(), 5
    for early in range(step):  # a queue may be full then
        step_of(loss, case.inputs(torch.float32, early))
    middle = min(4, case.batch - 1)
    for bad in (math.nan, math.inf):
        for rows in (slice(middle, middle + 1), slice(None)):
            for spoiled in which:
                if words := _after_a_bad_batch(case, loss, step, bad, rows, spoiled):
                    part = "a row" if rows.start else "a batch"
                    return f"after {part} of {bad} {words}"
                step += 2
    return None


def _after_a_bad_batch(
    case: Case, loss: nn.Module, step: int, bad: float, rows: slice, spoiled: list[int]
) -> str | None:
    before, given = state_of(loss), case.inputs(torch.float32, step)
    with torch.no_grad():
        for position in spoiled:
            given[position][..., rows, :] = bad
    with suppress(ValueError, RuntimeError):  # a loss may refuse it
        step_of(loss, given)
    after = state_of(loss)
    if case.strict and (words := _moved(after, before)):
        return words
    for key, x in after.items():
        if x.is_floating_point() and not x.isfinite().all():
            return f"{key} is not finite"
    if not step_of(loss, case.inputs(torch.float32, step + 1))[0].isfinite():
        return "the value of the next batch is not finite"
    return None


def check_learned_temperature(case: Case) -> str | None:
    """The gradient of each parameter that is one number, against finite differences in float64;
    others get one at all.
    """
    given = [x.detach() for x in case.inputs()]

    def moved(name: str, step: float) -> tuple[nn.Parameter, Tensor]:
        loss = case.copy(torch.float64)
        parameter = loss.get_parameter(name)
        with torch.no_grad():
            parameter.add_(step)
        torch.manual_seed(1)
        return parameter, loss(*given)

    for name, own in case.loss.named_parameters():
        if not own.numel() or not own.requires_grad:
            continue
        parameter, value = moved(name, 0.0)
        made = torch.autograd.grad(value, parameter, allow_unused=True)[0]
        several = own.numel() > 1
        if made is None or (several and not made.any()):
            return f"{name} gets no gradient"
        if several:  # some, such as prototypes, make targets too
            continue
        gradient = made.item()
        slope = (moved(name, 1e-4)[1] - moved(name, -1e-4)[1]).item() / 2e-4
        if abs(gradient - slope) > 1e-5 * abs(slope) + 1e-7:
            return f"the gradient of {name} is {gradient:.7g}, and the slope {slope:.7g}"
    return None


class _Shapes(TorchDispatchMode):
    """Remember the shapes of tensors that have two dimensions of so many rows, or their square."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.found: list[list[int]] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                wide = sum(size >= self.rows for size in tensor.shape) >= 2
                held = tensor.untyped_storage().nbytes() >= self.rows**2 * tensor.element_size()
                if held and (wide or max(tensor.shape, default=0) >= self.rows**2):
                    self.found.append(list(tensor.shape))
        return result


def check_memory(case: Case) -> str | None:
    """Forward and backward with a large batch hold no tensor [batch, batch], nor [batch, keys]."""
    given = make_inputs(case.kinds, WIDE, case.dim, WIDE, WIDE, dtype=torch.float32)
    if "index" in case.kinds:
        given[case.kinds.index("index")] %= case.images
    with _Shapes(WIDE) as shapes:
        step_of(case.copy(), given)
    if shapes.found:
        return f"a batch of {WIDE} makes a tensor {max(shapes.found, key=math.prod)}"
    return None


def check_pickling(case: Case) -> str | None:
    """A loss that was pickled after a step continues as the one that was not."""
    loss = case.copy()
    step_of(loss, case.inputs(torch.float32))
    return _continue(case, loss, pickle.loads(pickle.dumps(loss)))


def check_state_dict(case: Case) -> str | None:
    """A loss that loads the state of another, saved after three steps, continues as that one."""
    loss, restored = case.copy(), case.copy()
    torch.manual_seed(2)
    for step in range(3):
        step_of(loss, case.inputs(torch.float32, step))
        with torch.no_grad():
            for parameter in loss.parameters():
                parameter.add_(0.1 * torch.rand_like(parameter))  # as an optimiser would
    restored.load_state_dict(copy.deepcopy(loss.state_dict()))
    return _continue(case, loss, restored)


def _continue(case: Case, loss: nn.Module, other: nn.Module) -> str | None:
    """Return whether two losses take the same two steps."""
    for step in (4, 5):
        given = case.inputs(torch.float32, step)
        words = _differences(case.kinds, step_of(other, given), step_of(loss, given), 0.0)
        if words := words or _moved(state_of(other), state_of(loss)):
            return f"step {step - 3} afterwards: {words}"
    return None


def check_evaluation(case: Case) -> str | None:
    """In evaluation a loss leaves its state alone, and goes on as one without that call."""
    loss, other = case.copy(), case.copy()
    for made in (loss, other):
        step_of(made, case.inputs(torch.float32))
    before = state_of(loss)
    with torch.no_grad():
        loss.eval()(*case.inputs(torch.float32, 1))
    if words := _moved(state_of(loss), before, 1e-6, 1e-6):
        return f"a call in evaluation moves the state: {words}"
    words = _continue(case, other, loss.train())
    return words and f"after a call in evaluation, {words}"


# --- checks in processes of their own

PIXELS, JOINED, STEPS = 6, 20, 3  # of the net, rows of the joined batch, steps of SGD
EQUAL, UNEQUAL = (10, 10), (12, 8)  # rows of the two processes


class _Model(nn.Module):
    """Embeds views, and computes the loss of them where it is given one."""

    def __init__(self, case: Case, loss: nn.Module | None = None) -> None:
        super().__init__()
        self.case, self.loss = case, loss
        self.layers = nn.Sequential(nn.Linear(PIXELS, 8), nn.Tanh(), nn.Linear(8, case.dim))

    def forward(
        self, views: Tensor, index: Tensor | None = None, queue: Tensor | None = None
    ) -> Any:
        embedded = self.layers(views)
        if self.loss is None:
            return embedded
        return _called(self.loss, self.case.kinds, embedded, index, queue), embedded


def _called(
    loss: nn.Module,
    kinds: Sequence[str],
    embedded: Tensor,
    index: Tensor | None,
    queue: Tensor | None,
) -> Tensor:
    """The loss of embedded views, each of its arguments another one."""
    rest = iter(embedded)
    stacked = {"index": index, "queue": queue, "views": embedded, "keys": embedded[1:].detach()}
    given = [
        stacked[kind] if kind in stacked else next(rest) if kind == "view" else next(rest).detach()
        for kind in kinds
    ]
    return loss(*given)


def _train(case: Case, own: slice, rank: int, inside: bool, alone: bool) -> dict[str, Tensor]:
    """Values, and all state after three steps of SGD: of one process on all rows (alone), or of
    one of two, where DistributedDataParallel wraps the loss too (inside) or not.
    """
    torch.manual_seed(0)
    loss = case.copy(torch.float64)
    net = _Model(case, loss if inside else None).double()
    model = net if alone else DistributedDataParallel(net)
    learned = list(dict.fromkeys([*net.parameters(), *loss.parameters()]))
    optimizer = torch.optim.SGD(learned, lr=0.3)
    made = torch.Generator().manual_seed(1)
    queue = normalize(torch.randn(20, case.dim, generator=made, dtype=torch.float64), dim=1)
    views_of_each = max(3, sum(kind in ("view", "key") for kind in case.kinds))
    torch.manual_seed(100 + rank)  # every process draws something else
    values = []
    for _ in range(STEPS):
        common = torch.randn(JOINED, PIXELS, generator=made, dtype=torch.float64)
        apart = torch.randn(views_of_each, JOINED, PIXELS, generator=made, dtype=torch.float64)
        index = torch.randperm(case.images, generator=made)[:JOINED][own]
        views = (common + 0.5 * apart)[:, own]
        if inside:
            value, embedded = model(views, index, queue)
        else:
            embedded = model(views)
            value = _called(loss, case.kinds, embedded, index, queue)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        pushed = normalize(embedded[1].detach(), dim=1)
        queue = torch.cat([pushed if alone else _of_all(pushed), queue])[:20]
        values.append(value.detach().double())
    weights = {f"the weight {key}": x for key, x in net.layers.state_dict().items()}
    state = {key: x for key, x in loss.state_dict().items() if isinstance(x, Tensor)}
    return weights | state | {"the value": torch.stack(values)}


def _of_all(rows: Tensor) -> Tensor:
    """The rows of all processes, in the order of the ranks."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, rows)
    return torch.cat(parts)


def _of_a_rank(rank: int, cases: dict[str, bytes], parts: tuple[int, int], path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=2)
    own = slice(0, parts[0]) if rank == 0 else slice(parts[0], JOINED)
    results = {}
    for name, data in cases.items():
        case: Case = pickle.loads(data)
        if case.initialise is not None:
            case.initialise()
        for inside in _ways(case):
            results[name, inside] = _train(case, own, rank, inside, alone=False)
    torch.save(results, f"{path}/{rank}.pt")
    dist.barrier()  # whoever leaves first closes its connections
    dist.destroy_process_group()


def _ways(case: Case) -> tuple[bool, ...]:
    """Return whether DistributedDataParallel wraps the loss: both, where it learns something."""
    return (
        (False, True)
        if any(parameter.requires_grad for parameter in case.loss.parameters())
        else (False,)
    )


def check_processes(
    cases: Mapping[str, Case], parts: tuple[int, int] = EQUAL
) -> dict[str, str | None]:
    """Two processes against one on the joined batch, each with its part of the rows."""

    def compare(path: str, name: str) -> str | None:
        case = cases[name]
        ranks = [torch.load(f"{path}/{rank}.pt") for rank in range(2)]
        for inside in _ways(case):
            expected = _train(case, slice(None), 0, inside=False, alone=True)
            trained = [results[name, inside] for results in ranks]
            if not case.strict:
                mean = torch.stack([results["the value"] for results in trained]).mean(0)
                trained = [results | {"the value": mean} for results in trained]
            for rank, results in enumerate(trained):
                if words := _moved(results, expected, **EXACT):
                    where = ", with the loss in DistributedDataParallel" if inside else ""
                    return f"after {STEPS} steps on rank {rank}{where} {words}"
        return None

    return _spawned(cases, _of_a_rank, (parts,), 2, compare)


def check_unequal_parts(cases: Mapping[str, Case]) -> dict[str, str | None]:
    """Two processes with 12 and 8 rows against one with 20."""
    return check_processes(cases, UNEQUAL)


def _of_the_compiler(_: int, cases: dict[str, bytes], path: str) -> None:
    torch.set_num_threads(1)
    results = {}
    for name, data in cases.items():
        torch.compiler.reset()
        try:
            results[name] = _compiled(pickle.loads(data))
        except Exception as error:  # whatever the loss of others raises
            results[name] = _in_one_line(error)
    torch.save(results, f"{path}/compiled.pt")


def _compiled(case: Case) -> str | None:
    """Compare three steps of a compiled loss, with SGD on its parameters, with those without.

    The backend divides forward and backward as torch's compiler does, which computes cheap results
    anew in the backward pass: one of a state that the forward pass has moved is then another one.
    """
    loss, eager = case.copy(), case.copy()
    compiled = torch.compile(loss, backend="aot_eager_decomp_partition", fullgraph=case.fullgraph)
    for step in range(STEPS):
        given = case.inputs(torch.float32, step)
        compiled_values, eager_values = (
            _of_parameters(compiled, loss, given),
            _of_parameters(eager, eager, given),
        )
        for part, actual, expected in zip(
            ("value", *["gradient"] * 99), compiled_values, eager_values, strict=False
        ):
            if words := _far(actual, expected, 1e-5, 1e-9):
                return f"step {step + 1}: a {part} is {words}"
        if words := _moved(dict(loss.state_dict()), dict(eager.state_dict()), 1e-5, 1e-7):
            return f"step {step + 1}: {words}"
        with torch.no_grad():
            for parameter in (*loss.parameters(), *eager.parameters()):
                parameter.add_(0.01)
    return None


def _of_parameters(
    call: Callable[..., Tensor], loss: nn.Module, given: Sequence[Tensor]
) -> list[Tensor]:
    """The value, and the gradients of views and parameters."""
    rows = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in given]
    torch.manual_seed(1)
    value = call(*rows)
    learned = [x for x in (*rows, *loss.parameters()) if x.requires_grad]
    gradients = torch.autograd.grad(value, learned, allow_unused=True)
    return [value.detach(), *(x for x in gradients if x is not None)]


def check_compiled(cases: Mapping[str, Case]) -> dict[str, str | None]:
    """Three steps by torch.compile against those without it, in a process of its own."""

    def compare(path: str, name: str) -> str | None:
        return torch.load(f"{path}/compiled.pt")[name]

    return _spawned(cases, _of_the_compiler, (), 1, compare)


def _spawned(
    cases: Mapping[str, Case],
    work: Callable[..., None],
    given: tuple[Any, ...],
    count: int,
    compare: Callable[[str, str], str | None],
) -> dict[str, str | None]:
    """Run work(rank, cases, *given, folder) in new processes, for all losses at once; where that
    fails, for each alone. Returns what `compare` says of the folder and a name.
    """
    failures: dict[str, str | None] = {}
    pickled = {}
    for name, case in cases.items():
        try:
            pickled[name] = pickle.dumps(replace(case, reference=None))
        except Exception as error:  # whatever the loss of others raises
            failures[name] = f"it cannot be pickled for another process: {error}"[:300]
    if not pickled:
        return failures
    with tempfile.TemporaryDirectory() as path:
        limit = LONGEST[0] + LONGEST[1] * len(pickled)
        failure = _ended(mp.spawn(work, (pickled, *given, path), count, join=False), limit)
        if failure is None:
            return failures | {name: _compared(compare, path, name) for name in pickled}
    if len(pickled) == 1:
        return failures | dict.fromkeys(pickled, failure)
    for name in pickled:
        failures |= _spawned({name: cases[name]}, work, given, count, compare)
    return failures


def _compared(compare: Callable[[str, str], str | None], path: str, name: str) -> str | None:
    with torch.random.fork_rng(devices=[]):
        try:
            return compare(path, name)
        except Exception as error:  # in one process, whatever the loss of others raises
            return _in_one_line(error)


def _ended(context: Any, limit: float) -> str | None:
    """Wait for processes; what the first that failed raised, or that they had no end."""
    until = time.monotonic() + limit
    try:
        while not context.join(timeout=1):
            if time.monotonic() > until:
                return f"the processes had no end after {limit:.0f} s"
    except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
        return f"raised {(raised or lines)[-1]}"[:300]
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
    return None


ALONE: dict[str, Callable[[Case], str | None]] = {
    "reference": check_reference,
    "gradcheck": check_gradcheck,
    "gradients": check_gradients,
    "permutation": check_permutation,
    "float32": check_float32,
    "half": check_half,
    "autocast": check_autocast,
    "zero_rows": check_zero_rows,
    "equal_rows": check_equal_rows,
    "bad_batch": check_bad_batch,
    "learned_temperature": check_learned_temperature,
    "memory": check_memory,
    "pickling": check_pickling,
    "state_dict": check_state_dict,
    "evaluation": check_evaluation,
}
"""Checks of one loss in this process."""

TOGETHER: dict[str, Callable[[Mapping[str, Case]], dict[str, str | None]]] = {
    "processes": check_processes,
    "unequal_parts": check_unequal_parts,
    "compiled": check_compiled,
}
"""Checks in other processes, which many losses share."""

CHECKS = (*ALONE, *TOGETHER)
