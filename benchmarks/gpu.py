"""Tests and speed on this machine's GPU: `make gpu`, or `python benchmarks/gpu.py`; ten minutes.

1. The tests of tests/standin on the GPU against the CPU: losses, methods, views, optimisers, runs
   and every verb, bit-exact resuming under torch's deterministic algorithms.
2. Images per second in training: the whole step (batches from memory, views, networks, loss,
   optimiser), the bare encoder (forward and backward on views that are ready), and lightly's loop
   where lightly is installed; in float32, TF32, bfloat16 and float16, compiled or not. What the
   time does not allow is left out and named.
3. Views, losses and loading side by side with the CPU.
4. The kernel of the pairs beside its tiles, each with the time that its products take at the peak.

It writes results/gpu.json and, below the marker, gpu.md in the folder --out. `--stand-in` runs all
of it on the tests' stand-in for a GPU, with tiny sizes: that shows that the script works, and its
numbers mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import itertools
import json
import os
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

from nearfar import losses
from nearfar.data import Batches, open_images
from nearfar.device import (
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
from nearfar.training.environment import software
from nearfar.training.optimizers import build_optimizer
from nearfar.training.processes import this_process
from nearfar.training.step import GradientStep
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
    minutes: float = 10.0


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
    "kernel, bfloat16": (torch.bfloat16, "kernel", 1.0, 989e12),
    "kernel, float32 quality": (torch.float32, "kernel", 3.0, 989e12),
    "tiles, float32": (torch.float32, "tiles", 1.0, 67e12),
}
"""Dtype of the embeddings, $NEARFAR_PAIRS, products for one, and operations per second of an H100
or H200 by its data sheet (dense): bfloat16, float32.
"""


def per_second(step: Callable[[], Any], items: int, seconds: float) -> float:
    """Items per second of a step, after two that set everything up; the clock stops when the GPU
    has done its work.
    """
    for _ in range(2):
        step()
    synchronize()
    began, steps = time.perf_counter(), 0
    while steps < 2 or time.perf_counter() - began < seconds:
        step()
        steps += 1
        if steps % 8 == 0:
            synchronize()  # work would queue up beyond the clock
    synchronize()
    return steps * items / (time.perf_counter() - began)


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
            "sgd", self.model, lr=0.01, weight_decay=5e-4, fused=self.how.fused.value
        )
        self.model.train()

    def whole_step(self) -> Callable[[], None]:
        case, gradient_of = self.case, GradientStep(self.process, self.model)
        images, views = random_images(case, 4 * case.batch), plan("saclr-cifar", case.size, 3)
        batches = Batches(images, case.batch, 0, pin=self.how.pinned.value)
        generator = torch.Generator().manual_seed(0)
        coming = (batch for epoch in range(10**9) for batch in batches.epoch(epoch))

        def step() -> None:
            pixels, index = (send(part, self.process.device) for part in next(coming))
            self.optimizer.zero_grad()
            gradient_of(
                lambda rows: make_views(pixels[rows], views, generator, images.mean, images.std),
                index,
                case.batch,
                0,
            )
            self.process.update(self.optimizer)

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


def lightly_step(case: Case, precision: str) -> Callable[[], None]:
    """A plain loop as lightly's documentation has it, on the same networks, with a worker for each
    core.
    """
    from lightly.loss import NTXentLoss
    from lightly.transforms import SimCLRTransform
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset

    training = Training(case, precision, compiled=False)
    pixels = torch.randint(256, (8 * case.batch, case.size, case.size, 3), dtype=torch.uint8)
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

    class Pictures(Dataset):
        def __len__(self) -> int:
            return len(pixels)

        def __getitem__(self, i: int) -> list[Tensor]:
            return transform(Image.fromarray(pixels[i].numpy()))

    workers = len(os.sched_getaffinity(0))
    pin = training.how.pinned.value
    loader = DataLoader(
        Pictures(),
        case.batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=True,
        pin_memory=pin,
    )
    criterion, coming = (
        NTXentLoss(temperature=0.2),
        (views for _ in range(10**9) for views in loader),
    )

    def step() -> None:
        first, second = (send(view, training.process.device) for view in next(coming))
        training.optimizer.zero_grad()
        with training.process.autocast():
            loss = criterion(training.model.online(first), training.model.online(second))
        training.process.backward(loss)
        training.process.update(training.optimizer)

    return step


def speeds(scale: Scale, deadline: float) -> Iterator[dict[str, Any]]:
    """A row for each case and precision; what says least, and compilation, which takes longest,
    come last.
    """
    peers = HALF if importlib.util.find_spec("lightly") else ()
    kinds = {
        "whole step": PRECISIONS,
        "lightly": peers,
        "bare encoder": PRECISIONS,
        "whole step, compiled": HALF,
    }
    rows = [
        (kind, case, precision)
        for kind in kinds
        for case in scale.cases
        for precision in kinds[kind]
    ]
    for kind, case, precision in rows:
        row: dict[str, Any] = {
            **case._asdict(),
            "precision": precision,
            "kind": kind,
            "rate": None,
            "why": "",
        }
        if time.perf_counter() > deadline:
            yield row | {"why": "no time left"}
            continue
        if precision == "bfloat16" and not has_bfloat16(find_device()):
            yield row | {"why": "the device has no bfloat16"}
            continue
        began = time.perf_counter()
        try:
            with products_in_tf32(PRECISIONS[precision][1]):
                if kind == "lightly":
                    step = lightly_step(case, precision)
                else:
                    training = Training(case, precision, "compiled" in kind)
                    step = training.bare_step() if kind == "bare encoder" else training.whole_step()
                row["rate"] = per_second(step, case.batch, scale.seconds)
        except Exception as error:  # a card without enough memory, a compiler that is not there
            row["why"] = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
        yield row | {"seconds": time.perf_counter() - began}


def beside_the_cpu(scale: Scale) -> list[dict[str, Any]]:
    """Views, losses and loading on the GPU and on the CPU: items per second, and the GPU's
    memory.
    """
    device, rows = find_device(), []

    def add(
        title: str,
        items: int,
        make: Callable[[torch.device], Callable[[], Any]],
        on_cpu: bool = True,
    ) -> None:
        cpu = per_second(make(torch.device("cpu")), items, scale.seconds / 2) if on_cpu else None
        gpu = per_second(make(device), items, scale.seconds / 2)
        rows.append({"what": title, "cpu": cpu, "gpu": gpu, "memory": peak_memory(make(device))})

    for case in scale.cases:
        if case.encoder in ("tiny", "small", "resnet50"):
            views = plan("saclr-cifar" if case.size < 64 else "simclr", case.size, 3)
            pixels = torch.randint(256, (case.batch, 3, case.size, case.size), dtype=torch.uint8)

            def of_views(
                place: torch.device, pixels: Tensor = pixels, views: Any = views
            ) -> Callable[[], Any]:
                moved, generator, half = (
                    pixels.to(place),
                    torch.Generator().manual_seed(0),
                    [0.5] * 3,
                )
                return lambda: make_views(moved, views, generator, half, half)

            add(f"views {views.name}, {case.size} px, batch {case.batch}", case.batch, of_views)
            images = random_images(case, 4 * case.batch)

            def of_batches(
                place: torch.device, images: Any = images, batch: int = case.batch
            ) -> Callable[[], Any]:
                batches = Batches(images, batch, 0, pin=setup_of(place, "32-true").pinned.value)
                coming = (part for epoch in range(10**9) for part in batches.epoch(epoch))
                return lambda: next(coming)[0].to(place, non_blocking=True)

            add(f"batches from memory, {case.size} px, batch {case.batch}", case.batch, of_batches)
    for name, build in LOSSES.items():
        for batch in scale.loss_batches + scale.large_batches:

            def of_loss(
                place: torch.device, build: Any = build, batch: int = batch
            ) -> Callable[[], Any]:
                loss, index = build(2 * batch).to(place), torch.arange(batch).to(place)
                z1, z2 = (torch.randn(batch, 128).to(place).requires_grad_() for _ in range(2))
                given = (z1, z2, index) if isinstance(loss, losses.SogCLR) else (z1, z2)
                return lambda: loss(*given).backward()

            add(
                f"loss {name} and its gradient, batch {batch}",
                batch,
                of_loss,
                on_cpu=batch in scale.loss_batches,
            )
    return rows


def of_pairs(scale: Scale) -> Iterator[dict[str, Any]]:
    """Milliseconds of a loss and its gradient by the kernel and by tiles, and the floor of each."""
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
                "floor": 1e3 * visited * 2 * (2 * batch) ** 2 * dim / peak,
                "memory": None,
                "why": "",
            }
            before = os.environ.get(fused.SWITCH)
            os.environ[fused.SWITCH] = switch
            try:
                z1, z2 = (
                    torch.randn(batch, dim).to(device, dtype).requires_grad_() for _ in range(2)
                )
                loss = build().to(device)

                def step(loss: Any = loss, z1: Tensor = z1, z2: Tensor = z2) -> None:
                    loss(z1, z2).backward()

                row["ms"] = 1e3 / per_second(step, 1, scale.seconds / 2)
                row["memory"] = peak_memory(step)
                if switch == "kernel" and not fused.takes(device, dim, torch.float32):
                    row["why"] = "made by tiles: no kernel on this device, or it failed"
            except Exception as error:  # the other rows are measured all the same
                row["why"] = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
            finally:
                if before is None:
                    del os.environ[fused.SWITCH]
                else:
                    os.environ[fused.SWITCH] = before
            yield row


def tested(tests: list[str]) -> dict[str, Any]:
    """Run the tests on the GPU in a process of their own; how many passed, and the names of those
    that failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tests.xml"
        environment = os.environ | {
            "NEARFAR_TEST_DEVICE": "gpu",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        }
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            "not torture",
            *tests,
            f"--junitxml={file}",
        ]
        done = subprocess.run(command, cwd=ROOT, env=environment)
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


