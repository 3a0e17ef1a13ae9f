"""What a person sees of a run: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from nearfar.training.pace import Pace

FIRST, INTERVAL = 8.0, 15.0  # seconds until the first plain line, and between lines


class TrainingProgress:
    """Shows epoch, loss, images per second, the share of time spent waiting for data and the time left.

    Where no bar can move a plain line is printed after the first step, then every 15 seconds, and at the end; and one
    after eight seconds if the first step takes longer.
    """

    def __init__(self, console: Console, pace: Pace, done: int, per_epoch: int, shown: bool = True) -> None:
        self.console, self.pace, self.per_epoch = console, pace, per_epoch
        self.started, self.first, self.last_line = 0.0, done, float("-inf")
        self.live = shown and shows_bars(console)
        self.plain = shown and not self.live
        self.text = "the first step is under way"
        self.bar = Progress(
            SpinnerColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"),
            console=console, disable=not self.live,
        )  # fmt: skip
        self.task = self.bar.add_task(self.text, total=1.0)
        self.bar.update(self.task, completed=self._share(done))
        self.timer = threading.Timer(FIRST, self._print_line)
        self.timer.daemon = True

    def __enter__(self) -> TrainingProgress:
        self.bar.start()
        if self.plain:
            self.timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.timer.cancel()
        self.bar.stop()

    def update(self, step: int, loss: float, rate: float, waiting: float) -> None:
        """Take new numbers after `step` steps; rate in images per second, waiting as a share of the time."""
        self.text = f"loss {loss:.4f}  {rate:.0f} images/s  {waiting:.0%} waiting for data"

    def advance(self, step: int) -> None:
        """Show that `step` steps are done, on a terminal at once."""
        self.timer.cancel()
        epochs = f"epoch {step / self.per_epoch:.1f}/{self.pace.steps / self.per_epoch:.4g}"
        if step == self.first + 1:
            self.text, self.started = "first step done", time.perf_counter()  # which takes longer than the others
        left = self.pace.remaining()
        if left is None and step > self.first + 1:
            left = (time.perf_counter() - self.started) / (step - self.first - 1) * (self.pace.steps - step)
        text = f"{epochs}  {self.text}" + (f"  {duration(left)} left" if left is not None else "")
        self.bar.update(self.task, completed=self._share(step), description=text)
        if self.plain and (time.perf_counter() - self.last_line > INTERVAL or step >= self.pace.steps):
            self._print_line(text)

    def _share(self, step: int) -> float:
        return self.pace.position(step) / self.pace.scheduled

    def _print_line(self, text: str | None = None) -> None:
        self.console.print(Text(text or self.text))
        self.last_line = time.perf_counter() if text else self.last_line


def shows_bars(console: Console) -> bool:
    """Whether a bar can move on a console: that of a terminal, or of a notebook that has ipywidgets."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


def waiting(console: Console, words: str) -> AbstractContextManager[object]:
    """Show that something is going on whose length is not known; nothing where no bar can move."""
    return console.status(words) if shows_bars(console) else nullcontext()


def duration(seconds: float) -> str:
    """A time as a person would say it: "40 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
