"""Tests and speed on this machine's GPU: `make gpu`, or `python benchmarks/gpu.py`; ten minutes.

1. The tests of tests/standin on the GPU against the CPU: losses, methods, views, optimisers, captured
   steps, runs and every verb, bit-exact resuming under torch's deterministic algorithms; at most
   two fifths of the time.
2. The kernel of the pairs beside its tiles; views, losses and loading beside the CPU; the step of each
   optimiser.
3. Images per second in training: the bare encoder (forward and backward on views that are ready), the
   whole step (batches from memory, views, networks, loss, optimiser), both captured as CUDA graphs
   and launch by launch, a loop of plain PyTorch, and lightly's where it is installed; in float32,
   TF32, bfloat16 and float16, compiled or not.

Each row has the clock's time and, beside it, the device's between two of its events (median of the
steps), its floor, and its ratio to the captured bare encoder of the same case. A row that fails, or
takes longer than a minute, is recorded with the reason, and the rest goes on; what the time does
not allow is left out and named.

It writes results/gpu.json and, below the marker, gpu.md in the folder --out. `--stand-in` runs all
of it on the tests' stand-in for a GPU, with tiny sizes: that shows that the script works, and its
numbers mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import importlib.util
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from nearfar import losses
from nearfar.data import Batches, open_images
from nearfar.device import (
    SideStream,
    captures,
    describe_gpu,
    find_device,
    hardware,
    has_bfloat16,
    peak_memory,
    send,
    setup_of,
    synchronize,
)
from nearfar.methods import Model, method_class
from nearfar.networks import build_backbone
from nearfar.pairs import fused
from nearfar.training.capture import SWITCH, WARM_UP, TrainingStep
from nearfar.training.environment import software
from nearfar.training.loop import batches_from, sample_ahead, view_maker
from nearfar.training.optimizers import build_optimizer, set_rates
from nearfar.training.processes import this_process
from nearfar.training.resident import ResidentImages, keep_resident
from nearfar.training.settings import Settings
from nearfar.training.views_ahead import ViewsAhead
from nearfar.views import make_views, plan

ROOT = Path(__file__).resolve().parent.parent
MARKER = "<!-- Below: written by benchmarks/gpu.py -->"
PRECISIONS = {  # precision of a run, and whether products of float32 may be of TF32
    "float32": ("32-true", False),
    "TF32": ("32-true", True),
    "bfloat16": ("bf16-mixed", True),
    "float16": ("16-mixed", True),
}
HALF = ("bfloat16",)
PEAK = {"float32": 67e12, "TF32": 495e12, "bfloat16": 989e12, "float16": 989e12}
"""Operations per second of an H100 or H200 by its data sheet (dense)."""
BANDWIDTH = 3.35e12
"""Bytes per second of an H100's memory."""
ROW_SECONDS = 60.0
"""A row that takes longer is given up."""
TESTS_SHARE = 0.4
"""Of the time, for the tests, at most."""


class Case(NamedTuple):
    encoder: str
    size: int  # pixels
    batch: int


class Scale(NamedTuple):
    cases: tuple[Case, ...]
    seconds: float  # of each measurement
    loss_batches: tuple[int, ...]
    large_batches: tuple[int, ...]  # on the GPU alone
    kernel_batches: tuple[int, ...] = (4096, 65536)
    minutes: float = 9.5
    workers: int | None = None  # of the loops of others; None: one for each core


FULL = Scale(
    (
        Case("small", 32, 512),
        Case("medium", 32, 512),
        Case("resnet18", 32, 512),
        Case("small", 96, 512),
        Case("resnet18", 96, 256),
        Case("resnet18", 224, 128),
        Case("resnet50", 96, 256),
        Case("resnet50", 224, 128),
    ),
    seconds=1.5,
    loss_batches=(256, 4096),
    large_batches=(65536,),
)
TINY = Scale(
    (Case("tiny", 16, 8), Case("small", 20, 8)),
    seconds=0.0,
    loss_batches=(16,),
    large_batches=(32,),
    kernel_batches=(16,),
    workers=0,
)
LOSSES: dict[str, Callable[[int], nn.Module]] = {
    "SimCLR": lambda images: losses.SimCLR(),
    "SACLR": lambda images: losses.SACLR(images),
    "SigCLR": lambda images: losses.SigCLR(),
    "SogCLR": lambda images: losses.SogCLR(images),
    "VICReg": lambda images: losses.VICReg(),
}


