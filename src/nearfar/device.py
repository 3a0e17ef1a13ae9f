"""The device, its abilities, and the ways a run computes on it: no other file knows kinds of
devices by name.
"""

from __future__ import annotations

import logging
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch

KINDS = ("auto", "cpu", "gpu", "cuda", "mps", "xpu")
"""What a user may ask for: "auto" is the GPU if there is one, else the CPU; "gpu" is a GPU of any
kind.
"""
PINNED = ("cuda", "xpu")
"""Kinds of devices with memory of their own, to which page-locked memory is copied while the CPU
goes on.
"""
SEVERAL = {"cpu": "gloo", "cuda": "nccl"}
"""Kinds of devices on which several processes train one model, and what carries their messages."""


def quiet_compiler() -> None:
    """Keep torch.compile from telling that CUDA's tools lie somewhere, on a machine without a
    GPU.
    """
    if torch.accelerator.current_accelerator(check_available=True) is None:
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)


def find_device(kind: str = "auto") -> torch.device:
    """Return the device that is asked for; raises ValueError for one that this machine does not
    have.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if kind == "cpu" or (kind == "auto" and accelerator is None):
        return torch.device("cpu")
    if accelerator is None or kind not in ("auto", "gpu", accelerator.type):
        has = "the CPU alone" if accelerator is None else f"{accelerator.type} and the CPU"
        raise ValueError(
            f"`accelerator={kind!r}`: torch finds no such device on this machine, but {has}"
        )
    return torch.device(accelerator.type)


def count_gpus() -> int:
    """Return the number of GPUs."""
    return 0 if find_device().type == "cpu" else torch.accelerator.device_count()


def describe_gpu(number: int = 0) -> dict[str, Any]:
    """Return the "name" of a GPU, its "memory" in bytes (None: not known), and whether it has
    bfloat16 and float64.
    """
    device = torch.device(find_device().type, number)
    module = torch.get_device_module(device)
    name, memory = device.type, None
    if device.type == "mps":
        name, memory = "Apple GPU", torch.mps.recommended_max_memory()
    elif hasattr(module, "get_device_properties"):
        properties = module.get_device_properties(number)
        name, memory = properties.name, properties.total_memory
    return {
        "name": name,
        "memory": memory,
        "bfloat16": has_bfloat16(device),
        "float64": has_float64(device),
    }


def gpu_names() -> list[str]:
    """Return the names of the GPUs."""
    return [describe_gpu(number)["name"] for number in range(count_gpus())]


def hardware() -> dict[str, Any]:
    """Return the name of the processor, the number of cores, and the names of the GPUs."""
    cpuinfo = Path("/proc/cpuinfo")
    model = (
        re.search(r"^model name\s*: (.*)$", cpuinfo.read_text(), re.MULTILINE)
        if cpuinfo.exists()
        else None
    )
    return {
        "processor": model[1] if model else platform.processor(),
        "cores": os.cpu_count(),
        "gpus": gpu_names(),
    }


def machine() -> str:
    """Return the GPUs, or the cores where there are none, in words."""
    names = hardware()
    return ", ".join(names["gpus"]) or f"{names['cores']} cores of {names['processor']}"


def one_gpu(number: int) -> dict[str, str]:
    """Return the environment of a process that sees one of several GPUs, the number counted
    around.
    """
    variable = {"cuda": "CUDA_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}.get(find_device().type)
    return {variable: str(number % count_gpus())} if variable and count_gpus() > 1 else {}


def has_bfloat16(device: torch.device) -> bool:
    """Return whether a device has bfloat16, not by emulation: CPUs with AVX-512 or AMX, NVIDIA's
    GPUs from Ampere on.
    """
    if device.type == "cpu":
        return torch.backends.mkldnn.is_available() and bool(
            torch.ops.mkldnn._is_mkldnn_bf16_supported()
        )
    asks = getattr(torch.get_device_module(device), "is_bf16_supported", None)
    return (
        asks(including_emulation=False) if asks is not None else _allocates(device, torch.bfloat16)
    )


def has_float64(device: torch.device) -> bool:
    """Return whether a device computes with float64: Apple's do not, nor do some of Intel's."""
    if device.type == "xpu":
        return bool(torch.xpu.get_device_properties(device).has_fp64)
    return _allocates(device, torch.float64)


def compiles_kernels(device: torch.device) -> bool:
    """Return whether our kernels in Triton are for a device: NVIDIA's GPUs from Ampere on."""
    return device.type == "cuda" and torch.version.hip is None and _has_bfloat16(device)


