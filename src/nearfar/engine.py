"""Pieces of work that do not depend on each other: done here, or by an engine.

Whoever loops over such pieces writes `for made in each(work, pieces):`. The edge chooses an engine,
which does them in other processes (`nearfar.ray`). Nobody passes it, and what is made is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

Piece, Made = TypeVar("Piece"), TypeVar("Made")
Keys = Callable[[Any], str | None]
"""Of a piece, a digest of all that its result depends on; None where it is not worth keeping."""


class Engine(Protocol):
    """Does pieces of work in other processes."""

    def each(
        self, work: Callable[[Piece], Made], pieces: Iterable[Piece], keys: Keys | None
    ) -> Iterator[Made]:
        """Yield `work(piece)` for each piece, in their order; see `nearfar.engine.each`."""
        ...


_engines: list[Engine] = []


def engine() -> Engine | None:
    """Return the engine that works now; None: this process does it all."""
    return _engines[-1] if _engines else None


@contextmanager
def working(chosen: Engine) -> Iterator[None]:
    """Let an engine do the work while the context is open."""
    _engines.append(chosen)
    try:
        yield
    finally:
        _engines.remove(chosen)


def each(
    work: Callable[[Piece], Made], pieces: Iterable[Piece], keys: Keys | None = None
) -> Iterator[Made]:
    """Yield `work(piece)` for each piece, in their order.

    work: depends on the piece alone, and can be pickled. keys: an engine keeps the result of a
    piece under its key, so that a job that died goes on. What is kept is a dictionary of arrays.

    >>> list(each(abs, [-1, 2]))
    [1, 2]
    """
    chosen = engine()
    return map(work, pieces) if chosen is None else chosen.each(work, pieces, keys)
