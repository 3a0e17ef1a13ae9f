"""Ray as the engine of `nearfar ... --engine ray`: work is divided among processes of one machine,
or of a cluster that runs already ($RAY_ADDRESS).

Ray starts and restarts the processes, hands them the pieces and holds what they share in memory.
Here is only what a piece is to nearfar: results in order, and those with a key kept in files until
the job is done, so that one that died goes on.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from nearfar.atomic import replacing
from nearfar.data.resources import all_of, own_memory, peak_memory, usable_cores
from nearfar.data.table import cache_folder, digest
from nearfar.engine import Keys, working
from nearfar.messages import check_known, check_range, first_line
from nearfar.progress import log, quietly, waiting
from nearfar.threads import use_threads

INSTALL = "pip install 'nearfar[ray]'"
AHEAD = 3  # pieces for each worker that are under way, or done and not asked for
RETRIES = 20  # of a piece whose worker died
ADDRESS = "RAY_ADDRESS"
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # or it warns of a change to come
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # its own lines on stdout, where results go
}
# without it Ray listens on all networks of a machine, even where nobody else takes part
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
LOCALHOST = "127.0.0.1"


class Spent(NamedTuple):
    """Pieces of one kind of work that were done now, and those known from before; CPU seconds; the
    most memory of a worker by then, in MB, with the files that it maps, and what a worker had for
    itself after a piece, at most. first, first_seconds: those pieces that were the first of their
    kind in a worker, which loads what they need, and their CPU seconds.
    """

    done: int = 0
    known: int = 0
    cpu_seconds: float = 0.0
    peak_memory_mb: float = 0.0
    own_memory_mb: float = 0.0
    first: int = 0
    first_seconds: float = 0.0

    def plus(
        self, seconds: float, peak_memory_mb: float, own_memory_mb: float, is_first: bool
    ) -> Spent:
        """Return what was spent with one more piece."""
        return Spent(
            self.done + 1,
            self.known,
            self.cpu_seconds + seconds,
            max(self.peak_memory_mb, peak_memory_mb),
            max(self.own_memory_mb, own_memory_mb),
            self.first + is_first,
            self.first_seconds + seconds * is_first,
        )


class RayEngine:
    """Does pieces of work as tasks of Ray, in a session that runs.

    folder: keeps results by their keys. workers: processes at work at a time. `spent`: what each
    kind of work took, by the name of its function. `stopped`: whether it was asked to stop.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        import ray

        self.folder, self.workers = folder, workers
        self.spent: dict[str, Spent] = {}
        self.task = ray.remote(num_cpus=1, max_retries=RETRIES)(_done)
        self.kept: set[Path] = set()
        self.left = 0  # results of an earlier job
        self.stopped = False

    def each(
        self, work: Callable[[Any], Any], pieces: Iterable[Any], keys: Keys | None = None
    ) -> Iterator[Any]:
        """Yield `work(piece)` for each piece, in their order; see `nearfar.engine.each`.

        Raises what `work` raises, and ChildProcessError for a piece on which 20 workers died.
        """
        import ray

        name, shared = _name(work), [ray.put(work)]
        ahead: deque[tuple[Path | None, Any]] = deque()
        try:
            for piece in pieces:
                file = self._file(None if keys is None else keys(piece))
                known = None if file is None else self._read(file)
                ahead.append((file, known or self.task.remote(shared, piece)))
                if len(ahead) > AHEAD * self.workers:
                    yield self._result(name, *ahead.popleft())
            while ahead:
                yield self._result(name, *ahead.popleft())
        finally:
            for _, left in ahead:
                if isinstance(left, ray.ObjectRef):
                    ray.cancel(left)

    def _result(self, name: str, file: Path | None, made: Any) -> Any:
        """Return the result of a piece, which is kept if it was made now."""
        import ray

        self.go_on()
        spent = self.spent.get(name, Spent())
        if isinstance(made, dict):
            self.spent[name] = spent._replace(known=spent.known + 1)
            return made
        try:
            result, *own = ray.get(made)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.WorkerCrashedError as error:
            message = f"{RETRIES + 1} workers died on the same piece of {name}"
            raise ChildProcessError(f"{message}: {first_line(error)}") from error
        self.spent[name] = spent.plus(*own)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file) as unfinished:
                np.savez(unfinished, **result)
            self.kept.add(file)
        return result

    def _file(self, key: str | None) -> Path | None:
        return None if key is None else self.folder / f"{key}.npz"

    def _read(self, file: Path) -> dict[str, np.ndarray] | None:
        """Return a result that is kept; None where it is not there, or damaged."""
        if not file.exists():
            return None
        try:
            with np.load(file, allow_pickle=False) as kept:
                result = dict(kept)
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
            log.warning("%s is damaged, and made anew: %s", file, first_line(error)[:200])
            return None
        self.left += file not in self.kept
        self.kept.add(file)
        return result

    def go_on(self) -> None:
        """Raise KeyboardInterrupt where the work was stopped: Python prints and drops it where an
        object is removed at that moment, as those of Ray often are.
        """
        if self.stopped:
            raise KeyboardInterrupt

    def finish(self) -> None:
        """Remove what was kept for a job that is done now, and say how much an earlier one left."""
        if self.left:
            log.info("%d pieces of work were done already, by a job that died", self.left)
        for file in self.kept:
            file.unlink(missing_ok=True)
        with suppress(OSError):  # another job's results are left
            self.folder.rmdir()