KERNEL_LOSSES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "SimCLR": (losses.SimCLR, 3),
    "SigCLR": (losses.SigCLR, 2),
    "SACLR, all negatives": (lambda: losses.SACLR(1, "matrix", "all"), 2),
}
"""Losses, and how many times the kernel multiplies all pairs: thrice where their weights are known
after the sums alone.
"""
WAYS = {
    "kernel, bfloat16": (torch.bfloat16, "kernel", 1.0, PEAK["bfloat16"]),
    "kernel, float32 quality": (torch.float32, "kernel", 3.0, PEAK["bfloat16"]),
    "tiles, float32": (torch.float32, "tiles", 1.0, PEAK["float32"]),
}
"""Dtype of the embeddings, $NEARFAR_PAIRS, products for one, and the peak."""
OPTIMIZERS = {"sgd": 5, "adamw": 7, "lars": 7, "muon": 7}
"""And how often a step reads or writes as many numbers as there are weights, at least."""


class Speed(NamedTuple):
    rate: float  # items per second by the clock
    device_ms: float | None  # of a step, between two events of the device; None on a CPU


def measured(
    step: Callable[[], Any], items: int, seconds: float, place: torch.device | None = None
) -> Speed:
    """The speed of a step, after some that set everything up; the clock stops when the GPU has done
    its work.

    The device's time is the median of the steps: where the CPU is late it holds the waiting too.
    """
    place = find_device() if place is None else place
    event = getattr(torch.get_device_module(place), "Event", None) if place.type != "cpu" else None
    for _ in range(WARM_UP + 2):
        step()
    synchronize()
    began, steps, pairs = time.perf_counter(), 0, []
    while steps < 2 or time.perf_counter() - began < seconds:
        if event is None:
            step()
        else:
            first, last = event(enable_timing=True), event(enable_timing=True)
            first.record()
            step()
            last.record()
            pairs.append((first, last))
        steps += 1
        if steps % 8 == 0:
            synchronize()  # work would queue up beyond the clock
    synchronize()
    rate = steps * items / (time.perf_counter() - began)
    times = [first.elapsed_time(last) for first, last in pairs]
    return Speed(rate, statistics.median(times) if times else None)


def captured(step: Callable[[], Any]) -> Callable[[], Any]:
    """The same step as a graph that is replayed, where the GPU has graphs."""
    device = find_device()
    if not captures(device):
        return step
    side = SideStream(device)
    with side.used():
        for _ in range(WARM_UP):
            step()
    return side.capture(step).replay


class TimeIsUp(Exception):
    """A row took too long."""


@contextlib.contextmanager
def recorded(row: dict[str, Any], deadline: float) -> Iterator[None]:
    """Measure a row: one that fails, or takes too long, holds the reason as "why"."""

    def end(number: int, frame: Any) -> None:
        raise TimeIsUp(f"took longer than {seconds:.0f} s")

    began = time.perf_counter()
    seconds = min(ROW_SECONDS, deadline - began)
    if seconds <= 0:
        row["why"] = "no time left"
    before = signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1.0))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Exception as error:  # a card without enough memory, a compiler that is not there
        row["why"] = row["why"] or (str(error).strip().splitlines() or [type(error).__name__])[0]
        row["why"] = row["why"][:120]
    finally:
        signal.signal(signal.SIGALRM, before)
    row["seconds"] = time.perf_counter() - began


@functools.cache
def operations(encoder: str, size: int) -> float:
    """Floating-point operations of an image in forward and backward of the bare encoder, counted."""
    backbone = build_backbone(encoder, image_size=size, channels=3)
    online = Model(method_class("simclr")(), backbone, 8).online.to("meta")
    images = torch.empty(2, 3, size, size, device="meta")
    with FlopCounterMode(display=False) as counter:
        online(images).sum().backward()
    return counter.get_total_flops() / 2


