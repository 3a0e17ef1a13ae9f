"""Progress of a run: how it keeps to its time, and what its bar says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from math import inf
from time import perf_counter

from nearfar.progress import Bar, duration, progress

_OFTEN, _WINDOW = 0.01, 0.1  # of the time: the steps are fitted so often, to the speed over so long
_SETTLED = 0.02  # a change of the remaining steps below this is left alone


class StepBudget:
    """The position of a run on its schedule of `steps` steps, from 0 to `steps`.

    Without a time the position is the number of steps done. With `seconds`, the number of steps
    left is fitted to the time left, as the speed of the machine changes: the position then moves
    more or less than one a step, and reaches its end with the last step, so that everything that is
    scheduled is too. Nothing ever jumps. most: steps. clock: returns seconds; what came before the
    start is not counted.
    """

    def __init__(
        self,
        steps: int,
        seconds: float | None = None,
        most: float = inf,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.scheduled = self.steps = steps
        self.seconds, self.most = seconds, most
        self.from_step, self.from_position = 0, 0.0
        self._clock = clock
        self._began = self._clock()
        self._marks = deque(
            [(self._began, 0)]
        )  # when which step was done, over the last share of the time

    def position(self, step: int) -> float:
        """Return where on the schedule a step is."""
        left = (self.scheduled - self.from_position) / max(1, self.steps - self.from_step)
        return self.from_position + (step - self.from_step) * left

    def remaining(self) -> float | None:
        """Seconds that are left, None without a time."""
        return (
            None if self.seconds is None else max(0.0, self.seconds - (self._clock() - self._began))
        )

    def fit(self, step: int) -> int:
        """Return the number of steps that the run should have, from the time that is left after
        `step` steps.
        """
        now = self._clock()
        if (
            self.seconds is None
            or step >= self.steps
            or now - self._marks[-1][0] < _OFTEN * self.seconds
        ):
            return self.steps
        self._marks.append((now, step))
        while len(self._marks) > 2 and now - self._marks[0][0] > _WINDOW * self.seconds:
            self._marks.popleft()
        then, before = self._marks[0]
        each = (now - then) / max(1, step - before)
        left = max(1, int((self.remaining() or 0.0) / each))
        fitted = int(min(step + left, self.most))
        return fitted if abs(fitted - self.steps) > _SETTLED * (self.steps - step) else self.steps

    def change(self, step: int, steps: int) -> None:
        """Let the run end after `steps` steps from now on."""
        if steps != self.steps:
            self.from_position, self.from_step = self.position(step), step
            self.steps = max(steps, step + 1)

    def state(self) -> dict[str, float]:
        """Return what a checkpoint keeps."""
        return {
            "scheduled": self.scheduled,
            "steps": self.steps,
            "from_step": self.from_step,
            "from_position": self.from_position,
        }

    def load(self, state: dict[str, float], step: int) -> None:
        """Go on from a checkpoint after `step` steps, with the number that the run had come to; it
        is not fitted again. A run that is to train longer, or shorter, is from then on where a run
        of so many steps would be.

        Raises ValueError for numbers that no run comes to.
        """
        if state["scheduled"] != self.scheduled:
            if not 0 <= step <= self.scheduled:
                raise ValueError(f"step {step} is beyond a schedule of {self.scheduled}")
            self.from_step, self.from_position, self.seconds = step, float(step), None
            return
        steps, since, position = (state[name] for name in ("steps", "from_step", "from_position"))
        whole = all(type(value) is int for value in (steps, since, step))
        most = max(self.scheduled, self.most) if self.most < inf else inf
        if not whole or not 0 <= since <= step <= steps <= most or steps < 1:
            raise ValueError(f"step {step} of {steps}, fitted at {since}, is on no schedule")
        if isinstance(position, bool) or not 0 <= position <= self.scheduled:
            raise ValueError(f"its position {position} is not on a schedule of {self.scheduled}")
        self.steps, self.from_step = int(steps), int(since)
        self.from_position, self.seconds = float(position), None


class TrainingProgress:
    """Shows epoch, loss, images per second, the share of time spent waiting for data and the time
    left.

    Where no bar can move a plain line is printed after the first step, then every 15 seconds, and
    at the end. shown: False in all processes but the first one.
    """

    def __init__(self, pace: StepBudget, done: int, per_epoch: int, shown: bool = True) -> None:
        self.pace, self.first, self.per_epoch, self.shown = pace, done, per_epoch, shown
        self.started, self.text = 0.0, "the first step"
        self._open = ExitStack()

    def __enter__(self) -> TrainingProgress:
        bar = progress("training", self.pace.scheduled) if self.shown else nullcontext(Bar())
        self.bar = self._open.enter_context(bar)
        self.bar.update(round(self.pace.position(self.first)), self.pace.scheduled, self.text)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def update(self, loss: float, rate: float, waiting: float) -> None:
        """Take new numbers: rate in images per second, waiting as a share of the time."""
        self.text = f"loss {loss:.4f}  {rate:.0f} images/s  {waiting:.0%} waiting for data"

    def advance(self, step: int) -> None:
        """Show that `step` steps are done, on a terminal at once."""
        epochs = f"epoch {step / self.per_epoch:.1f}/{self.pace.steps / self.per_epoch:.4g}"
        is_first, is_last = step == self.first + 1, step >= self.pace.steps
        if is_first:  # which takes longer than the others
            self.text, self.started = "first step done", perf_counter()
        left = self.pace.remaining()
        if left is None and not is_first:
            each = (perf_counter() - self.started) / (step - self.first - 1)
            left = each * (self.pace.steps - step)
        text = f"{epochs}  {self.text}" + (f"  {duration(left)} left" if left is not None else "")
        position, total = round(self.pace.position(step)), self.pace.scheduled
        self.bar.update(position, total, text=text, now=is_first or is_last)
