"""Look at the installation and the machine: versions, hardware, speed, caches, and whether a run would work.

nearfar doctor
nearfar doctor --empty-cache
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from rich.console import Console

    from nearfar.training.budget import Machine

SIDE = 32  # pixels of the images of the speed test
LITTLE = 2**30  # bytes
FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
"""Of x86 and ARM, the widest arithmetic that torch has kernels for, and bfloat16."""
DEVELOPERS = ("test", "benchmarks", "docs")
"""Extras that no run needs."""


def doctor(*, empty_cache: bool = False, console: Console | None = None) -> dict[str, Any]:
    """Look at the installation and the machine: versions, hardware, speed, caches, and whether a run would work.

    On the command line the exit code is 1 where a run would not work.

    Args:
        empty_cache: remove the decoded images in nearfar's cache; they are decoded again when they are needed.
        console: where it is shown.

    Returns:
        "versions" by package, None for one that is missing; "extras": by name their "versions", and the command that
        would "install" what is missing. "processor", "cores" that may be used, "features" of the processor; "memory",
        "total" and "available"; "gpus", each with "name", "memory" and "bfloat16". "precision": what "auto" takes;
        "images_per_second" of the small net at 32 px, in training, with a "reason" for the precision. "cache": its
        "folder", its "data_sets", the "bytes" that it takes, the bytes "free" on its disk and those "freed" now.
        "hub": folder of what was fetched from the Hugging Face Hub, which nearfar leaves alone.
        "notes", and "problems": what keeps a run from working and what to do about it. All sizes in bytes.
    """
    from huggingface_hub.constants import HF_HOME
    from rich.console import Console
    from rich.text import Text

    from nearfar.data import cache as pixel_cache
    from nearfar.data.cache import default_folder
    from nearfar.data.memory import machine_memory
    from nearfar.training.environment import hardware

    console = console or Console()
    folder = default_folder()
    freed = pixel_cache.empty(folder) if empty_cache else 0
    sizes = pixel_cache.sizes(folder)
    free = shutil.disk_usage(_existing(folder)).free
    problems = [*_lacking(), *_unwritable(folder)]
    machine = None
    try:
        machine = _measured(console)
        problems += [] if machine.rate else ["there is not enough memory for a step of the small net"]
    except (ValueError, RuntimeError) as error:
        problems.append(f"{error}; where there is a GPU, try --accelerator cpu")
    found: dict[str, Any] = {
        "versions": _versions(),
        "extras": _extras(),
        "processor": hardware()["processor"],
        "cores": usable_cores(),
        "features": _processor_features(),
        "memory": machine_memory(),
        "gpus": _gpus(),
        "precision": machine and machine.precision,
        "images_per_second": machine and machine.rate,
        "reason": machine and machine.reason.removeprefix(", "),
        "cache": {
            "folder": folder,
            "data_sets": sum(path.is_dir() for path in sizes),
            "bytes": sum(sizes.values()),
            "free": free,
            "freed": freed,
        },
        "hub": HF_HOME,
        "notes": list(_notes(free)),
        "problems": problems,
    }
    for line in _lines(found):
        console.print(Text(line))
    return found


def _measured(console: Console) -> Machine:
    """What pretrain chooses for small images, by the measurement that it makes itself."""
    from dataclasses import replace

    from nearfar.training.budget import choose_machine, rungs
    from nearfar.training.plan import chosen_method, chosen_views, views_for
    from nearfar.training.settings import Settings
    from nearfar.views import Views

    given = Settings(encoder="small")
    method, _ = chosen_method(given)

    def views_at(size: int, crop: int) -> Views:
        fitted = replace(given, image_size=size, crop_size=crop, channels=3)
        return chosen_views(views_for(given, method, crop, 3), fitted)

    candidates = rungs(given, SIDE, photographs=False)[:1]
    return choose_machine(
        given, method, views_at, candidates=candidates, channels=3, images=None, seconds=0.0, console=console
    )


def _unwritable(cache: Path) -> Iterator[str]:
    from nearfar.atomic import check_folder
    from nearfar.data.cache import ELSEWHERE

    for folder, instead in ((Path.cwd(), "run in another folder, or give --out"), (_existing(cache), ELSEWHERE)):
        try:
            check_folder(folder)
        except OSError as error:
            yield f"{error}; {instead}"


def _existing(folder: Path) -> Path:
    return next(one for one in (folder, *folder.parents) if one.exists())


def _notes(free: int) -> Iterator[str]:
    import torch

    from nearfar.data.cache import ELSEWHERE

    if shutil.which("nvidia-smi") and not torch.cuda.is_available():
        yield f"there may be a GPU, but torch {torch.__version__} cannot use it: install the torch for its driver"
    if free < LITTLE:
        yield f"only {_size(free)} are free for the cache; {ELSEWHERE}"
    if "OMP_NUM_THREADS" in os.environ:
        yield f"OMP_NUM_THREADS sets the number of torch's threads, {torch.get_num_threads()}"


def _lines(found: dict[str, Any]) -> Iterator[str]:
    shown = {name: found["versions"].get(name) for name in ("nearfar", "python", "torch", "torchvision", "timm")}
    yield "versions   " + ", ".join(f"{name} {version or 'missing'}" for name, version in shown.items())
    for name, extra in found["extras"].items():
        yield f"optional   {name}: " + (extra["install"] or "there")
    features = f", {' '.join(found['features'])}" if found["features"] else ""
    yield f"processor  {found['processor']}, {found['cores']} cores to use{features}"
    yield f"memory     {_size(found['memory']['available'])} of {_size(found['memory']['total'])} available"
    for gpu in found["gpus"]:
        yield f"GPU        {gpu['name']}, {_size(gpu['memory'])}" + ("" if gpu["bfloat16"] else ", without bfloat16")
    if not found["gpus"]:
        yield "GPU        none"
    if found["precision"] is not None:
        yield f"precision  {found['reason']}"
        yield f"speed      {found['images_per_second']:.0f} images/s: the small net on images of {SIDE} px, in training"
    cache = found["cache"]
    held = f"{_size(cache['bytes'])} in {cache['data_sets']} data sets, {_size(cache['free'])} free"
    yield f"cache      {cache['folder']}: {held}"
    if cache["freed"]:
        yield f"           {_size(cache['freed'])} were freed"
    if cache["data_sets"]:
        yield "           nearfar doctor --empty-cache empties it"
    yield f"           {found['hub']}: what was fetched from the Hub, by other programs too"
    yield from (f"note       {note}" for note in found["notes"])
    yield from (f"problem    {problem}" for problem in found["problems"])
    if not found["problems"]:
        yield "a run would work"


def _size(count: int | None) -> str:
    if count is None:
        return "unknown"
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def usable_cores() -> int:
    """Return how many cores this process may use: by its affinity, and by the limit of its container."""
    from nearfar.data import memory

    cores = memory.usable_cores()
    with suppress(OSError, ValueError):
        quota, period = (memory.CGROUP / "cpu.max").read_text().split()
        cores = min(cores, max(1, math.ceil(int(quota) / int(period))))  # "max" without a limit: ValueError
    return cores


def _processor_features() -> list[str]:
    """Return which of `FEATURES` the processor has; empty where the system does not tell."""
    with suppress(OSError):
        words = set(Path("/proc/cpuinfo").read_text().split())
        return [feature for feature in FEATURES if feature in words]
    return []


def _gpus() -> list[dict[str, Any]]:
    """Return name, bytes of memory and whether there is bfloat16, for each GPU that torch can use."""
    import torch

    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [{"name": one.name, "memory": one.total_memory, "bfloat16": one.major >= 8} for one in found]


def _versions() -> dict[str, str | None]:
    """Return the versions of Python, nearfar and what it needs; None for a package that is missing."""
    from nearfar.training.environment import version_of

    needed = {one.name: version_of(one.name) for one in _required("")}
    return {"python": platform.python_version(), "nearfar": version_of("nearfar"), **needed}


def _extras() -> dict[str, dict[str, Any]]:
    """Return the optional extras: "versions" of their packages, and "install", the command; None if all are there."""
    from nearfar.training.environment import version_of

    found: dict[str, dict[str, Any]] = {}
    for extra in _metadata("Provides-Extra"):
        if extra not in DEVELOPERS:
            there = {one.name: version_of(one.name) for one in _required(extra)}
            install = f"pip install 'nearfar[{extra}]'" if None in there.values() else None
            found[extra] = {"versions": there, "install": install}
    return found


def _lacking() -> list[str]:
    """Return what is missing or too old for nearfar to run, each with the command that installs it."""
    from nearfar.training.environment import version_of

    said = []
    for one in _required(""):
        there = version_of(one.name)
        if there is None:
            said.append(f"{one.name} is missing: pip install '{one.name}{one.specifier}'")
        elif not one.specifier.contains(there, prereleases=True):
            said.append(f"{one.name} {there} is not {one.specifier}: pip install '{one.name}{one.specifier}'")
    return said


def _required(extra: str) -> Iterator[Requirement]:
    """What nearfar needs, or with an extra what that adds."""
    from packaging.requirements import Requirement

    for line in _metadata("Requires-Dist"):
        one = Requirement(line)
        of_extra = one.marker is not None and "extra" in str(one.marker)
        if of_extra == bool(extra) and (one.marker is None or one.marker.evaluate({"extra": extra})):
            yield one


def _metadata(key: str) -> list[str]:
    """The values of a key in the metadata of nearfar; none for a source tree that was not installed."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.metadata("nearfar").get_all(key, [])
    return []
