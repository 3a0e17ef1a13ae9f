"""Around a run on several processes: who started them, how they are stopped, and how their end is
told.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType

import torch
import torch.distributed as dist
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

TIMEOUT = timedelta(minutes=30)  # a process that waits longer than this for another gives up
PATIENCE = 5.0  # seconds for another process to tell its own error
_LOST = ("closed by peer", "reset by peer", "Timed out", "timeout", "Broken pipe")


class ProcessLost(RuntimeError):
    """A process of the run died, and the others were stopped."""


def by_torchrun() -> bool:
    """Return whether torchrun started this process, perhaps with others."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_follower() -> bool:
    """Return whether torchrun started this process behind a first one, which prepares the run and
    tells what it is.
    """
    return by_torchrun() and int(os.environ["RANK"]) > 0


def world_size(devices: int | None) -> int:
    """Return how many processes a run has: `devices`, or all that torchrun started.

    Raises ValueError where the two disagree.
    """
    if not by_torchrun():
        if (devices or 1) > 1 and getattr(multiprocessing.current_process(), "_inheriting", False):
            raise RuntimeError(
                "new processes read the script again: put its calls under if __name__ == "
                '"__main__":'
            )
        return 1 if devices is None else devices
    world = int(os.environ["WORLD_SIZE"])
    if devices not in (None, world):
        raise ValueError(
            f"torchrun started {world} processes, but `devices` is {devices}; omit `devices`"
        )
    return world


def check_processes(
    devices: int, batch_size: int, micro_batch: int | str | None, sync_batch_norm: bool
) -> None:
    """Raise ValueError for settings that do not go together on that many processes."""
    if batch_size < devices:
        raise ValueError(
            f"`batch_size` counts the images of all processes: {batch_size} are too few "
            f"for {devices}"
        )
    if devices > 1 and micro_batch == "auto":
        raise ValueError("`micro_batch='auto'` works with one process; give a number of images")
    if devices > 1 and micro_batch is not None and sync_batch_norm:
        raise ValueError(
            "`sync_batch_norm` needs the whole batch at once: omit it, or `micro_batch`"
        )


@contextmanager
def stopped_together() -> Iterator[None]:
    """Pass Ctrl-C on to the processes that this one started, so that they agree to stop; a second
    one ends them.
    """
    stop_requested = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal stop_requested
        if stop_requested and number not in _hangup():
            raise KeyboardInterrupt
        stop_requested = True
        for process in multiprocessing.active_children():
            if process.pid is not None:
                os.kill(process.pid, signal.SIGINT)

    try:
        with handled(_asking(), ask):
            yield
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise


@contextmanager
def leave_process_group() -> Iterator[None]:
    """Leave the group of processes at the end, all together.

    One that loses another waits, so that the error of that one is told first.
    """
    try:
        yield
        if dist.is_initialized():
            dist.barrier()
    except RuntimeError as error:
        if _is_lost(error):
            time.sleep(PATIENCE)
        raise
    finally:
        if (
            dist.is_initialized() and dist.get_backend() == "gloo"
        ):  # NCCL's would wait for the lost one
            dist.destroy_process_group()


@contextmanager
def translate_errors(devices: int, folder: str) -> Iterator[None]:
    """Turn the ways in which processes end into a ProcessLost that says in one line what happened
    and what to do.
    """
    go_on = (
        f"resume from the last checkpoint, if there is one, with: `nearfar.resume({str(folder)!r})`"
    )
    try:
        yield
    except ProcessExitedException as error:
        if error.signal_name == "SIGINT":  # Ctrl-C before the processes were ready to agree on it
            raise KeyboardInterrupt from error
        ending = error.signal_name or f"exit code {error.exit_code}"
        raise ProcessLost(
            f"process {error.error_index + 1} of {devices} ended with {ending}, the others "
            f"were stopped; {go_on}"
        ) from error
    except ProcessRaisedException as error:
        last = str(error).strip().splitlines()[-1]
        raise ProcessLost(
            f"process {error.error_index + 1} of {devices} failed: {last}; {go_on}"
        ) from error
    except RuntimeError as error:
        if devices > 1 and _is_lost(error):
            raise ProcessLost(
                f"another of the {devices} processes has ended or does not answer; {go_on}"
            ) from error
        raise


def _is_lost(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or any(sign in str(error) for sign in _LOST)


Handler = Callable[[int, FrameType | None], None]


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


def _asking() -> list[signal.Signals]:
    """Return the signals that ask a run to stop."""
    return [signal.SIGINT, signal.SIGTERM, *_hangup()]


def _hangup() -> list[signal.Signals]:
    """Return the signal of a terminal that is closed, unless the run was told to ignore it, as by
    nohup.
    """
    hangup = getattr(signal, "SIGHUP", None)  # there is none on Windows
    return [] if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN else [hangup]


def _leave_terminal() -> None:
    """Write nothing more to a terminal that is gone: every line would be an error, and the
    checkpoint not be saved.
    """
    for number in (1, 2):
        if stat.S_ISCHR(os.fstat(number).st_mode):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def end_with_parent() -> None:
    """Let this process, which another one started, end with it, however that ends: it alone owns
    the run folder.
    """
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, name="nearfar-parent", daemon=True).start()


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Make the first SIGTERM or SIGHUP a KeyboardInterrupt, as Ctrl-C is, so that a run cleans up;
    ignore others then.

    `StopRequest` and `stopped_together` take their place while a run trains.
    """
    own, signals = os.getpid(), [signal.SIGTERM, *_hangup()]

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


def check_hook(on_metrics: object, devices: int | None) -> None:
    """Raise ValueError for a hook that cannot be given to processes that are started here."""
    if on_metrics is None or devices in (None, 1) or by_torchrun():
        return
    try:
        pickle.dumps(on_metrics)
    except Exception as error:
        raise ValueError(
            f"on_metrics is called in another process with `devices={devices}`: give a function "
            f"of a module ({type(error).__name__})"
        ) from error


class StopRequest:
    """The first SIGINT, SIGTERM or SIGHUP, while `listening`, as a request to stop that all
    processes agree on.

    A terminal that closes asks as often as it likes; the second of the others is a
    KeyboardInterrupt. In a process that nearfar started itself, SIGINT (from the terminal, the
    parent or both) is never more than a request, and SIGTERM ends it at once: so the parent can end
    one that waits for a process that is lost.
    """

    def __init__(self) -> None:
        self._asked = False
        self._spawned = multiprocessing.parent_process() is not None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals in the `with` block."""
        with handled([signal.SIGINT, *_hangup()] if self._spawned else _asking(), self._ask):
            yield

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if number in _hangup():
            _leave_terminal()
        elif self._asked and not self._spawned:
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
