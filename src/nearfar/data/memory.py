"""Memory that the threads of a process share: who needs much of it waits for the others."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SharedMemory:
    """So many bytes for all threads together; more than all of it is lent to one thread alone."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)  # the threads that hold some are not in the child

    def _renew(self) -> None:
        self.free, self._changed = self.total, threading.Condition()

    @contextmanager
    def lent(self, wanted: int) -> Iterator[None]:
        """Wait until `wanted` bytes are free and hold them while entered."""
        wanted = min(wanted, self.total)
        with self._changed:
            self._changed.wait_for(lambda: wanted <= self.free)
            self.free -= wanted
        try:
            yield
        finally:
            with self._changed:
                self.free += wanted
                self._changed.notify_all()