@contextlib.contextmanager
def chosen_by(variable: str, value: str | None) -> Iterator[None]:
    """Set a variable of the environment for a while; None leaves it out."""
    before = os.environ.pop(variable, None)
    if value is not None:
        os.environ[variable] = value
    try:
        yield
    finally:
        os.environ.pop(variable, None)
        if before is not None:
            os.environ[variable] = before


@contextlib.contextmanager
def products_in_tf32(allowed: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def random_images(case: Case, count: int) -> Any:
    made = torch.randint(256, (count, 3, case.size, case.size), dtype=torch.uint8)
    return open_images(made, image_size=case.size, channels=3)


class Training:
    """The networks of SimCLR on the GPU as `nearfar pretrain` sets them up."""

    def __init__(self, case: Case, precision: str, compiled: bool) -> None:
        torch.manual_seed(0)
        self.case, self.process = case, this_process("auto", PRECISIONS[precision][0])  # type: ignore[arg-type]
        self.model = Model(
            method_class("simclr")(),
            build_backbone(case.encoder, image_size=case.size, channels=3),
            4 * case.batch,
        )
        self.how = setup_of(self.process.device, PRECISIONS[precision][0])
        self.model.to(self.process.device)
        if self.how.channels_last.value:
            self.model.to(memory_format=torch.channels_last)
        if compiled:
            self.model.compile_networks()
        self.optimizer = build_optimizer(
            "sgd",
            self.model,
            lr=0.01,
            weight_decay=5e-4,
            fused=self.how.fused.value,
            on_device=self.how.captured.value,
        )
        self.model.train()

    def whole_step(self) -> Callable[[], None]:
        """Steps as the training loop takes them: its batches, its views, its step."""
        case, process = self.case, self.process
        images, views = random_images(case, 4 * case.batch), plan("saclr-cifar", case.size, 3)
        settings = Settings(image_size=case.size, batch_size=case.batch, seed=0)
        take_step = TrainingStep(process, self.model, self.optimizer, case.batch)
        batches = Batches(images, case.batch, 0, pin=self.how.pinned.value)
        ahead = sample_ahead(process, batches, images, views, settings)
        resident = keep_resident(images, process.device)
        coming = enumerate(batches_from(batches, 0, process.device, resident))

        def step() -> None:
            number, (pixels, index) = next(coming)
            set_rates(self.optimizer, 0.01, 0.01)
            views_of = view_maker(process, pixels, images, views, settings, number, ahead)
            take_step(views_of, index, number, 0.0, 1.0)

        return step

    def bare_step(self) -> Callable[[], None]:
        ready = torch.randn(
            2 * self.case.batch, 3, self.case.size, self.case.size, device=self.process.device
        )

        def step() -> None:
            self.optimizer.zero_grad()
            with self.process.autocast():
                out = self.model.online(ready)
            self.process.backward(out.float().square().mean())

        return step


def loop_of_others(
    case: Case,
    precision: str,
    transform: Callable[[Any], Any],
    criterion: Callable[[Tensor, Tensor], Tensor],
    workers: int,
) -> Callable[[], None]:
    """A plain loop with views by workers, image by image, on the same networks."""
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset

    training = Training(case, precision, compiled=False)
    pixels = torch.randint(256, (8 * case.batch, case.size, case.size, 3), dtype=torch.uint8)

    class Pictures(Dataset):
        def __len__(self) -> int:
            return len(pixels)

        def __getitem__(self, i: int) -> list[Tensor]:
            return transform(Image.fromarray(pixels[i].numpy()))

    loader = DataLoader(
        Pictures(),
        case.batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=training.how.pinned.value,
    )
    coming = (views for _ in range(10**9) for views in loader)

    def step() -> None:
        first, second = (send(view, training.process.device) for view in next(coming))
        training.optimizer.zero_grad()
        with training.process.autocast():
            loss = criterion(training.model.online(first), training.model.online(second))
        training.process.backward(loss)
        training.process.update(training.optimizer)

    return step


def lightly_step(case: Case, precision: str, workers: int) -> Callable[[], None]:
    """A loop as lightly's documentation has it."""
    from lightly.loss import NTXentLoss
    from lightly.transforms import SimCLRTransform

    transform = SimCLRTransform(
        input_size=case.size,
        cj_bright=0.4,
        cj_contrast=0.4,
        cj_sat=0.4,
        cj_hue=0.1,
        min_scale=0.2,
        random_gray_scale=0.1,
        gaussian_blur=0.0,
    )
    return loop_of_others(case, precision, transform, NTXentLoss(temperature=0.2), workers)


def torch_step(case: Case, precision: str, workers: int) -> Callable[[], None]:
    """A loop of plain PyTorch: torchvision's transforms and the loss as its formula reads."""
    from torchvision.transforms import v2

    augment = v2.Compose(
        [
            v2.RandomResizedCrop(case.size, scale=(0.2, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
            v2.RandomGrayscale(0.1),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.25] * 3),
        ]
    )

    def nt_xent(first: Tensor, second: Tensor) -> Tensor:
        z = nn.functional.normalize(torch.cat([first, second]).float())
        batch = len(first)
        similar = (z @ z.T / 0.2).fill_diagonal_(float("-inf"))
        target = torch.arange(2 * batch, device=z.device).roll(batch)
        return nn.functional.cross_entropy(similar, target)

    return loop_of_others(
        case, precision, lambda image: [augment(image), augment(image)], nt_xent, workers
    )


KINDS = {
    "bare encoder": tuple(PRECISIONS),
    "whole step": tuple(PRECISIONS),
    "whole step, not captured": HALF,
    "bare encoder, not captured": HALF,
    "torch's loop": HALF,
    "lightly": HALF,
    "whole step, compiled": HALF,
}
"""What is measured in which precisions; what the others are compared with comes first, what says
least, and compilation, which takes longest, come last.
"""


def step_of(kind: str, case: Case, precision: str, workers: int) -> Callable[[], Any]:
    """The step of a row, set up."""
    if kind == "torch's loop":
        return torch_step(case, precision, workers)
    if kind == "lightly":
        return lightly_step(case, precision, workers)
    training = Training(case, precision, "compiled" in kind)
    if "bare" not in kind:
        return training.whole_step()
    bare = training.bare_step()
    return bare if "not captured" in kind else captured(bare)


def speeds(scale: Scale, deadline: float) -> Iterator[dict[str, Any]]:
    """A row for each case, precision and kind."""
    workers = len(os.sched_getaffinity(0)) if scale.workers is None else scale.workers
    bare: dict[tuple[Case, str], float] = {}
    for kind, precisions in KINDS.items():
        if kind == "lightly" and importlib.util.find_spec("lightly") is None:
            continue
        for case, precision in itertools.product(scale.cases, precisions):
            row: dict[str, Any] = {
                **case._asdict(),
                "precision": precision,
                "kind": kind,
                "rate": None,
                "device_ms": None,
                "floor_ms": None,
                "ratio": None,
                "why": "",
            }
            plain = "plain" if "not captured" in kind else None
            with (
                recorded(row, deadline),
                products_in_tf32(PRECISIONS[precision][1]),
                chosen_by(SWITCH, plain),
            ):
                if row["why"]:
                    raise TimeIsUp
                if precision == "bfloat16" and not has_bfloat16(find_device()):
                    raise ValueError("the device has no bfloat16")
                work = 2 * case.batch * operations(case.encoder, case.size)
                row["floor_ms"] = 1e3 * work / PEAK[precision]
                step = step_of(kind, case, precision, workers)
                row["rate"], row["device_ms"] = measured(step, case.batch, scale.seconds)
                if kind == "bare encoder":
                    bare[case, precision] = row["rate"]
                if (case, precision) in bare:
                    row["ratio"] = row["rate"] / bare[case, precision]
            yield row


Make = Callable[[torch.device], Callable[[], Any]]


class Beside(NamedTuple):
    """Work that is measured on the GPU and on the CPU."""

    title: str
    items: int
    make: Make  # from a device to a step
    floor_ms: float | None  # None: of the CPU's work
    on_cpu: bool = True


def views_and_batches(case: Case) -> Iterator[Beside]:
    """Views of a batch, and batches from memory to the device."""
    views = plan("saclr-cifar" if case.size < 64 else "simclr", case.size, 3)
    pixels = torch.randint(256, (case.batch, 3, case.size, case.size), dtype=torch.uint8)
    images, half = random_images(case, 4 * case.batch), [0.5] * 3
    where = f"{case.size} px, batch {case.batch}"

    def of_views(place: torch.device) -> Callable[[], Any]:
        moved, generator = pixels.to(place), torch.Generator().manual_seed(0)
        return lambda: make_views(moved, views, generator, half, half)

    def of_sampling(place: torch.device) -> Callable[[], Any]:
        rows, sizes = slice(0, case.batch), [(case.size, case.size)] * len(views)
        pin = setup_of(place, "32-true").pinned.value
        ahead = ViewsAhead(views, 0, case.batch, rows, sizes, place, is_cropped=False, pin=pin)
        steps = itertools.count()
        return lambda: ahead.take(next(steps))

    def of_batches(place: torch.device) -> Callable[[], Any]:
        batches = Batches(images, case.batch, 0, pin=setup_of(place, "32-true").pinned.value)
        coming = (part for epoch in range(10**9) for part in batches.epoch(epoch))
        return lambda: next(coming)[0].to(place, non_blocking=True)

    def of_resident(place: torch.device) -> Callable[[], Any]:
        batches, held = Batches(images, case.batch, 0), ResidentImages(images, place)
        coming = (index for epoch in range(10**9) for index in batches.positions(epoch))
        return lambda: held.take(send(next(coming), place))

    made = pixels.numel() * (1 + 4 * len(views.views))  # bytes read and written
    yield Beside(f"views {views.name}, {where}", case.batch, of_views, 1e3 * made / BANDWIDTH)
    yield Beside(f"their parameters, sampled ahead, {where}", case.batch, of_sampling, None)
    yield Beside(
        f"batches from memory, {where}", case.batch, of_batches, 1e3 * pixels.numel() / 63e9
    )
    read_and_written = 2e3 * pixels.numel() / BANDWIDTH
    yield Beside(f"batches of resident images, {where}", case.batch, of_resident, read_and_written)


def all_beside(scale: Scale) -> Iterator[Beside]:
    """Everything that is measured on the CPU too; losses of large batches on the GPU alone."""
    for case in scale.cases:
        if case.encoder in ("tiny", "small", "resnet50"):
            yield from views_and_batches(case)
    for (name, build), batch in itertools.product(
        LOSSES.items(), scale.loss_batches + scale.large_batches
    ):

        def of_loss(
            place: torch.device, build: Any = build, batch: int = batch
        ) -> Callable[[], Any]:
            loss, index = build(2 * batch).to(place), torch.arange(batch).to(place)
            z1, z2 = (torch.randn(batch, 128).to(place).requires_grad_() for _ in range(2))
            given = (z1, z2, index) if isinstance(loss, losses.SogCLR) else (z1, z2)
            return lambda: loss(*given).backward()

        title = f"loss {name} and its gradient, batch {batch}"
        bytes_of_rows = 4 * 2 * batch * 128 * 2  # embeddings read, gradient written
        floor = 1e3 * bytes_of_rows / BANDWIDTH
        yield Beside(title, batch, of_loss, floor, on_cpu=batch in scale.loss_batches)


def beside_the_cpu(scale: Scale, deadline: float) -> Iterator[dict[str, Any]]:
    """Views, losses and loading on the GPU and on the CPU: items per second, and the GPU's
    memory. The floor is the time of their bytes, over the memory's bandwidth or PCIe's 63 GB/s.
    """
    device, cpu = find_device(), torch.device("cpu")
    for work in all_beside(scale):
        row: dict[str, Any] = {
            "what": work.title,
            "cpu": None,
            "gpu": None,
            "device_ms": None,
            "floor_ms": work.floor_ms,
            "memory": None,
            "why": "",
        }
        with recorded(row, deadline):
            if row["why"]:
                raise TimeIsUp
            step = work.make(device)
            row["gpu"], row["device_ms"] = measured(step, work.items, scale.seconds / 2)
            row["memory"] = peak_memory(step)
            if work.on_cpu:
                on_cpu = measured(work.make(cpu), work.items, scale.seconds / 2, cpu)
                row["cpu"] = on_cpu.rate
        yield row


def of_optimizers(scale: Scale, deadline: float) -> Iterator[dict[str, Any]]:
    """Milliseconds of the step of each optimiser, launch by launch and as a graph; the floor is the
    time of its bytes.
    """
    encoders = list(dict.fromkeys((case.encoder, case.size) for case in scale.cases[:3]))
    for (encoder, size), name in itertools.product(encoders, OPTIMIZERS):
        for is_captured in (True, False):
            row: dict[str, Any] = {
                "encoder": encoder,
                "optimizer": name,
                "captured": is_captured,
                "ms": None,
                "device_ms": None,
                "floor_ms": None,
                "why": "",
            }
            with recorded(row, deadline):
                if row["why"]:
                    raise TimeIsUp
                training = Training(Case(encoder, size, 2), "float32", False)
                net = training.model.online
                for weights in net.parameters():
                    weights.grad = torch.full_like(weights, 1e-3)
                numbers = sum(weights.numel() for weights in net.parameters())
                row["floor_ms"] = 1e3 * 4 * OPTIMIZERS[name] * numbers / BANDWIDTH
                optimizer = build_optimizer(
                    name, net, lr=1e-3, weight_decay=1e-4, fused=True, on_device=True
                )
                for group in optimizer.param_groups:
                    if "capturable" in group:
                        group["capturable"] = is_captured
                step = captured(optimizer.step) if is_captured else optimizer.step
                rate, row["device_ms"] = measured(step, 1, scale.seconds / 2)
                row["ms"] = 1e3 / rate
            yield row


def of_pairs(scale: Scale, deadline: float) -> Iterator[dict[str, Any]]:
    """Milliseconds of a loss and its gradient by the kernel and by tiles, and the floor of each:
    the time of the products at the peak.
    """
    device, dim = find_device(), 128
    for (name, (build, visits)), batch in itertools.product(
        KERNEL_LOSSES.items(), scale.kernel_batches
    ):
        for way, (dtype, switch, products, peak) in WAYS.items():
            # tiles visit a pair once for both of its rows
            visited = visits * products if switch == "kernel" else 2 * visits / 3
            row: dict[str, Any] = {
                "loss": name,
                "batch": batch,
                "way": way,
                "ms": None,
                "device_ms": None,
                "floor": 1e3 * visited * 2 * (2 * batch) ** 2 * dim / peak,
                "memory": None,
                "why": "",
            }
            with recorded(row, deadline), chosen_by(fused.KERNEL.switch, switch):
                if row["why"]:
                    raise TimeIsUp
                z1, z2 = (
                    torch.randn(batch, dim).to(device, dtype).requires_grad_() for _ in range(2)
                )
                loss = build().to(device)

                def step(loss: Any = loss, z1: Tensor = z1, z2: Tensor = z2) -> None:
                    loss(z1, z2).backward()

                rate, row["device_ms"] = measured(step, 1, scale.seconds / 2)
                row["ms"] = 1e3 / rate
                row["memory"] = peak_memory(step)
                if switch == "kernel" and not fused.takes(device, dim, torch.float32):
                    row["why"] = "made by tiles: no kernel on this device, or it failed"
            yield row


def tested(tests: list[str], seconds: float) -> dict[str, Any]:
    """Run the tests on the GPU in processes of their own; how many passed, and the names of those
    that failed. After so many seconds they are stopped.
    """
    side_by_side = max(1, min(4, len(os.sched_getaffinity(0)) // 4))
    several = side_by_side > 1 and importlib.util.find_spec("xdist") is not None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tests.xml"
        environment = os.environ | {
            "NEARFAR_TEST_DEVICE": "gpu",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        }
        command = [
            *(sys.executable, "-m", "pytest", "-m", "not torture", *tests),
            *(["-n", str(side_by_side)] if several else []),
            f"--junitxml={file}",
        ]
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, timeout=seconds)
        except subprocess.TimeoutExpired:
            return {"error": f"the tests took longer than {seconds:.0f} s and were stopped"}
        if not file.is_file():
            return {"error": f"pytest ended with code {done.returncode} and no report"}
        suite = next(xml.etree.ElementTree.parse(file).getroot().iter("testsuite"))
        bad = [
            case
            for case in suite.iter("testcase")
            if case.find("failure") is not None or case.find("error") is not None
        ]
        failed = [
            f"{case.get('classname', '').rpartition('.')[2]}: {case.get('name')}" for case in bad
        ]
    return {
        "run": int(suite.get("tests", 0)),
        "failed": failed,
        "seconds": float(suite.get("time", 0)),
    }


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def number(value: float | None, digits: int = 2) -> str:
    """A number as a cell; a dash for none."""
    return "-" if value is None else f"{value:.{digits}f}"


def named(title: str, row: dict[str, Any]) -> str:
    """A row's title, with the reason where it failed or is not what it seems."""
    return f"{title} ({row['why']})" if row["why"] else title


def mebibytes(row: dict[str, Any]) -> str:
    """A row's peak of memory as a cell."""
    return f"{(row['memory'] or 0) / 2**20:.0f}"


def head_of(results: dict[str, Any]) -> list[str]:
    """The machine that it ran on, and the tests."""
    about, tests = results["about"], results["tests"]
    lines = [
        f"`python benchmarks/gpu.py{' --stand-in' if about['stand_in'] else ''}`, {about['date']}:",
        f"{about['device']['name']}, torch {about['versions']['torch']}, {about['processor']}, "
        f"{about['cores']} cores.",
        "",
    ]
    if about["stand_in"]:
        lines += [
            "**On the stand-in for a GPU, with tiny sizes: no number here says anything "
            "about a GPU.**",
            "",
        ]
    if tests is not None:
        summary = (
            tests.get("error") or f"{tests['run'] - len(tests['failed'])} of {tests['run']} passed"
        )
        lines += [
            "## Tests on the GPU against the CPU",
            summary,
            *(f"- failed: {name}" for name in tests.get("failed", [])),
            "",
        ]
    return lines


def tables(results: dict[str, Any]) -> Iterator[tuple[str, str, list[str], list[list[str]]]]:
    """Title, note, head and cells of each table."""
    head = ["encoder", "images", "batch", "precision", "what", "images/s", "device, ms"]
    cells = [
        [
            row["encoder"],
            f"{row['size']} px",
            str(row["batch"]),
            row["precision"],
            named(row["kind"], row),
            number(row["rate"], 0),
            number(row["device_ms"]),
            number(row["floor_ms"], 3),
            number(row["ratio"]),
        ]
        for row in results["speed"]
    ]
    note = (
        "The ratio is that to the captured bare encoder of the same case; the floor the time of the "
        "encoder's products at an H100's peak."
    )
    yield "Images per second in training", note, [*head, "floor, ms", "ratio"], cells
    cells = [
        [
            named(row["what"], row),
            number(row["cpu"], 0),
            number(row["gpu"], 0),
            number(row["device_ms"]),
            number(row["floor_ms"], 4),
            mebibytes(row),
        ]
        for row in results["beside"]
    ]
    head = ["images per second", "CPU", "GPU", "device, ms", "floor, ms", "MiB at the peak"]
    note = "The floor is the time of the bytes, at 3.35 TB/s of memory or 63 GB/s of PCIe."
    yield "Views, loading and losses", note, head, cells
    cells = [
        [
            row["encoder"],
            named(row["optimizer"], row),
            "a graph" if row["captured"] else "launch by launch",
            number(row["ms"]),
            number(row["device_ms"]),
            number(row["floor_ms"], 4),
        ]
        for row in results["optimizers"]
    ]
    head = ["encoder", "optimiser", "as", "ms", "device, ms", "floor, ms"]
    yield "The step of an optimiser", "The floor is the time of the bytes.", head, cells
    cells = [
        [
            row["loss"],
            str(row["batch"]),
            named(row["way"], row),
            number(row["ms"]),
            number(row["device_ms"]),
            number(row["floor"]),
            mebibytes(row),
        ]
        for row in results["pairs"]
    ]
    head = ["loss and gradient, dim 128", "images", "by", "ms", "device, ms", "floor, ms"]
    note = (
        "The floor is the time of the products at an H100's peak: 989 TFLOP/s in bfloat16, 67 in "
        "float32."
    )
    yield "Pairs by the kernel and by tiles", note, [*head, "MiB at the peak"], cells


def markdown(results: dict[str, Any]) -> str:
    lines = head_of(results)
    for title, note, head, cells in tables(results):
        if cells:
            lines += [f"## {title}", note, "", *table(head, cells), ""]
    if not any(row["kind"] == "lightly" for row in results["speed"]):
        lines += ["lightly's loop was not measured.", ""]
    return "\n".join(lines)


def run(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the results so far: after the tests, and after every row."""
    scale, began = TINY if chosen.stand_in else FULL, time.perf_counter()
    kind = find_device().type
    if kind == "cpu":
        raise SystemExit("torch finds no GPU here; --stand-in runs this script without one")
    about = {
        "date": str(datetime.date.today()),
        "stand_in": chosen.stand_in,
        "kind": kind,
        "device": describe_gpu(),
    }
    about |= {**hardware(), **software()}
    results: dict[str, Any] = {
        "about": about,
        "tests": None,
        "pairs": [],
        "beside": [],
        "optimizers": [],
        "speed": [],
    }
    seconds = 60 * (chosen.minutes or scale.minutes)
    if not chosen.without_tests:
        results["tests"] = tested(["tests/standin"], TESTS_SHARE * seconds)
        yield results
    parts = {
        "pairs": of_pairs,
        "beside": beside_the_cpu,
        "optimizers": of_optimizers,
        "speed": speeds,
    }
    for name, part in parts.items():
        for row in part(scale, began + seconds):
            results[name].append(row)
            about["minutes"] = (time.perf_counter() - began) / 60
            print(f"{about['minutes']:5.2f} min {name}: {json.dumps(row)}", flush=True)
            yield results


def write(results: dict[str, Any], out: Path) -> None:
    (out / "results").mkdir(parents=True, exist_ok=True)
    (out / "results" / "gpu.json").write_text(json.dumps(results, indent=1) + "\n")
    page = out / "gpu.md"
    before = page.read_text().split(MARKER)[0] if page.exists() else "# On a GPU\n\n"
    page.write_text(f"{before}{MARKER}\n\n{markdown(results)}")


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--stand-in", action="store_true", help="run on the tests' stand-in for a GPU, tiny"
    )
    parser.add_argument("--without-tests", action="store_true", help="measure only")
    parser.add_argument(
        "--minutes",
        type=float,
        help="time for all of it, after which nothing more is begun (default 9.5)",
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs", help="folder for gpu.md and results/gpu.json"
    )
    chosen = parser.parse_args(given)
    # pytest runs them on the stand-in anyway
    chosen.without_tests = chosen.without_tests or chosen.stand_in
    with contextlib.ExitStack() as stack:
        if chosen.stand_in:
            sys.path.insert(0, str(ROOT))
            from tests.standin.device import available

            stack.enter_context(available())
        for results in run(chosen):  # written each time, as a machine may be lent for a while
            write(results, chosen.out)
    if results["tests"] and (results["tests"].get("error") or results["tests"]["failed"]):
        raise SystemExit("tests failed on the GPU: see the list in gpu.md")


if __name__ == "__main__":
    main()
