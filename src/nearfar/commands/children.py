"""Commands in processes of their own that are asked to stop when this one is."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType


class Children:
    """Runs Python in processes of their own; while entered, SIGTERM to this process goes on to them.

    Ctrl-C and a terminal that closes reach them by themselves.
    """

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False
        self._before: object = None

    def run(self, words: Sequence[str], environment: Mapping[str, str], log: Path) -> str:
        """Run Python with some words; append what it says to the log and return its standard output.

        Raises subprocess.CalledProcessError where it fails or is stopped.
        """
        command = [sys.executable, *words]
        with log.open("a") as file:
            child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=file, text=True)
            self._running.add(child)
            if self._stopped:  # in between, or before
                child.terminate()
            said = child.communicate()[0]
            self._running.discard(child)
            file.write(said)
        if child.returncode:
            raise subprocess.CalledProcessError(child.returncode, command)
        return said

    def __enter__(self) -> Children:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._before)  # type: ignore[arg-type]

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True
        for child in list(self._running):
            child.terminate()
        raise SystemExit(128 + number)
