"""Messages of a long computation while it runs: lines by logging, bars for whoever draws them.

Lines go to `log`, the logger "nearfar"; a bar is a context, `with progress("reading images", total)
as bar:`, and moves by `bar.advance()` or `bar.update(done)`. Nobody passes a console: the command
line and notebooks install a renderer (nearfar.rendering), and a program that uses the library hears
and sees nothing unless it asks for it: `nearfar.show_progress()`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sized
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")
log = logging.getLogger("nearfar")
READ: ContextVar[list[dict[str, Any]] | None] = ContextVar("READ", default=None)
"""Where the command line collects, for --json, how many images a verb read and left out."""


class Bar:
    """The progress of a computation; this one is drawn by nobody."""

    done = 0

    def advance(self, count: int = 1) -> None:
        """Say that `count` more are done."""
        self.update(self.done + count)

    def update(
        self, done: int, total: int | None = None, text: str = "", now: bool = False
    ) -> None:
        """Say that `done` are done, of `total` where that is known by now.

        text: what stands beside the bar, in place of its title. now: where no bar can move, print a
        line at once instead of every 15 seconds; the last one stays when a bar is gone.
        """
        self.done = done


@runtime_checkable
class Renderer(Protocol):
    """Draws bars: on a terminal, in a notebook."""

    def bar(self, title: str, total: int | None) -> AbstractContextManager[Bar]:
        """Draw a bar while the context is open."""
        ...

    def waiting(self, title: str) -> AbstractContextManager[Any]:
        """Show that something of unknown length goes on while the context is open."""
        ...


_renderers: list[Renderer] = []


def renderer() -> Renderer | None:
    """Return the renderer that draws now; None: nobody looks."""
    return _renderers[-1] if _renderers else None


@contextmanager
def drawn_by(drawing: Renderer) -> Iterator[None]:
    """Let a renderer draw all bars while the context is open."""
    _renderers.append(drawing)
    try:
        yield
    finally:
        _renderers.remove(drawing)


@contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Bar]:
    """Open a bar; title: what goes on, as in "reading images". total: None if it is not known."""
    drawing = renderer()
    if drawing is None:
        yield Bar()
        return
    with drawing.bar(title, total) as bar:
        yield bar


def tracked(items: Iterable[T], title: str, total: int | None = None) -> Iterator[T]:
    """Yield the items, and move a bar by one after each; total: default, their number if known."""
    known = len(items) if total is None and isinstance(items, Sized) else total
    with progress(title, known) as bar:
        for item in items:
            yield item
            bar.advance()


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """Show that something is going on whose length is not known."""
    drawing = renderer()
    if drawing is None:
        yield
        return
    with drawing.waiting(title):
        yield


@contextmanager
def quietly() -> Iterator[None]:
    """Log nothing while the context is open: what is done again has been said."""
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


class Bold(str):
    """Text of a table that stands out."""


class Table:
    """Rows of text under a header, as a line of the log: plain text, or drawn by the renderer."""

    def __init__(self, *header: str, title: str = "") -> None:
        self.header, self.title = header, title
        self.rows: list[tuple[str, ...]] = []

    def add(self, *cells: object) -> None:
        """Add a row, with as many cells as the header has."""
        assert len(cells) == len(self.header)
        self.rows.append(tuple(cell if isinstance(cell, str) else str(cell) for cell in cells))

    def __str__(self) -> str:
        rows = [self.header, *self.rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.header))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([self.title, *lines] if self.title else lines)


def say_read(images: Any) -> None:
    """Log the line of `Images`, a `Stream` or a `Count`: how many images were read and what was
    left out; a warning where some were left out.
    """
    level = logging.WARNING if getattr(images, "left_out", {}) else logging.INFO
    log.log(level, "%s", images.line)
    if (read := READ.get()) is not None:
        splits = {"split": images.split, "splits": getattr(images, "splits", [])}
        counted = {"images": len(images), "left_out": getattr(images, "left_out", {})}
        read.append({"data": images.source, **splits, **counted, "line": images.line})


def duration(seconds: float) -> str:
    """Say a time as a person would: "40 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
