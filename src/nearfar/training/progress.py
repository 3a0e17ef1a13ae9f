"""What a person sees of a run: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class TrainingProgress:
    """Shows epoch, loss, images per second, the share of time spent waiting for data and the time left.

    Without a terminal one plain line is printed every `interval` seconds and one at the end.
    """

    def __init__(self, console: Console, steps: int, done: int, shown: bool = True, interval: float = 15.0) -> None:
        self.console, self.steps, self.interval, self.shown = console, steps, interval, shown
        self.started = self.last_line = time.perf_counter()
        self.first, self.text, self.live = done, "", shown and console.is_terminal
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        self.bar = Progress(*columns, console=console, disable=not self.live)
        self.task = self.bar.add_task("", total=steps, completed=done)

    def __enter__(self) -> TrainingProgress:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def update(self, step: int, epoch: float, epochs: int, loss: float, rate: float, waiting: float) -> None:
        """Show the state after `step` steps; rate in images per second, waiting as a share of the time."""
        text = f"epoch {epoch:.1f}/{epochs}  loss {loss:.4f}  {rate:.0f} images/s  {waiting:.0%} waiting for data"
        self.bar.update(self.task, completed=step, description=text)
        now = time.perf_counter()
        if not self.live and self.shown and (now - self.last_line > self.interval or step == self.steps):
            left = (now - self.started) / max(step - self.first, 1) * (self.steps - step)
            self.console.print(f"{text}  {left:.0f} s left", highlight=False)
            self.last_line = now

    def advance(self, step: int) -> None:
        """Move the bar without new numbers."""
        self.bar.update(self.task, completed=step)
