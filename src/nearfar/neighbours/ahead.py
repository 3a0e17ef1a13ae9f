"""Pairs compared a few ahead of their turn, with the results of one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from nearfar.engine import engine

TOGETHER = 32  # pairs that are compared as one piece of work of an engine
Item = TypeVar("Item")
Made = TypeVar("Made")


def compared_ahead(
    pairs: Iterable[Item],
    is_open: Callable[[Item], bool],
    compare: Callable[[Iterator[list[Item]]], Iterable[list[Made]]],
) -> Iterator[tuple[Item, Made]]:
    """Yield the pairs that are open when their turn comes, with their results, in their order.

    compare: of chunks of pairs the results of each; threads, or an engine, take a few chunks ahead,
    so that what one shows may close another that was compared for nothing. What is yielded is that
    of one thread.

    >>> list(compared_ahead([1, 2], lambda pair: pair > 1, lambda chunks: map(list, chunks)))
    [(2, 2)]
    """
    begun: deque[list[Item]] = deque()

    def chunks() -> Iterator[list[Item]]:
        opened = filter(is_open, pairs)
        while chunk := list(islice(opened, 1 if engine() is None else TOGETHER)):
            begun.append(chunk)
            yield chunk

    for made in compare(chunks()):
        for pair, result in zip(begun.popleft(), made, strict=True):
            if is_open(pair):
                yield pair, result
