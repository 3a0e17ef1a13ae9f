"""CUDA graphs of the stand-in: what a step launches is written down, and done again with the same
memory and the same numbers of Python.

As on a GPU, a capture computes nothing that lasts, raises an error where the CPU would wait or send
values, and keeps every Python number and every number on the CPU at its value. A tape holds
functions of raw tensors, those on the CPU that lie behind the device's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils import _pytree as tree


class Tape:
    """The launches of a capture; `torch.cuda.CUDAGraph` of the stand-in."""

    open: ClassVar[Tape | None] = None
    """The tape of the capture that is going on."""
    replays: ClassVar[int] = 0
    """Replays of all tapes so far."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., Any], Any, Any, Any]] = []
        self.before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self.own: set[int] = set()

    @classmethod
    def run(cls, function: Callable[..., Any], given: Any, named: Any) -> Any:
        """Compute a function and write it down."""
        self = cls.open
        assert self is not None
        given, named = tree.tree_map_only(Tensor, self._seen, (given, named))
        inputs = _places((given, named))
        result = function(*given, **named)
        self.own |= _places(result) - inputs
        if "empty" in str(function):  # launches nothing: what lies there is written from outside
            result.zero_()  # it may be an index, with which the capture computes already
        else:
            self.calls.append((function, given, named, result))
        return result

    def _seen(self, tensor: Tensor) -> Tensor:
        """The tensor, whose memory as it is before the capture is kept."""
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        if place and place not in self.own and place not in self.before:
            self.before[place] = storage, storage.clone()
        return tensor

    def must_be_there(self, source: Any) -> None:
        """Raise an error for values that a capture would copy from the CPU, once and for all."""
        if type(source) is Tensor:
            raise RuntimeError("a copy from the CPU: operation not permitted during a capture")

    def end(self) -> None:
        """Put everything back: a capture computes nothing."""
        for storage, values in self.before.values():
            storage.copy_(values)

    def replay(self) -> None:
        """Do it all again; results come into the same memory."""
        Tape.replays += 1
        for function, given, named, result in self.calls:
            inputs = _places((given, named))
            again = function(*given, **named)
            for old, new in zip(_tensors(result), _tensors(again), strict=True):
                if new.untyped_storage().data_ptr() not in inputs:
                    old.copy_(new)


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree.tree_leaves(values) if isinstance(leaf, Tensor)]


def _places(values: Any) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in _tensors(values)}


class Stream:
    """A stream; the stand-in computes at once."""

    def wait_stream(self, other: Stream) -> None:
        """Do nothing."""


@contextmanager
def in_stream(stream: Stream) -> Iterator[None]:
    """Do nothing."""
    yield


def current_stream() -> Stream:
    """Return the stream."""
    return Stream()


class Event:
    """A moment of the device, which computes at once; `torch.cuda.Event` of the stand-in."""

    def __init__(self, enable_timing: bool) -> None:
        self.moment = 0.0

    def record(self) -> None:
        """Note the moment."""
        self.moment = time.perf_counter()

    def elapsed_time(self, later: Event) -> float:
        """Return the milliseconds until another moment."""
        return 1e3 * (later.moment - self.moment)


@contextmanager
def capturing(graph: Tape, *, stream: Stream, capture_error_mode: str) -> Iterator[None]:
    """Write down what is launched while the context is open; `torch.cuda.graph` of the stand-in."""
    Tape.open = graph
    try:
        yield
    finally:
        Tape.open = None
        graph.end()