@cache
def _has_bfloat16(device: torch.device) -> bool:
    return has_bfloat16(device)


@cache
def has_warpgroups(device: torch.device) -> bool:
    """Return whether four warps of a GPU multiply matrices together, as on NVIDIA's Hopper."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in (9, 10)


def _allocates(device: torch.device, dtype: torch.dtype) -> bool:
    try:
        torch.empty(1, dtype=dtype, device=device)
    except (TypeError, RuntimeError):
        return False
    return True


def in_float64(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64, on the CPU where its own device has none."""
    return tensor.double() if has_float64(tensor.device) else tensor.cpu().double()


def half_precision(device: torch.device) -> Literal["bf16-mixed", "16-mixed"] | None:
    """Return the mixed precision of a device: bfloat16; else float16 with a scaled gradient on a
    GPU, None on a CPU.
    """
    return "bf16-mixed" if has_bfloat16(device) else None if device.type == "cpu" else "16-mixed"


def check_precision(device: torch.device, precision: str) -> None:
    """Raise ValueError for a precision that a device does not have, not even by emulation."""
    if precision == "bf16-mixed" and not _allocates(device, torch.bfloat16):
        raise ValueError(
            f"`precision={precision!r}`: {device.type} has no bfloat16 on this machine; use "
            "16-mixed"
        )


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor of the CPU on a device, without waiting for the work that was given to the
    device before.

    torch's `tensor.to(device)` waits for all of it, and so does `torch.tensor([...],
    device=device)`. Memory that is not page-locked is copied aside at once, so that it may change
    afterwards; not so for Apple's devices.
    """
    return tensor.to(device, non_blocking=tensor.device.type == "cpu" and device.type != "mps")


def captures(device: torch.device) -> bool:
    """Return whether the launches of some work can be captured as a graph: on NVIDIA's GPUs."""
    module = torch.get_device_module(device)
    return torch.version.hip is None and hasattr(module, "CUDAGraph")


@runtime_checkable
class Graph(Protocol):
    """Launches that were captured, with their memory and their numbers of Python."""

    def replay(self) -> None:
        """Launch them all again, in the stream of the caller."""
        ...


class SideStream:
    """A stream of a GPU beside the usual one, as a graph needs for its warm-up and its capture."""

    def __init__(self, device: torch.device) -> None:
        self.module = torch.get_device_module(device)
        self.stream = self.module.Stream()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Launch in this stream for a while, after all that was launched before, and before all
        that comes.
        """
        usual = self.module.current_stream()
        self.stream.wait_stream(usual)
        with self.module.stream(self.stream):
            yield
        usual.wait_stream(self.stream)

    def capture(self, work: Callable[[], None]) -> Graph:
        """Capture what some work launches, which is not done yet; raises what torch does where that
        is not possible.

        Other threads, such as those that gather batches, may go on meanwhile.
        """
        graph: Graph = self.module.CUDAGraph()
        with self.module.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            work()
        return graph


class Draws:
    """Random numbers that a step draws on the CPU, noted while the step is captured and drawn
    again before each replay.

    A graph holds launches alone: without this, a sample that the CPU draws and sends would be that
    of the first step for ever. On the device itself random numbers are those of the step's first
    seed.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._again: list[Callable[[int], object]] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note what `seed_generators` and `draw` do while the context is open."""
        global _noting
        _noting = self
        try:
            yield
        finally:
            _noting = None

    def again(self, seed: int) -> None:
        """Seed and draw as the step with another seed does; new numbers replace the old ones."""
        for work in self._again:
            work(seed - self.seed)

    def note_seed(self, seed: int) -> None:
        """Note a seed; the device's generator must not be touched during a capture."""
        torch.default_generator.manual_seed(seed)
        seeded_with = torch.default_generator.manual_seed if self._again else torch.manual_seed
        self._again.append(lambda shift: seeded_with(seed + shift))

    def note_sample(self, sample: Callable[[], torch.Tensor], device: torch.device) -> torch.Tensor:
        """Note a sample, and return the place on the device where its numbers will lie."""
        place = torch.empty_like(sample(), device=device)
        self._again.append(lambda shift: place.copy_(sample(), non_blocking=True))
        return place


_noting: Draws | None = None


def seed_generators(seed: int) -> None:
    """Seed torch's generators of the CPU and of the GPUs for a part of a step."""
    if _noting is not None:
        _noting.note_seed(seed)
    elif torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # torch would note where this was called, for each kind of GPU that is not there
        torch.default_generator.manual_seed(seed)


def draw(sample: Callable[[], torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return on a device the random numbers that `sample` draws on the CPU; of one shape each
    time.
    """
    if _noting is None or device.type == "cpu":
        return send(sample(), device)
    return _noting.note_sample(sample, device)


class Choice(NamedTuple):
    """A decision and its reason."""

    value: bool
    reason: str


class Setup(NamedTuple):
    """Way of computing on a device in a precision.

    channels_last: the memory format of convolutions. fused: torch's optimisers as one kernel.
    pinned: batches in page-locked memory. compiled: by torch.compile. captured: steps as a graph
    that is replayed.
    """

    channels_last: Choice
    fused: Choice
    pinned: Choice
    compiled: Choice
    captured: Choice


def setup_of(device: torch.device, precision: str) -> Setup:
    """Return how a run computes on a device in a precision, which is one of `Settings`."""
    compiled = Choice(
        False,
        "slow to start: pretrain tries it where a run takes ten minutes or more (docs/step.md)",
    )
    if device.type == "cpu":
        return Setup(
            channels_last=Choice(False, "within the noise on CPUs (docs/step.md)"),
            fused=Choice(False, "the optimiser takes below 1 % of a step on CPUs (docs/step.md)"),
            pinned=Choice(False, "batches are in the CPU's memory already"),
            compiled=compiled,
            captured=Choice(False, "launches cost a CPU little"),
        )
    half, scaled, pins = precision != "32-true", precision == "16-mixed", device.type in PINNED
    return Setup(
        channels_last=Choice(
            half and pins, "tensor cores take half precision in this format, on GPUs that have them"
        ),
        fused=Choice(
            not scaled, "one kernel in place of many, except where a scaled gradient may be clipped"
        ),
        pinned=Choice(pins, "copied while the CPU goes on, if the GPU has memory of its own"),
        compiled=compiled,
        captured=Choice(
            not scaled and captures(device),
            "one launch in place of hundreds, on GPUs that have graphs, except where a scaled "
            "gradient is read back",
        ),
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an operation failed for want of memory: Apple's devices and CPUs raise a plain
    RuntimeError.
    """
    text = str(error)
    return (
        isinstance(error, torch.OutOfMemoryError)
        or "can't allocate memory" in text
        or "out of memory" in text
    )


@contextmanager
def seeded(device: torch.device | str, seed: int) -> Iterator[None]:
    """Give torch's global generators, of the CPU and of the device, a seed for a while."""
    device = torch.device(device)
    gpu = None if device.type == "cpu" else torch.get_device_module(device)
    number = (
        torch.accelerator.current_device_index() if gpu and device.index is None else device.index
    )
    with torch.random.fork_rng([number] if gpu else [], device_type=device.type):
        torch.default_generator.manual_seed(
            seed
        )  # torch.manual_seed would reach generators that are not put back
        if gpu:
            with torch.accelerator.device_index(number):
                gpu.manual_seed(seed)
        yield


def free_memory(device: torch.device) -> int | None:
    """Return the free bytes of a device's memory; None for the CPU and where it does not say."""
    module = None if device.type == "cpu" else torch.get_device_module(device)
    ask = getattr(module, "mem_get_info", None)
    try:
        return None if ask is None else int(ask(device)[0])
    except RuntimeError:  # some of Intel's have no such count
        return None


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if count_gpus():
        torch.get_device_module(find_device()).synchronize()


def peak_memory(work: Callable[[], object]) -> int | None:
    """Do some work and return the bytes of the GPU's memory at its peak, above those in use before.

    None, and nothing is done, where there is no GPU or it does not count them.
    """
    module = torch.get_device_module(find_device())
    if not hasattr(module, "max_memory_allocated"):
        return None
    module.reset_peak_memory_stats()
    before = module.memory_allocated()
    work()
    return int(module.max_memory_allocated() - before)
