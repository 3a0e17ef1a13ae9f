"""Measuring one job in a fresh process: agreement with float64, peak memory, time. Linux only
(/proc, fork).

The parent imports everything and computes nothing, so that a fork of it is a fresh process with
warm imports.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import re
import resource
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from losses_cases import Case, Shape
from torch import Tensor

MIB = 1 << 20
WARM = 16  # batch of the call that loads kernels and thread pools before memory is measured


def in_fresh_process(
    job: Callable[..., dict], *args, threads: int, memory: int, seconds: float
) -> dict[str, Any]:
    """The job's result, or {"error": why} if it raises, dies, or goes beyond `memory` more bytes or
    `seconds`.
    """
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(send, job, args, threads, memory), daemon=True)
    process.start()
    send.close()
    try:
        if not receive.poll(seconds):
            return {"error": f"stopped after {seconds:.0f} s"}
        return receive.recv()
    except EOFError:
        return {"error": "the process died"}
    finally:
        process.kill()
        process.join()


def _child(
    send: Connection, job: Callable[..., dict], args: tuple, threads: int, memory: int
) -> None:
    torch.set_num_threads(threads)
    limit = _kilobytes("VmData") * 1024 + memory
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        send.send(job(*args))
    except Exception as error:
        send.send({"error": _in_words(error, memory)})


def _in_words(error: Exception, memory: int) -> str:
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, MemoryError) or "allocate memory" in text or "bad_alloc" in text:
        request = re.search(r"allocate (\d+) bytes", text)
        return f"out of memory: above {memory >> 30} GiB" + (
            f" ({int(request[1]) >> 20} MiB at once)" if request else ""
        )
    return f"{type(error).__name__}: {text[:120]}"


def _kilobytes(field: str) -> int:
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith(field)).split()[1])


def step(loss: Callable[..., Tensor], inputs: list[Tensor]) -> float:
    """One forward and backward with fresh gradients; its value."""
    for tensor in inputs:
        tensor.grad = None
    value = loss(*inputs)
    value.backward()
    return float(value.detach())


def agreement(case: Case, shape: Shape) -> dict[str, float]:
    """Relative errors of value and gradient (of all inputs together) against the plain form in
    float64.

    Losses with state are called twice and the second call counts. `factor` is the multiple of the
    reference's gradient that comes nearest, `residual` what is left beside it.
    """
    calls = 1 if shape.queue else 2
    loss, state = case.build(shape), {}
    for seed in range(calls):
        inputs = case.inputs(shape, seed)
        exact = [
            t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t
            for t in inputs
        ]
        value = step(loss, inputs)
        reference = step(lambda *tensors: case.quantity.reference(state, *tensors), exact)
    got = torch.cat(
        [tensor.grad.flatten() for tensor in inputs if tensor.grad is not None]
    ).double()
    want = torch.cat([tensor.grad.flatten() for tensor in exact if tensor.grad is not None])
    factor = float(got @ want / (want @ want))
    return {
        "value_error": abs(value - reference) / abs(reference),
        "gradient_error": float((got - want).norm() / want.norm()),
        "factor": factor,
        "residual": float((got / factor - want).norm() / want.norm()),
    }


def memory(case: Case, shape: Shape) -> dict[str, float]:
    """Peak resident bytes of one forward and backward above inputs and gradients, and the seconds
    it took.

    Freed memory goes back to the system at once here, so that nothing is hidden in it; exact to
    about 1 MiB.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(-3, 64 << 10)  # M_MMAP_THRESHOLD
    torch.mm(torch.ones(1024, 256), torch.ones(256, 1024))
    warm = Shape(max(WARM, case.least_batch), shape.dim, shape.queue and WARM)
    step(case.build(warm), case.inputs(warm))
    loss, inputs = case.build(shape), case.inputs(shape)
    libc.malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")
    before = _kilobytes("VmHWM")
    start = time.perf_counter()
    step(loss, inputs)
    seconds = time.perf_counter() - start
    gradients = sum(tensor.nbytes for tensor in inputs if tensor.grad is not None)
    return {
        "extra_bytes": max(0, (_kilobytes("VmHWM") - before) * 1024 - gradients),
        "seconds": seconds,
    }


def times(
    cases: list[Case], shape: Shape, warm: set[str], budget: float, rounds: tuple[int, int]
) -> dict[str, Any]:
    """Seconds of each case in rounds that visit all cases, until the budget is spent; GEMM FLOP/s
    of each round.

    The cases in `warm` are run once before.
    """
    runs = {case.name: (case.build(shape), case.inputs(shape)) for case in cases}
    samples: dict[str, list[float]] = {name: [] for name in runs}
    gemm: list[float] = []
    least, most = rounds
    began = time.perf_counter()
    for name in warm:
        step(*runs[name])
    while len(gemm) < most and (len(gemm) < least or time.perf_counter() - began < budget):
        gemm.append(gemm_rate())
        for name, (loss, inputs) in runs.items():
            start = time.perf_counter()
            step(loss, inputs)
            samples[name].append(time.perf_counter() - start)
        runs = dict(list(runs.items())[1:] + list(runs.items())[:1])
    return {"samples": samples, "gemm": gemm}


def gemm_rate(size: int = 1536) -> float:
    """FLOP/s of a float32 matrix product of this machine now."""
    a, b = torch.ones(size, size), torch.ones(size, size)
    best = 0.0
    for _ in range(3):
        start = time.perf_counter()
        a @ b
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def on_gpu(batch: int = 65536, dim: int = 128) -> dict[str, Any]:
    """Milliseconds of SimCLR, forward and backward, on bfloat16 rows of the first GPU; empty where
    there is none.
    """
    if not torch.cuda.is_available():
        return {}
    from nearfar.losses import SimCLR

    loss = SimCLR(temperature=0.1)
    views = [
        torch.randn(batch, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(2)
    ]
    samples = []
    for _ in range(8):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step(loss, views)
        torch.cuda.synchronize()
        samples.append(1000 * (time.perf_counter() - start))
    return {"device": torch.cuda.get_device_name(), "milliseconds": sorted(samples[3:])}
