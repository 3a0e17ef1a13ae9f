"""Lines and bars on a terminal or in a notebook, by rich: the only file beside the command line
that knows a console.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import rich.table
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TaskProgressColumn as Percent
from rich.text import Text

from nearfar.messages import worded
from nearfar.progress import Bar, Bold, Table, drawn_by, log

INTERVAL = 15.0  # seconds between plain lines
MOMENT = 0.2  # seconds after which a bar inside another is drawn


class ConsoleRenderer:
    """Bars on a console; where none can move, a plain line every 15 seconds."""

    def __init__(self, console: Console) -> None:
        self.console = console
        notebook = console.is_jupyter and find_spec("ipywidgets") is not None
        self.live = console.is_terminal or notebook
        self._drawing: Progress | None = None

    @contextmanager
    def bar(self, title: str, total: int | None) -> Iterator[Bar]:
        """Draw a bar while the context is open, below those that are open already."""
        if not self.live:
            yield _Lines(self.console, title, total)
            return
        outer = self._drawing
        if outer is None:
            self._drawing = Progress(
                SpinnerColumn(),
                BarColumn(),
                Percent(),
                TimeElapsedColumn(),
                TextColumn("{task.description}", markup=False),
                console=self.console,
                transient=True,
            )
            self._drawing.start()
        drawing = self._drawing
        assert drawing is not None
        bar = _Drawn(drawing, title, total)
        if outer is None:
            bar.add()
        try:
            yield bar
        finally:
            bar.remove()
            if outer is None:
                drawing.stop()
                self._drawing = None
            if bar.lasting:
                self.console.print(Text(bar.lasting))

    def waiting(self, title: str) -> AbstractContextManager[Any]:
        """Let a bar without an end move while the context is open; nothing beside an open bar."""
        free = self.live and self._drawing is None
        return self.bar(title, None) if free else nullcontext()


class _Drawn(Bar):
    """A bar that is drawn when `add` is called, or when it has moved for a moment: many short ones
    inside another would take longer to draw than what they show.
    """

    def __init__(self, drawing: Progress, title: str, total: int | None) -> None:
        self.drawing, self.title, self.total = drawing, title, total
        self.task: TaskID | None = None
        self.began = perf_counter()
        self.lasting = ""  # the last text, where it was to be seen at once

    def add(self) -> TaskID:
        """Draw the bar from now on."""
        self.task = self.drawing.add_task(self.title, total=self.total)
        return self.task

    def remove(self) -> None:
        """Draw the bar no longer."""
        if self.task is not None:
            self.drawing.remove_task(self.task)

    def update(
        self, done: int, total: int | None = None, text: str = "", now: bool = False
    ) -> None:
        self.done, self.total = done, self.total if total is None else total
        self.lasting = text if now else ""
        task = self.task
        if task is None:
            if not now and perf_counter() - self.began < MOMENT:
                return
            task = self.add()
        self.drawing.update(task, completed=done, total=total, description=text or None)


class _Lines(Bar):
    def __init__(self, console: Console, title: str, total: int | None) -> None:
        self.console, self.title, self.total = console, title, total
        self.last = perf_counter()

    def update(
        self, done: int, total: int | None = None, text: str = "", now: bool = False
    ) -> None:
        self.done, self.total = done, self.total if total is None else total
        if now or perf_counter() - self.last > INTERVAL:
            known = f"{done}" if self.total is None else f"{done} of {self.total}"
            self.console.print(Text(text or f"{self.title}: {known}"))
            self.last = perf_counter()


class ConsoleHandler(logging.Handler):
    """Prints the lines of the log on a console, and its tables with borders."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record, with the traceback of an exception; a table stays a table."""
        if isinstance(record.msg, Table):
            self.console.print(as_rich(record.msg))
        else:
            self.console.print(Text(worded(self.format(record))), soft_wrap=True)


def as_rich(table: Table) -> rich.table.Table:
    """Return a table with borders."""
    drawn = rich.table.Table(*map(worded, table.header), title=table.title or None)
    for row in table.rows:
        cells = (Text(worded(cell), "bold" if isinstance(cell, Bold) else "") for cell in row)
        drawn.add_row(*cells)
    return drawn


@contextmanager
def shown_on(console: Console, level: int = logging.INFO) -> Iterator[None]:
    """Show lines of this level and bars on a console, in place of anything else, while the context
    is open.
    """
    before, was = log.handlers, log.level
    log.handlers, propagates = [ConsoleHandler(console)], log.propagate
    log.propagate = False
    log.setLevel(level)
    try:
        with drawn_by(ConsoleRenderer(console)):
            yield
    finally:
        log.handlers, log.propagate = before, propagates
        log.setLevel(was)


def shown_nowhere() -> AbstractContextManager[None]:
    """Show neither lines nor bars while the context is open: another process shows the same."""
    return shown_on(Console(quiet=True))


def shown_if(on: bool) -> AbstractContextManager[None]:
    """Show lines and bars while the context is open, if `on`; else leave all as it is."""
    return shown_on(Console(soft_wrap=True)) if on else nullcontext()


def show_progress(on: bool = True) -> None:
    """Show what nearfar is doing, lines and bars, from now on; on: False for nothing again.

    The command line and notebooks do so from the start; a program that uses the library hears
    nothing unless it calls this, or listens to the logger "nearfar".

    >>> nearfar.show_progress(False)
    """
    global _open
    if _open is not None:
        _open.__exit__(None, None, None)
        _open = None
    if on:
        _open = shown_on(Console(soft_wrap=True))
        _open.__enter__()


_open: AbstractContextManager[None] | None = None
