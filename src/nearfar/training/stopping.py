"""Signals that ask a run to stop, and how all its processes agree."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch
import torch.distributed as dist

Handler = Callable[[int, FrameType | None], None] | signal.Handlers


@contextmanager
def handled(signals: list[signal.Signals], handler: Handler) -> Iterator[None]:
    """Handle signals in the `with` block, where this is the main thread, which alone can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


def hangup() -> list[signal.Signals]:
    """Return the signal of a terminal that is closed, unless the run was told to ignore it, as by
    nohup.
    """
    number = getattr(signal, "SIGHUP", None)  # there is none on Windows
    return [] if number is None or signal.getsignal(number) is signal.SIG_IGN else [number]


def _leave_terminal() -> None:
    """Write nothing more to a terminal that is gone: every line would be an error, and the
    checkpoint not be saved.
    """
    for number in (1, 2):
        if stat.S_ISCHR(os.fstat(number).st_mode):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Make the first SIGTERM or SIGHUP a KeyboardInterrupt, as Ctrl-C is, so that a run cleans up;
    ignore others then.

    `StopRequest` takes their place while a run trains.
    """
    own, signals = os.getpid(), [signal.SIGTERM, *hangup()]

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:  # a process that was forked from this one
            os._exit(1)
        for signum in signals:
            signal.signal(signum, signal.SIG_IGN)
        if number != signal.SIGTERM:
            _leave_terminal()
        raise KeyboardInterrupt

    with handled(signals, stop):
        yield


class StopRequest:
    """The first SIGINT, SIGTERM or SIGHUP, while `listening`, as a request to stop that all
    processes agree on.

    A terminal that closes asks as often as it likes; the second of the others is a
    KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self._asked = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals in the `with` block."""
        with handled([signal.SIGINT, signal.SIGTERM, *hangup()], self._ask):
            yield

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if number in hangup():
            _leave_terminal()
        elif self._asked:
            raise KeyboardInterrupt
        self._asked = True

    def ask(self) -> None:
        """Ask for a stop without a signal."""
        self._asked = True

    def agreed(self, device: torch.device) -> bool:
        """Return whether any process was asked to stop; every process must call it at the same
        step.
        """
        if dist.is_initialized() and dist.get_world_size() > 1:
            requested = torch.tensor(float(self._asked), device=device)
            dist.all_reduce(requested, op=dist.ReduceOp.MAX)
            return bool(requested.item())
        return self._asked
