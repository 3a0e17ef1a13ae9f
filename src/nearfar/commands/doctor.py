"""The command that looks at the installation and the machine.

nearfar doctor
nearfar doctor --empty-cache
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import timeit
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from nearfar.atomic import check_folder
from nearfar.isolation import isolated
from nearfar.progress import log

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from nearfar.training.model_size import ModelChoice

SIDE = 32  # pixels of the images of the speed test
LITTLE = 2**30  # bytes
SLOW = 10.0
"""Times that a convolution may take of a matrix product with as many multiplications: reference
kernels take 50 and up, those of oneDNN one to three.
"""
DEVELOPERS = ("test", "benchmarks", "docs")
"""Extras that no run needs."""


@isolated()
def doctor(*, empty_cache: bool = False) -> dict[str, Any]:
    """Look at the installation and the machine: versions, hardware, speed, caches, and whether a
    run would work.

    On the command line the exit code is 1 where a run would not work.

    Args:
        empty_cache: remove the decoded images in nearfar's cache; they are decoded again when they
            are needed.

    Returns:
        "versions" by package, None for one that is missing; "extras": the same by the name of the
        extra. "processor", "cores" that may be used, "capability": the widest arithmetic that torch
        uses on it; "memory", "total" and "available"; "gpus", each with "name", "memory",
        "bfloat16" and "float64". "device": the kind that a run takes; "setup": how it computes
        there, each "value" with its "reason". "precision": what "auto" takes; "images_per_second"
        of the small net at 32 px, in training, with a "reason" for the precision. "convolutions":
        milliseconds of one on the CPU in "float32" and "bfloat16", and of a "product" as large.
        "cache": its "folder", its "data_sets", the "bytes" that it takes, the bytes "free" on its
        disk and those "freed" now. "notes", and "problems": what keeps a run from working and what
        to do about it. All sizes in bytes.

    >>> "cores" in nearfar.doctor()
    True
    """
    import torch

    from nearfar.data import cache
    from nearfar.data.resources import machine_memory, usable_cores
    from nearfar.device import count_gpus, describe_gpu, find_device, hardware, setup_of

    kept = _cache(empty_cache)
    problems = [*_wrong_versions(), *_unwritable(kept["folder"])]
    trial = None
    try:
        trial = _measured()
        if not trial.rate:
            problems.append("there is not enough memory for a step of the small net")
    except (ValueError, RuntimeError) as error:
        problems.append(f"{error}; where there is a GPU, try `accelerator='cpu'`")
    gpus = [describe_gpu(number) for number in range(count_gpus())]
    kernels, device = _kernels(), find_device()
    notes = []
    if shutil.which("nvidia-smi") and not gpus:
        notes.append(
            f"there may be a GPU, but torch {torch.__version__} cannot use it: install the "
            f"one for its driver"
        )
    if kept["free"] < LITTLE:
        notes.append(f"only {_size(kept['free'])} are free for the cache; {cache.ELSEWHERE}")
    notes += _slow_kernels(kernels)
    if "OMP_NUM_THREADS" in os.environ:
        notes.append(
            f"OMP_NUM_THREADS sets the number of torch's threads, {torch.get_num_threads()}"
        )
    setup = setup_of(device, trial.precision if trial else "32-true")
    findings: dict[str, Any] = {
        **_versions(),
        "processor": hardware()["processor"],
        "cores": usable_cores(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "memory": machine_memory(),
        "gpus": gpus,
        "device": device.type,
        "setup": {name: choice._asdict() for name, choice in setup._asdict().items()},
        "precision": trial and trial.precision,
        "images_per_second": trial and trial.rate,
        "reason": trial and trial.reason.removeprefix(", "),
        "convolutions": kernels,
        "cache": kept,
        "notes": notes,
        "problems": problems,
    }
    for line in _lines(findings):
        log.info("%s", line)
    return findings


def _cache(empty: bool) -> dict[str, Any]:
    """Return the cache of decoded images as `doctor` does, emptied if asked for."""
    from nearfar.data import cache
    from nearfar.data.table import cache_folder

    folder = cache_folder()
    freed = cache.empty(folder) if empty else 0
    sizes = cache.sizes(folder)
    return {
        "folder": folder,
        "data_sets": sum(map(Path.is_dir, sizes)),
        "bytes": sum(sizes.values()),
        "free": shutil.disk_usage(_existing(folder)).free,
        "freed": freed,
    }


def _existing(folder: Path) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    return next(place for place in (folder, *folder.parents) if place.exists())


def _versions() -> dict[str, Any]:
    """Return "versions" and "extras" as `doctor` does."""
    from nearfar.training.environment import version_of

    installed = [
        (extra, requirement.name, version_of(requirement.name))
        for extra, requirement in _requirements()
    ]
    versions: dict[str, str | None] = {
        "python": platform.python_version(),
        "nearfar": version_of("nearfar"),
    }
    extras: dict[str, dict[str, str | None]] = {}
    for extra, name, version in sorted(installed, key=lambda package: package[0]):
        (extras.setdefault(extra, {}) if extra else versions)[name] = version
    return {"versions": versions, "extras": extras}


def _wrong_versions() -> Iterator[str]:
    """Name the packages that are missing or of a version that does not do."""
    from nearfar.training.environment import version_of

    for extra, requirement in _requirements():
        version = version_of(requirement.name)
        if not extra and not (
            version and requirement.specifier.contains(version, prereleases=True)
        ):
            state = f"{version} is not {requirement.specifier}" if version else "is missing"
            pinned = f"{requirement.name}{requirement.specifier}"
            yield f"{requirement.name} {state}: pip install '{pinned}'"


def _unwritable(cached: Path) -> Iterator[str]:
    """Name the folders that cannot be written: this one, and that of the cache."""
    from nearfar.data import cache

    for place, instead in (
        (Path.cwd(), "run in another folder, or give `out`"),
        (_existing(cached), cache.ELSEWHERE),
    ):
        try:
            check_folder(place)
        except OSError as error:
            yield f"{error}; {instead}"


def _slow_kernels(kernels: dict[str, float]) -> Iterator[str]:
    """Name the types whose convolutions are slow on this processor."""
    import torch

    from nearfar.device import has_bfloat16

    for kind in ["float32", "bfloat16"] if has_bfloat16(torch.device("cpu")) else ["float32"]:
        if (times := kernels[kind] / kernels["product"]) > SLOW:
            yield (
                f"a convolution in {kind} takes {times:.0f} times as long as a matrix product of "
                f"its size: torch {torch.__version__} falls back to a reference kernel on this "
                "processor; try another version, or the other `precision`"
            )


def _measured() -> ModelChoice:
    """Return what pretrain chooses for small images, by the measurement that it makes itself."""
    from nearfar.training.facts import Facts
    from nearfar.training.model_size import Candidate, choose_model
    from nearfar.training.request import resolve_method
    from nearfar.training.settings import Settings
    from nearfar.training.trial import Trials

    given = Settings(encoder="small")
    method, _ = resolve_method(given)
    facts = Facts.of_machine(given, images=0, side=SIDE, channels=3, seconds=0.0)
    return choose_model(
        given, facts, Trials(given, method), candidates=[Candidate("small", SIDE, SIDE)]
    )


def _kernels() -> dict[str, float]:
    """Milliseconds on the CPU of a convolution in either type, and of a product of matrices as
    large; the best of 7.
    """
    import torch

    images, weights = torch.randn(32, 64, 16, 16), torch.randn(64, 64, 3, 3)
    half, kernel = images.bfloat16(), weights.bfloat16()
    rows, columns = torch.randn(32 * 16 * 16, 64 * 9), torch.randn(64 * 9, 64)
    work = {
        "float32": lambda: torch.conv2d(images, weights, padding=1),
        "bfloat16": lambda: torch.conv2d(half, kernel, padding=1),
        "product": lambda: rows @ columns,
    }
    return {name: 1000 * min(timeit.repeat(run, number=1, repeat=7)) for name, run in work.items()}


def _requirements() -> Iterator[tuple[str, Requirement]]:
    """Yield the packages that nearfar needs, and those of an extra with its name before; none for
    an uninstalled source.
    """
    from packaging.requirements import Requirement

    try:
        metadata = importlib.metadata.metadata("nearfar")
    except importlib.metadata.PackageNotFoundError:
        return
    extras = ["", *metadata.get_all("Provides-Extra", [])]
    for line in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(line)
        wanted = [
            extra
            for extra in extras
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        ]
        if wanted and wanted[0] not in DEVELOPERS:
            yield wanted[0], requirement


def _lines(findings: dict[str, Any]) -> Iterator[str]:
    shown = {
        name: findings["versions"].get(name)
        for name in ("nearfar", "python", "torch", "torchvision", "timm")
    }
    yield "versions   " + ", ".join(
        f"{name} {version or 'missing'}" for name, version in shown.items()
    )
    for name, packages in findings["extras"].items():
        yield f"optional   {name}: " + (
            f"pip install 'nearfar[{name}]'" if None in packages.values() else "there"
        )
    yield (
        f"processor  {findings['processor']}, {findings['cores']} cores to use, "
        f"{findings['capability']}"
    )
    yield (
        f"memory     {_size(findings['memory']['available'])} of "
        f"{_size(findings['memory']['total'])} available"
    )
    for gpu in findings["gpus"]:
        lacks = [f", without {kind}" for kind in ("bfloat16", "float64") if not gpu[kind]]
        yield f"GPU        {gpu['name']}, {_size(gpu['memory'])}{''.join(lacks)}"
    if not findings["gpus"]:
        yield "GPU        none"
    if findings["precision"] is not None:
        yield f"precision  {findings['reason']}"
        yield (
            f"speed      {findings['images_per_second']:.0f} images/s: the small net on "
            f"images of {SIDE} px, in training"
        )
    times = ", ".join(
        f"{name} {milliseconds:.1f} ms" for name, milliseconds in findings["convolutions"].items()
    )
    yield (
        f"kernels    convolution on the CPU: {times.replace('product', 'matrix product as large')}"
    )
    yield f"device     {findings['device']}"
    for name, entry in findings["setup"].items():
        yield (
            f"           {name.replace('_', ' ')}: {'yes' if entry['value'] else 'no'}, "
            f"{entry['reason']}"
        )
    cache = findings["cache"]
    held = f"{_size(cache['bytes'])} in {cache['data_sets']} data sets, {_size(cache['free'])} free"
    yield f"cache      {cache['folder']}: {held}"
    if cache["freed"]:
        yield f"           {_size(cache['freed'])} were freed"
    if cache["data_sets"]:
        yield "           `nearfar.doctor(empty_cache=True)` empties it"
    yield from (f"note       {note}" for note in findings["notes"])
    yield from (f"problem    {problem}" for problem in findings["problems"])
    if not findings["problems"]:
        yield "a run would work"


def _size(count: int | None) -> str:
    return "unknown" if count is None else decimal(count)
