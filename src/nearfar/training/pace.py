"""How far a run has come on its schedule, and how a run keeps to the time that it was given."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_OFTEN, _WINDOW = 0.01, 0.1  # of the time: the steps are fitted so often, to the speed over so long
_SETTLED = 0.02  # a change of the remaining steps below this is left alone


class Pace:
    """The position of a run on its schedule of `steps` steps, from 0 to `steps`.

    Without a time the position is the number of steps done. With `seconds`, the number of steps left is fitted to the
    time left, as the speed of the machine changes: the position then moves more or less than one a step, and reaches
    its end with the last step, so that everything that is scheduled is too. Nothing ever jumps.
    clock: returns seconds; what came before the start is not counted.
    """

    def __init__(
        self,
        steps: int,
        seconds: float | None = None,
        most: int | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.scheduled = self.steps = steps
        self.seconds, self.most = seconds, most
        self.from_step, self.from_position = 0, 0.0
        self._clock = clock or time.perf_counter
        self._began = self._clock()
        self._marks = deque([(self._began, 0)])  # when which step was done, over the last share of the time

    def position(self, step: int) -> float:
        """Where on the schedule a step is."""
        left = (self.scheduled - self.from_position) / max(1, self.steps - self.from_step)
        return self.from_position + (step - self.from_step) * left

    def remaining(self) -> float | None:
        """Seconds that are left, None without a time."""
        return None if self.seconds is None else max(0.0, self.seconds - (self._clock() - self._began))

    def fit(self, step: int) -> int:
        """Return the number of steps that the run should have, from the time that is left after `step` steps."""
        now = self._clock()
        if self.seconds is None or step >= self.steps or now - self._marks[-1][0] < _OFTEN * self.seconds:
            return self.steps
        self._marks.append((now, step))
        while len(self._marks) > 2 and now - self._marks[0][0] > _WINDOW * self.seconds:
            self._marks.popleft()
        then, before = self._marks[0]
        each = (now - then) / max(1, step - before)
        left = max(1, int((self.remaining() or 0.0) / each))
        fitted = min(step + left, self.most or step + left)
        return fitted if abs(fitted - self.steps) > _SETTLED * (self.steps - step) else self.steps

    def change(self, step: int, steps: int) -> None:
        """Let the run end after `steps` steps from now on."""
        if steps != self.steps:
            self.from_position, self.from_step = self.position(step), step
            self.steps = max(steps, step + 1)

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"steps": self.steps, "from_step": self.from_step, "from_position": self.from_position}

    def load(self, state: dict[str, float]) -> None:
        """Go on from a checkpoint, with the number of steps that the run had come to; it is not fitted again."""
        self.steps, self.from_step = int(state["steps"]), int(state["from_step"])
        self.from_position, self.seconds = float(state["from_position"]), None
