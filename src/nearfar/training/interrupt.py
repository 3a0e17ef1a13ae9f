"""Ctrl-C during training: finish the step, then stop; a second Ctrl-C stops at once."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from types import FrameType, TracebackType

import torch
import torch.distributed as dist


class StopRequest:
    """While entered, turns the first SIGINT or SIGTERM into a request that all processes agree on.

    In a process that nearfar started itself, SIGINT (from the terminal, the parent or both) is never more than a
    request, and SIGTERM ends it at once: so the parent can end one that waits for a process that is lost.
    """

    def __init__(self) -> None:
        self._asked = False
        self._spawned = multiprocessing.parent_process() is not None
        self._signals = (signal.SIGINT,) if self._spawned else (signal.SIGINT, signal.SIGTERM)
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked and not self._spawned:
            raise KeyboardInterrupt
        self._asked = True

    def agreed(self, device: torch.device) -> bool:
        """Return whether any process was asked to stop; every process must call it at the same step."""
        if dist.is_initialized() and dist.get_world_size() > 1:
            asked = torch.tensor(float(self._asked), device=device)
            dist.all_reduce(asked, op=dist.ReduceOp.MAX)
            return bool(asked.item())
        return self._asked