def _name(work: Callable[..., Any]) -> str:
    """The name of the function behind a piece of work."""
    while isinstance(work, partial):
        work = work.args[0] if work.func is all_of else work.func
    return getattr(work, "__name__", type(work).__name__).lstrip("_")


_held: dict[str, Callable[[Any], Any]] = {}
"""The work that this worker did last, which has read what its pieces share."""


def _done(shared: list[Any], piece: Any) -> tuple[Any, float, float, float, bool]:
    """In a worker: the result of a piece, the CPU seconds that it took, the most memory, that of
    the worker for itself, and whether it is the first of its work.
    """
    import ray
    import torch

    began = time.process_time()
    torch.set_num_threads(1)
    name = shared[0].hex()
    is_first = name not in _held
    if is_first:
        _held.clear()
        _held[name] = ray.get(shared[0])
    with quietly():  # what it would say, one process says too
        result = _held[name](piece)
    return result, time.process_time() - began, peak_memory(), own_memory(), is_first


@contextmanager
def engine_named(name: str | None, workers: int | None = None) -> Iterator[RayEngine | None]:
    """Let an engine do the work while the context is open; None: this process does it all.

    workers: processes, default: one for each core; the cores of a cluster at $RAY_ADDRESS. One
    thread computes in each, and in this process, so that all numbers are the same. What a job has
    kept is removed when the context ends, but for an error.

    Raises ValueError for another name, workers without an engine, and where Ray is not installed.
    """
    if name is None:
        if workers is not None:
            raise ValueError("`workers` are those of an engine: name it with `engine`")
        yield None
        return
    check_known("engine", name, ["ray"])
    check_range("workers", workers, 1)
    if find_spec("ray") is None:
        raise ValueError(f"the engine ray needs Ray: {INSTALL}")
    with _session(workers) as count, use_threads(1):
        chosen = RayEngine(cache_folder() / digest(b"results of pieces of work"), count)
        with working(chosen), _signals(chosen):
            yield chosen
            chosen.go_on()
        chosen.finish()


@contextmanager
def _signals(engine: RayEngine) -> Iterator[None]:
    """Let Ctrl-C and a request to end (SIGTERM) stop an engine while the context is open."""

    def stop(number: int, frame: Any) -> None:
        engine.stopped = True
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # others get no signals
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _session(workers: int | None) -> Iterator[int]:
    """Ray, running: that of the program, of $RAY_ADDRESS, or else on this machine alone until the
    context ends; yields its number of workers.
    """
    started = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    cluster = ADDRESS in os.environ
    if (started or cluster) and workers is not None:
        raise ValueError("`workers` are those of the Ray that runs already: leave it out")
    with ExitStack() as stack:
        if not started:
            from unittest.mock import patch  # loads much

            known = {} if cluster else ALONE
            stack.enter_context(patch.dict(os.environ, QUIET | known))
            import ray

            options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
            if not cluster:
                folder = TemporaryDirectory(prefix="nearfar-", ignore_cleanup_errors=True)
                options |= {
                    "num_cpus": workers or usable_cores(),
                    "include_dashboard": False,
                    "_node_ip_address": LOCALHOST,
                    "_temp_dir": stack.enter_context(folder),
                }
            with waiting("starting Ray"):
                ray.init(**options)
            stack.callback(ray.shutdown)
        import ray

        yield int(ray.cluster_resources()["CPU"])
