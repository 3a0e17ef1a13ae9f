"""The runs behind a table's cells: each in processes of its own, several side by side, and never twice."""

from __future__ import annotations

import base64
import datetime
import json
import os
import queue
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.text import Text

from nearfar.atomic import replacing
from nearfar.commands.arguments import as_words
from nearfar.commands.children import Children
from nearfar.commands.opening import shown
from nearfar.commands.owner import CONFIG
from nearfar.commands.run import PREDICTIONS, TRUTH
from nearfar.messages import first_line
from nearfar.papers import TRAINED, Cell
from nearfar.training.environment import machine, software
from nearfar.training.progress import duration

DONE = "measured.json"
"""In the folder of a run: what was measured on it, with commands and seconds."""
ALWAYS_THERE = ("digits",)
STANDARD = "torchvision:"
PRETRAINED = "pretrain"
PLANE = "plane"
"""The measure that makes a map, and the name of its files in the folder of a run."""


@dataclass
class Task:
    """One run, with all cells that want a number of it. data: the folder that holds data sets by name."""

    folder: Path
    settings: Mapping[str, Any]
    source: str | None
    seed: int
    data: Path = Path()
    cells: list[Cell] = field(default_factory=list)


def source_of(cell: Cell, data: Path) -> Path | str | None:
    """Return what `pretrain` takes for a cell's data; None for a cell without."""
    name = cell.settings.get("data")
    return name if name is None or name in ALWAYS_THERE else data / name


def needed_by(cell: Cell, data: Path) -> list[Path]:
    """Return where the data of a cell must lie, that of its run and that of its evaluation."""
    names = (cell.settings.get("data"), cell.evaluate.get("data"))
    return [data / name for name in names if name and name not in ALWAYS_THERE and not name.startswith(STANDARD)]


def folder_of(cell: Cell, seed: int | str, out: Path) -> Path:
    """Return the folder of a cell's run; seed "*" makes a pattern for those of all seeds."""
    words = (cell.settings.get("method"), cell.settings.get("data"), cell.key, seed)
    return out / "runs" / "-".join(str(word) for word in words if word is not None)


def measured(cell: Cell, folder: Path) -> dict[str, Any] | None:
    """Return what was measured for a cell in a run folder: value, commands and seconds; None if nothing was."""
    return measurements(folder).get(cell.reading)


def measurements(folder: Path) -> dict[str, Any]:
    """Return all that was measured in a run folder, and its training under `PRETRAINED`."""
    path = folder / DONE
    return json.loads(path.read_text()) if path.is_file() else {}


def packed(right: np.ndarray) -> dict[str, Any]:
    """Write for each test image whether it was classified correctly, as JSON holds it: 1.3 kB for 10 000 images."""
    return {"images": len(right), "bits": base64.b64encode(np.packbits(right).tobytes()).decode()}


def unpacked(right: Mapping[str, Any]) -> np.ndarray:
    """Read what `packed` wrote."""
    bits = np.frombuffer(base64.b64decode(right["bits"]), np.uint8)
    return np.unpackbits(bits, count=right["images"]).astype(bool)


def run_tasks(tasks: Sequence[Task], jobs: int, console: Console) -> int:
    """Run tasks, `jobs` at a time; one that fails is told and the others go on. Returns how many failed."""
    began, failed = time.perf_counter(), 0
    console.print(f"runs to make: {len(tasks)}, {jobs} at a time")
    places: queue.SimpleQueue[int] = queue.SimpleQueue()
    for place in range(jobs):
        places.put(place)
    pool = ThreadPoolExecutor(jobs)
    with Children() as children:
        try:
            with shown(console, "runs") as progress:
                futures = [pool.submit(_run, task, children, places, jobs) for task in tasks]
                for done, future in enumerate(as_completed(futures), 1):
                    problem, words = future.result()
                    failed += problem
                    left = (time.perf_counter() - began) / done * (len(tasks) - done)
                    console.print(Text(f"{done}/{len(tasks)}  {words}  {duration(left)} left"))
                    progress(done, len(tasks))
        finally:
            pool.shutdown(cancel_futures=True)
    return failed


def _run(task: Task, children: Children, places: queue.SimpleQueue[int], jobs: int) -> tuple[bool, str]:
    """Measure all cells of a task; returns whether it failed, and what to say."""
    name, log = task.folder.name, task.folder.with_name(f"{task.folder.name}.log")
    try:
        with _environment(places, jobs) as environment:
            run = partial(children.run, environment=environment, log=log)
            note = partial(_note, task.folder, threads=int(environment["OMP_NUM_THREADS"]))
            for cell in task.cells:
                if measured(cell, task.folder) is None:
                    _measure(cell, task, run, note)
    except subprocess.CalledProcessError as error:
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return True, f"{name} failed: {said[-1] if said else error} (see {log})"
    except Exception as error:  # of this run alone
        return True, f"{name} failed: {type(error).__name__}: {first_line(error)}"
    numbers = {cell.reading: (measured(cell, task.folder) or {})["value"] for cell in task.cells}
    words = [f"{key} {value:.4g}" for key, value in numbers.items() if isinstance(value, (int, float))]
    return False, f"{name}: {', '.join(words) or 'done'}"


