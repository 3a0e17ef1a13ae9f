"""Processes of this machine as an engine, for work in which Python itself takes much part: threads
would wait for each other, since Python runs one of them at a time.

joblib starts the processes, hands them the pieces and notices one that dies. They end with the
work.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nearfar.data.readers import quietly
from nearfar.data.resources import usable_cores
from nearfar.engine import Keys, engine, working

ONE_PROCESS: ContextVar[bool] = ContextVar("ONE_PROCESS", default=False)
"""Whether no process may be started, such as where one is confined."""


@contextmanager
def in_processes(count: int, least: int) -> Iterator[None]:
    """Let a process for each core do the work on so many things while the context is open, where
    there are at least `least`, and no other engine works.
    """
    cores = usable_cores()
    if count < least or cores == 1 or engine() is not None or ONE_PROCESS.get():
        yield
        return
    from joblib.externals.loky import get_reusable_executor

    try:
        with working(_Processes(cores)):
            yield
    finally:
        get_reusable_executor().shutdown(wait=True, kill_workers=True)


class _Processes:
    """Does pieces of work in processes, each of which computes by one thread; keeps nothing."""

    def __init__(self, count: int) -> None:
        self.count = count

    def each(
        self, work: Callable[[Any], Any], pieces: Iterable[Any], keys: Keys | None = None
    ) -> Iterator[Any]:
        """Yield `work(piece)` for each piece, in their order; see `nearfar.engine.each`.

        Raises what `work` raises, and ChildProcessError where a process dies.
        """
        import cloudpickle
        from joblib import Parallel, delayed
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        with TemporaryDirectory(prefix="nearfar-") as folder:
            file = Path(folder) / "work"  # read once by each process, however many the pieces are
            file.write_bytes(cloudpickle.dumps(work))  # of classes of a notebook, too
            parallel = Parallel(
                n_jobs=self.count,
                backend="loky",
                return_as="generator",
                batch_size=1,
                pre_dispatch="3 * n_jobs",
                max_nbytes=None,
            )
            try:
                yield from parallel(delayed(_done)(str(file), piece) for piece in pieces)
            except TerminatedWorkerError as error:
                raise ChildProcessError(
                    "a process that this one had started died, perhaps for want of memory"
                ) from error


_held: dict[str, Callable[[Any], Any]] = {}
"""The work that this process did last, by its file."""


def _done(file: str, piece: Any) -> Any:
    """In a process of the engine: the result of a piece."""
    if file not in _held:
        import torch

        torch.set_num_threads(1)
        _held.clear()
        _held[file] = pickle.loads(Path(file).read_bytes())
    with quietly():
        return _held[file](piece)
