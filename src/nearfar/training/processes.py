"""The processes that train a model: what each is, and how several meet and end, started by torchrun
or by the first of them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from multiprocessing.connection import wait
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing import (
    ProcessContext,
    ProcessExitedException,
    ProcessRaisedException,
    start_processes,
)

from nearfar.device import SEVERAL, check_precision, find_device
from nearfar.messages import worded
from nearfar.training.settings import Precision
from nearfar.training.stopping import handled, hangup

HALF = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
MOST_PROCESSES = 8  # on a CPU with fewer cores: each holds a model and takes seconds to start
TIMEOUT = timedelta(minutes=30)  # a process that waits longer than this for another gives up
PATIENCE = 5.0  # seconds for a process to end, or to tell its own error
RAISES = ("gloo",)  # backends that raise an error where a process is lost; NCCL's would hang
_LOST = ("closed by peer", "reset by peer", "Timed out", "timeout", "Broken pipe")
T = TypeVar("T")


class ProcessLost(RuntimeError):
    """A process of the run died, and the others were stopped."""


@dataclass(frozen=True)
class Process:
    """One of the processes that train a model: its number, its device, and how it computes there.

    rank: from 0 to `world_size` - 1; 0 writes the run folder. listens: whether signals ask this
    one to stop.
    """

    device: torch.device
    precision: Precision = "32-true"
    rank: int = 0
    world_size: int = 1
    listens: bool = True

    @property
    def is_first(self) -> bool:
        """Return whether this process writes the run folder."""
        return self.rank == 0

    @cached_property
    def scaler(self) -> torch.amp.GradScaler:
        """Return what scales gradients for float16; it does nothing in other precisions."""
        return torch.amp.GradScaler(self.device.type, enabled=self.precision == "16-mixed")

    def autocast(self) -> AbstractContextManager[None]:
        """Let networks compute in half precision while the context is open, if the run does."""
        if self.precision == "32-true":
            return nullcontext()
        return torch.autocast(self.device.type, HALF[self.precision])

    def backward(self, loss: Tensor) -> None:
        """Compute the gradient of a loss, scaled for float16."""
        self.scaler.scale(loss).backward()

    def update(self, optimizer: torch.optim.Optimizer, clip: float | None = None) -> None:
        """Take the optimiser's step, with a gradient of at most the norm `clip`; none where float16
        did not hold the gradient.
        """
        if clip is not None:
            self.scaler.unscale_(optimizer)
            groups = [group["params"] for group in optimizer.param_groups]
            nn.utils.clip_grad_norm_([weight for group in groups for weight in group], clip)
        self.scaler.step(optimizer)
        self.scaler.update()

    def broadcast(self, value: T) -> T:
        """Return the value of the first process; every process must call it."""
        if self.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, 0)
        return values[0]


def this_process(accelerator: str, precision: Precision, world_size: int = 1) -> Process:
    """Return this process as the one that torchrun says it is, or as the first of so many.

    Raises ValueError for a device that this machine does not have, or that has no such precision.
    """
    device = find_device(accelerator)
    check_precision(device, precision)
    rank, number = (int(os.environ[key]) if by_torchrun() else 0 for key in ("RANK", "LOCAL_RANK"))
    return Process(_numbered(device, number), precision, rank, world_size)


def _numbered(device: torch.device, number: int) -> torch.device:
    return device if device.type == "cpu" else torch.device(device.type, number)


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


def check_machine(accelerator: str, precision: Precision, devices: int) -> None:
    """Raise ValueError for devices that this machine does not have, and for a precision that they
    do not.
    """
    device = find_device(accelerator)
    check_precision(device, precision)
    if devices > 1 and device.type not in SEVERAL:
        raise ValueError(
            f"`devices={devices}`: several processes do not train on {device.type}; use "
            "`accelerator='cpu'`"
        )
    here = int(os.environ["LOCAL_WORLD_SIZE"]) if by_torchrun() else devices
    if device.type != "cpu" and here > (count := torch.accelerator.device_count()):
        raise ValueError(f"{here} processes need as many GPUs, and this machine has {count}")
    most = max(MOST_PROCESSES, os.cpu_count() or 1)
    if device.type == "cpu" and devices > most and not by_torchrun():
        raise ValueError(
            f"`devices={devices}` are too many processes for {os.cpu_count()} cores: at most {most}"
        )


@contextmanager
def meeting(process: Process, store: dist.Store | None = None) -> Iterator[None]:
    """Meet the other processes of a run, compute with them, and leave them, all together.

    store: where they meet. Default: where torchrun's do.
    """
    if process.device.type != "cpu":
        torch.accelerator.set_device_index(process.device)
    if process.world_size == 1 or dist.is_initialized():  # by a program of the user's own
        yield
        return
    backend = SEVERAL[process.device.type]
    if store is None:
        dist.init_process_group(backend, timeout=TIMEOUT)
    else:
        dist.init_process_group(
            backend,
            store=store,
            rank=process.rank,
            world_size=process.world_size,
            timeout=TIMEOUT,
        )
    whole = False
    try:
        yield
        dist.barrier()
        whole = True
    finally:
        if whole or backend in RAISES:  # others would wait for the lost one
            dist.destroy_process_group()


@contextmanager
def followers(first: Process, work: Callable[[Process], None], folder: str) -> Iterator[dist.Store]:
    """Start the other processes of a run on this machine, of which this is the first.

    Yields the store in which they meet; each then calls `work`. They end with the context and with
    this process, and signals that ask a run to stop reach this one alone. Raises what torch does
    where one of them fails (see `lost_in_one_line`).

    folder: of the run, for a message.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    exact = torch.are_deterministic_algorithms_enabled()
    with handled([signal.SIGINT, *hangup()], signal.SIG_IGN):  # which new processes inherit
        given = (work, first, store.port, exact)
        count = first.world_size - 1
        context = start_processes(_follow, given, count, join=False, start_method="spawn")
    assert context is not None
    left = threading.Event()
    threading.Thread(target=_watch, args=(context, left, folder), daemon=True).start()
    patience = 0.0
    try:
        _all_here(store, context)
        try:
            yield store
        except RuntimeError as error:
            if _is_lost(error):
                _until_one_fails(context)  # which raises why
            raise
        while not context.join():
            pass
    except Exception:
        patience = PATIENCE
        raise
    finally:
        left.set()
        _end(context, patience)


