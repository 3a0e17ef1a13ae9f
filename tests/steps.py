"""Something that happens in the middle of a run."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from nearfar.training import loop


def interrupt() -> None:
    """Ask this process to stop, as Ctrl-C does."""
    os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def at_step(*numbers: int, do: Callable[[], object] = interrupt) -> Iterator[None]:
    """Do something in the `with` block once a run has taken each of these numbers of steps."""
    advance = loop.TrainingProgress.advance

    def watched(self: loop.TrainingProgress, step: int) -> None:
        advance(self, step)
        if step in numbers:
            do()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.TrainingProgress, "advance", watched)
        yield