@contextmanager
def _environment(places: queue.SimpleQueue[int], jobs: int) -> Iterator[dict[str, str]]:
    """Yield an environment with a share of the cores, or fewer where it says so, and one of several GPUs."""
    place = places.get()
    try:
        threads = max(1, (os.cpu_count() or 1) // jobs)
        gpus = torch.cuda.device_count()
        own = {"CUDA_VISIBLE_DEVICES": str(place % gpus)} if gpus > 1 else {}
        if (given := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
            threads = min(threads, int(given))
        yield os.environ | {"OMP_NUM_THREADS": str(threads)} | own
    finally:
        places.put(place)


def _measure(cell: Cell, task: Task, run: Callable[[Sequence[str]], str], note: Callable[..., None]) -> None:
    """Get one number by the commands that it takes, and note it with them."""
    folder, began = task.folder, time.perf_counter()
    settings = {key: value for key, value in task.settings.items() if key != "data"}
    if cell.measure in TRAINED and PRETRAINED not in measurements(folder):
        words = ["pretrain", str(task.source), *as_words(settings), "--seed", str(task.seed), "--out", str(folder)]
        going_on = ["pretrain", "--resume", str(folder)]
        run(["-m", "nearfar", *(going_on if (folder / CONFIG).is_file() else words)])
        note(PRETRAINED, dict(commands=[_line(words)], seconds=time.perf_counter() - began))
        began = time.perf_counter()
    if cell.measure in ("run", "detect"):
        options = dict(cell.evaluate)
        other = options.pop("data", "")
        others = (
            [other, "--root", str(task.data)] if other.startswith(STANDARD) else [str(task.data / other)] * bool(other)
        )
        together = [one for one in task.cells if _how(one) == _how(cell)]
        protocols = dict.fromkeys(name for one in together for name in one.protocol)
        words = ["evaluate", str(folder), *others, "--protocol", *protocols, "--no-baselines"]
        words += as_words(options)
        run(["-m", "nearfar", *words])
        results = json.loads((folder / "results.json").read_text())
        numbers = results["trained"] if cell.measure == "run" else _trained_detector(results, cell.protocol[0])
        values = {one.reading: 100 * numbers[one.metric] for one in together if one.metric in numbers}
        right = _right(folder / PREDICTIONS, together) if cell.measure == "run" else {}
    else:
        given = dict(settings, data=task.source, seed=task.seed, metric=cell.metric, unit=cell.unit)
        words = ["-m", "nearfar.commands.measures", cell.measure, json.dumps(given), str(folder)]
        values, right = {cell.reading: json.loads(run(words).splitlines()[-1])}, {}
    command = _line(words, "nearfar" if words[0] == "evaluate" else "python")
    seconds = (time.perf_counter() - began) / max(1, len(values))
    for reading, value in values.items():
        note(reading, dict(value=value, commands=[command], seconds=seconds) | right.get(reading, {}))
    if cell.reading not in values:
        raise ValueError(f"results.json has no {cell.metric}, but {', '.join(numbers)}")


def _right(path: Path, cells: Sequence[Cell]) -> dict[str, dict[str, Any]]:
    """By reading, which test images were classified correctly, where the evaluation saved its predictions."""
    if not path.is_file():
        return {}
    with np.load(path) as saved:
        return {
            cell.reading: {"right": packed(saved[cell.metric] == saved[TRUTH])}
            for cell in cells
            if cell.metric in saved.files
        }


def _how(cell: Cell) -> tuple[str, tuple[str, ...], Mapping[str, Any]]:
    """How a cell's number is measured: those that are alike come from one evaluation, with all of their protocols."""
    return cell.measure, cell.protocol if cell.measure == "detect" else (), cell.evaluate


def _trained_detector(results: dict[str, Any], task: str) -> dict[str, float]:
    return results["detection"][task]["results"]["trained"]


def _note(folder: Path, name: str, what: dict[str, Any], threads: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    where = {"hardware": machine(), "threads": threads, "date": datetime.date.today().isoformat(), **software()}
    noted = {**measurements(folder), name: what | where}
    with replacing(folder / DONE) as unfinished:
        unfinished.write_text(json.dumps(noted, indent=1) + "\n")


def _line(words: Sequence[str], program: str = "nearfar") -> str:
    return shlex.join([program, *words])