def markdown(results: dict[str, Any]) -> str:
    about, rows = results["about"], results["speed"]
    device = about["device"]
    lines = [
        f"`python benchmarks/gpu.py{' --stand-in' if about['stand_in'] else ''}`, {about['date']}:"
    ]
    lines += [
        f"{device['name']}, torch {about['versions']['torch']}, {about['processor']}, "
        f"{about['cores']} cores.",
        "",
    ]
    if about["stand_in"]:
        lines += [
            "**On the stand-in for a GPU, with tiny sizes: no number here says anything "
            "about a GPU.**",
            "",
        ]
    tests = results["tests"]
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
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        key = row["encoder"], f"{row['size']} px", str(row["batch"]), row["precision"]
        cells.setdefault(key, {})[row["kind"]] = (
            f"{row['rate']:.0f}" if row["rate"] else f"- ({row['why']})"
        )
    body = [[*key, *(of.get(kind, "") for kind in kinds)] for key, of in cells.items()]
    lines += [
        "## Images per second in training",
        *table(["encoder", "images", "batch", "precision", *kinds], body),
        "",
    ]
    if not any(row["kind"] == "lightly" for row in rows):
        lines += ["lightly's loop was not measured.", ""]
    body = [
        [
            pair["what"],
            f"{pair['cpu']:.0f}" if pair["cpu"] else "",
            f"{pair['gpu']:.0f}",
            f"{(pair['memory'] or 0) / 2**20:.0f}",
        ]
        for pair in results["beside"]
    ]
    if body:
        head = ["images per second", "CPU", "GPU", "GPU memory at its peak, MiB"]
        lines += ["## Views, loading and losses", *table(head, body), ""]
    body = [
        [
            row["loss"],
            str(row["batch"]),
            row["way"] + (f" ({row['why']})" if row["why"] else ""),
            f"{row['ms']:.2f}" if row["ms"] else "-",
            f"{row['floor']:.2f}",
            f"{(row['memory'] or 0) / 2**20:.0f}",
        ]
        for row in results["pairs"]
    ]
    if body:
        head = ["loss and gradient, dim 128", "images", "by", "ms", "floor, ms", "MiB at the peak"]
        lines += [
            "## Pairs by the kernel and by tiles",
            "The floor is the time of the products at an H100's peak: 989 TFLOP/s in bfloat16, 67 "
            "in float32.",
            "",
            *table(head, body),
            "",
        ]
    return "\n".join(lines)


def run(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the results so far: after the tests, after the comparison with the CPU, and after every
    row.
    """
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
        "speed": [],
        "beside": [],
        "pairs": [],
    }
    if not chosen.without_tests:
        results["tests"] = tested(["tests/standin"])
        yield results
    for row in of_pairs(scale):
        results["pairs"].append(row)
        yield results
    results["beside"] = beside_the_cpu(scale)
    yield results
    for row in speeds(scale, began + 60 * (chosen.minutes or scale.minutes)):
        results["speed"].append(row)
        about["minutes"] = (time.perf_counter() - began) / 60
        rate = f"{row['rate']:.0f} images/s" if row["rate"] else row["why"]
        print(
            f"{row['encoder']}, {row['size']} px, {row['precision']}, {row['kind']}: {rate}",
            flush=True,
        )
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
        "--minutes", type=float, help="time after which nothing more is begun (default 10)"
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