def _follow(
    index: int, work: Callable[[Process], None], first: Process, port: int, exact: bool
) -> None:
    """Take part in the run of the process that started this one."""
    _end_with_parent()
    torch.use_deterministic_algorithms(exact)
    rank = index + 1
    process = replace(first, device=_numbered(first.device, rank), rank=rank, listens=False)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
    store.add("here", 1)
    with meeting(process, store):
        work(process)


def _end_with_parent() -> None:
    """Let this process end with the one that started it, however that ends: it alone owns the run
    folder.
    """
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, name="nearfar-parent", daemon=True).start()


def _all_here(store: dist.Store, context: ProcessContext) -> None:
    """Wait until all processes that were started have read what they need."""
    try:
        while store.add("here", 0) < len(context.processes):
            context.join(0.02)
    except ProcessExitedException as error:
        raise ProcessLost(
            f"process {error.error_index + 2} could not start (exit code {error.exit_code}); "
            'a script must have its calls under if __name__ == "__main__":'
        ) from error


def _until_one_fails(context: ProcessContext) -> None:
    """Wait a while for the process that is lost to fail; raises what torch says of it."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and not context.join(0.1):
        pass


def _end(context: ProcessContext, patience: float) -> None:
    """End processes, those that end by themselves within so many seconds first."""
    until = time.monotonic() + patience
    for process in context.processes:
        process.join(max(0.0, until - time.monotonic()))
    for process in context.processes:
        process.kill()
        process.join()


def _watch(context: ProcessContext, left: threading.Event, folder: str) -> None:
    """End this process, with one line, where it waits for ever for another one that is lost.

    NCCL waits on the GPU, where no error and no signal reaches it.
    """
    numbers = {process.sentinel: 2 + index for index, process in enumerate(context.processes)}
    lost = numbers[wait(list(numbers))[0]]
    if left.wait(PATIENCE) or (dist.is_initialized() and dist.get_backend() in RAISES):
        return
    message = worded(f"process {lost} of {1 + len(numbers)} has ended; {_resume(folder)}")
    print(f"nearfar: {message}", file=sys.stderr, flush=True)
    for process in context.processes:
        process.kill()
    os._exit(1)


@contextmanager
def lost_in_one_line(devices: int, folder: str) -> Iterator[None]:
    """Turn the ways in which other processes end into a ProcessLost that says in one line what
    happened and what to do.
    """
    try:
        yield
    except ProcessExitedException as error:
        ending = error.signal_name or f"exit code {error.exit_code}"
        raise ProcessLost(
            f"process {error.error_index + 2} of {devices} ended with {ending}, the others "
            f"were stopped; {_resume(folder)}"
        ) from error
    except ProcessRaisedException as error:
        last = str(error).strip().splitlines()[-1]
        raise ProcessLost(
            f"process {error.error_index + 2} of {devices} failed: {last}; {_resume(folder)}"
        ) from error
    except RuntimeError as error:
        if devices > 1 and _is_lost(error):
            raise ProcessLost(
                f"another of the {devices} processes has ended or does not answer; "
                f"{_resume(folder)}"
            ) from error
        raise


def _resume(folder: str) -> str:
    return (
        f"resume from the last checkpoint, if there is one, with: `nearfar.resume({str(folder)!r})`"
    )


def _is_lost(error: RuntimeError) -> bool:
    plain = type(error) is RuntimeError  # gloo's
    return isinstance(error, dist.DistError) or (
        plain and any(sign in str(error) for sign in _LOST)
    )
