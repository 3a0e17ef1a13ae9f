"""The runs behind a table's cells: what they ask for, made in processes of their own, and the
numbers so far.
"""

from __future__ import annotations

import base64
import datetime
import glob
import inspect
import json
import logging
import math
import os
import queue
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from nearfar import Run, evaluate
from nearfar.atomic import write_file
from nearfar.device import machine, one_gpu
from nearfar.evaluation import result_names
from nearfar.messages import check_known, first_line, raise_as_value_error, read_json, to_argv
from nearfar.progress import duration, log, progress
from nearfar.tools import find_tool
from nearfar.training.environment import software
from nearfar.training.request import resolve_method
from nearfar.training.settings import Settings
from nearfar_papers.detection import read_detection
from nearfar_papers.detector import TASKS
from nearfar_papers.paper import TRAINED, Cell, Table
from nearfar_papers.protocols import PROTOCOLS
from nearfar_papers.protocols import result_names as protocol_names
from nearfar_papers.standard_sets import PREFIX, name_with, standard_set
from nearfar_papers.transfer_evaluation import transfer

CONFIG, PREDICTIONS, TRUTH = "config.yaml", "predictions.npz", "truth"
"""Of the folder of a run: its settings, what `evaluate` predicted last, and in it what is right."""
DONE = "measured.json"
"""In the folder of a run: what was measured on it, with commands and seconds."""
REMEDY = "remove it, and the run is measured again"
ALWAYS_THERE = ("digits",)
PAPERS = {"keep_colour": 0, "grid": 1, "beside": "none"}
"""Settings of all runs where a table says nothing else: what ours do and no paper's."""
SMALL = {"weight_decay": 0.01}
"""Those of runs with the recipe "small", whose decay it was when the papers' tables were made at
small scale.
"""
PRETRAINED = "pretrain"
PLANE = "plane"
"""The measure that makes a map, and the name of its files in the folder of a run."""
COMMITTED = Path(__file__).parents[2] / "docs" / "papers"
"""The numbers that come with the source; not there where only the package is installed."""
VERDICTS = ("yes", "no", "not decided", "not run", "not here")
OF_SHORT = frozenset({"pair_temperature", "widths", "side"})
OF_MEASURES = frozenset({"images", "metric", "unit", "whole_matrix", "evaluate"}) | OF_SHORT
"""Keys that measures take beside the settings of a run; `OF_SHORT` those of short runs."""
LOGGED = ("loss", "lr", "images_per_second", "data_wait")
HEALTH = (
    *("images", "feature_dim", "embedding_dim", "effective_rank", "embedding_rank"),
    *("feature_spread", "embedding_spread", "alignment", "uniformity", "view_retrieval"),
    *("rankme", "lidar", "knn"),
)
"""Keys of the health in metrics.jsonl."""
MOST_PREDICTED = 2**30  # bytes of predictions.npz
DAMAGED_NPZ = (OSError, ValueError, LookupError, EOFError, MemoryError, BadZipFile, zlib.error)
PRECISIONS = ("AP", "AP50", "AP75", "box AP")

Known = Mapping[tuple[str, str], Mapping[str, Any]]
"""By the key of a run and what was read from it: the number of each seed."""
Results = dict[str, dict[str, Any]]
"""By "row/column": the key of the run, and by seed its value, seconds, commands and hardware."""


class Waiting(ValueError):
    """Settings of a table are not chosen yet: numbers of its trials are missing."""


def check_cells(table: Table) -> None:
    """Raise ValueError, which names the cell, for settings, options, protocols and metrics that do
    not exist.
    """
    for cell in table.cells():
        with raise_as_value_error(
            f"{table.name}, row {cell.row}, column {cell.column}", ValueError, TypeError
        ):
            if "method" not in cell.settings:
                raise ValueError("method is missing in the settings")
            beside = OF_MEASURES if cell.measure not in TRAINED else frozenset()
            resolve_method(
                Settings.of(**{name: cell.settings[name] for name in cell.settings.keys() - beside})
            )
            if cell.measure in TRAINED and "data" not in cell.settings:
                raise ValueError("the column names no data to train on")
            if cell.measure in ("run", "detect"):
                _check_evaluation(cell)
            elif cell.measure == "short":
                check_known("metric", cell.metric, result_names(cell.protocol))
            elif cell.measure in ("curve", "last") and not cell.metric.startswith("monitored."):
                check_known(
                    "metric",
                    cell.metric,
                    [*LOGGED, *(f"health.{name}" for name in HEALTH)],
                )


def _check_evaluation(cell: Cell) -> None:
    verb = verb_of(cell)
    known = inspect.signature(transfer if verb == "transfer" else evaluate).parameters
    options = {*known}
    for name in cell.evaluate:
        check_known(
            f"option of {verb}",
            name,
            sorted(options - {"target", "protocol", "baselines", "encoder", "root"}),
        )
    if verb == "evaluate":
        usual = {name: parameter.default for name, parameter in known.items()}
        find_tool(verb).check(usual | dict(cell.evaluate))
    if not cell.protocol:
        raise ValueError("protocol is missing")
    if cell.measure == "detect":
        check_known("protocol", cell.protocol[0], TASKS)
        if not cell.metric.startswith("AP "):  # of a class
            check_known("metric", cell.metric, PRECISIONS)
    elif verb == "transfer":
        standard = standard_set(str(cell.evaluate.get("data", "")))
        for name in cell.protocol:
            check_known("protocol", name, PROTOCOLS)
        names = [name for protocol in cell.protocol for name in protocol_names(protocol)]
        check_known(
            "metric",
            cell.metric,
            [name_with(name, standard[0] if standard else "") for name in names],
        )
    else:
        check_known("metric", cell.metric, result_names(cell.protocol))


def verb_of(cell: Cell) -> str:
    """Return the command that measures a cell's protocols."""
    return "transfer" if cell.measure == "detect" or {*cell.protocol} & {*PROTOCOLS} else "evaluate"


def folder_of(cell: Cell, seed: int | str, out: Path) -> Path:
    """Return the folder of a cell's run; with the seed "" what the names of those of all seeds
    begin with.
    """
    words = (cell.settings.get("method"), cell.settings.get("data"), cell.key, seed)
    return out / "runs" / "-".join(str(word) for word in words if word is not None)


def measurements(folder: Path) -> dict[str, Any]:
    """Return what was measured in a run folder by its reading, and its training under
    `PRETRAINED`.
    """
    path = folder / DONE
    if not os.path.lexists(path):
        return {}
    measured = read_json(path, REMEDY)
    if not all(_is_number(value, name != PRETRAINED) for name, value in measured.items()):
        raise ValueError(f"{path} is damaged: it does not hold what was measured; {REMEDY}")
    return measured


def _is_number(entry: Any, measured: bool = True) -> bool:
    """Return whether that is a number as `reproduce` writes it, with seconds and commands; not
    `measured`: of a training.
    """
    if not isinstance(entry, dict) or not isinstance(entry.get("commands"), list):
        return False
    value = entry.get("value") if measured else 0
    values = value if isinstance(value, list) and value else [value]
    try:
        unpacked(entry["right"]) if "right" in entry else None
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return False
    return all(map(_is_finite, [*values, entry.get("seconds")]))


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def packed(right: np.ndarray) -> dict[str, Any]:
    """Write for each test image whether it was classified correctly, as JSON holds it: 1.3 kB for
    10 000 images.

    Of several trials [trials, images], at most 255, in how many of them.
    """
    if right.ndim == 1:
        return {
            "images": len(right),
            "bits": base64.b64encode(np.packbits(right).tobytes()).decode(),
        }
    counts = base64.b64encode(right.sum(0).astype(np.uint8).tobytes()).decode()
    return {"images": right.shape[1], "trials": len(right), "counts": counts}


def unpacked(right: Mapping[str, Any]) -> np.ndarray:
    """Read what `packed` wrote: true or false, or the share of the trials, for each image."""
    if "counts" in right:
        return np.frombuffer(base64.b64decode(right["counts"]), np.uint8) / right["trials"]
    bits = np.frombuffer(base64.b64decode(right["bits"]), np.uint8)
    return np.unpackbits(bits, count=right["images"]).astype(bool)


def right_in(path: Path) -> dict[str, np.ndarray]:
    """Read from predictions.npz which test images each result has right, [images] or [trials,
    images].

    ValueError, one line, for a file that `evaluate` did not write so.
    """
    with raise_as_value_error(f"{path} is damaged; evaluate again", *DAMAGED_NPZ):
        if not path.is_file():
            raise ValueError("it is not a regular file")
        saved = np.load(path, allow_pickle=False)
        if not isinstance(saved, np.lib.npyio.NpzFile):
            raise ValueError("it is no .npz file")
        with saved:
            if sum(member.file_size for member in saved.zip.infolist()) > MOST_PREDICTED:
                raise ValueError(f"it holds more than {MOST_PREDICTED >> 20} MiB")
            arrays = {name: saved[name] for name in saved.files}
        truth = arrays.pop(TRUTH) if arrays else np.empty(0)
        for name, predicted in arrays.items():
            if predicted.ndim not in (1, 2) or predicted.shape[-1:] != truth.shape:
                raise ValueError(f"{name} is not a label for each image")
            if predicted.dtype.kind != truth.dtype.kind:
                raise ValueError(f"{name} and {TRUTH} are of two kinds")
        return {name: predicted == truth for name, predicted in arrays.items()}


@dataclass
class Task:
    """One run, with all cells that want a number of it. data: the folder that holds data sets by
    name.
    """

    folder: Path
    settings: Mapping[str, Any]
    source: str | None
    seed: int
    data: Path = Path()
    cells: list[Cell] = field(default_factory=list)
    read: list[dict[str, Any]] = field(default_factory=list)
    """What its commands read and left out, as they print it with --json."""


def add_tasks(
    tasks: dict[Path, Task],
    table: Table,
    data: Path,
    out: Path,
    known: Known,
    only: Sequence[str] = (),
    seeds: int | None = None,
) -> list[Path]:
    """Add the runs that a table lacks to tasks by folder; returns the data that is not there, whose
    cells are left out.

    data: the folder that holds data sets by name. only: rows, if not all. seeds: of each cell, if
    not the table's. Raises Waiting where settings are not chosen yet.
    """
    table, missing, elsewhere = resolved(table, out, known), [], dict[tuple[str, str], None]()
    results = found_so_far(table, out, known)
    for cell in table.cells():
        if only and cell.row not in only:
            continue
        name, names = (
            cell.settings.get("data"),
            (cell.settings.get("data"), cell.evaluate.get("data")),
        )
        needed = [
            data / named
            for named in names
            if named and named not in ALWAYS_THERE and not named.startswith(PREFIX)
        ]
        if lacking := [path for path in needed if not path.exists()]:
            missing += lacking
            continue
        source = name if name is None or name in ALWAYS_THERE else str(data / name)
        for seed in range(table.first_seed, table.first_seed + (seeds or table.seeds)):
            if has(results, cell, seed):
                trained_on = _trained_on(results[cell.place]["seeds"][str(seed)])
                if source and trained_on and Path(trained_on).resolve() != Path(source).resolve():
                    elsewhere[trained_on, source] = None
            else:
                folder = folder_of(cell, seed, out)
                tasks.setdefault(
                    folder, Task(folder, cell.settings, source, seed, data)
                ).cells.append(cell)
    for before, now in elsewhere:
        log.warning("kept: numbers of %s, not of %s; another `out` begins anew", before, now)
    return list(dict.fromkeys(missing))


def _trained_on(number: Mapping[str, Any]) -> str:
    """Return the data of the run behind a number, as its first command names it; "" without one."""
    first, *_ = number.get("commands") or [""]
    words = shlex.split(first)
    return words[2] if words[:2] == ["nearfar", "pretrain"] and len(words) > 2 else ""


def run_tasks(tasks: Sequence[Task], jobs: int) -> int:
    """Run tasks, `jobs` at a time; failures are reported and the others continue. Returns how many
    failed. What they read and left out is said once for all of them.

    SIGTERM to this process goes on to the commands that are running; Ctrl-C and a terminal that
    closes reach them by themselves.
    """
    began, failed, read = time.perf_counter(), 0, set[str]()
    log.info("runs to make: %d, %d at a time", len(tasks), jobs)
    places: queue.SimpleQueue[int] = queue.SimpleQueue()
    for place in range(jobs):
        places.put(place)
    commands, pool = _Commands(), ThreadPoolExecutor(jobs)
    with _terminated_by(commands.stop), progress("runs", len(tasks)) as bar:
        try:
            futures = {pool.submit(_run, task, commands, places, jobs): task for task in tasks}
            for done, future in enumerate(as_completed(futures), 1):
                problem, words = future.result()
                failed += problem
                for data_read in futures[future].read:
                    if data_read["line"] not in read:
                        read.add(data_read["line"])
                        level = logging.WARNING if data_read["left_out"] else logging.INFO
                        log.log(level, "%s", data_read["line"])
                left = (time.perf_counter() - began) / done * (len(tasks) - done)
                log.info("%d/%d  %s  %s left", done, len(tasks), words, duration(left))
                bar.update(done)
        finally:
            pool.shutdown(cancel_futures=True)
    return failed


@contextmanager
def _terminated_by(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Handle SIGTERM while the context is open, where this is the main thread, which alone can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Commands:
    """The commands that run in processes of their own."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(
        self, words: Sequence[str], environment: Mapping[str, str], log_file: Path
    ) -> dict[str, Any]:
        """Run Python with some words; append what it says to the log and return the JSON object
        that it prints.

        Raises subprocess.CalledProcessError where it fails or is stopped.
        """
        command = [sys.executable, *words]
        with log_file.open("a") as file:
            child = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=file, text=True
            )
            self._running.add(child)
            if self._stopped:  # in between, or before
                child.terminate()
            output = child.communicate()[0]
            self._running.discard(child)
            file.write(output)
        if child.returncode:
            raise subprocess.CalledProcessError(child.returncode, command)
        printed: dict[str, Any] = json.loads(output)
        return printed

    def stop(self, number: int, frame: Any) -> None:
        """End with all of them, as the handler of a signal."""
        self._stopped = True
        for child in list(self._running):
            child.terminate()
        raise SystemExit(128 + number)


def _run(
    task: Task, commands: _Commands, places: queue.SimpleQueue[int], jobs: int
) -> tuple[bool, str]:
    """Measure all cells of a task; returns whether it failed, and what to say."""
    name, log_file = task.folder.name, task.folder.with_name(f"{task.folder.name}.log")
    place = places.get()
    threads = max(
        1, (os.cpu_count() or 1) // jobs
    )  # a share of the cores, or fewer where the environment says so
    if (given := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        threads = min(threads, int(given))
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)} | one_gpu(place)

    def run(words: Sequence[str]) -> dict[str, Any]:
        return commands.run(words, environment, log_file)

    try:
        for cell in task.cells:
            if cell.reading not in measurements(task.folder):
                _measure(cell, task, run, environment)
    except subprocess.CalledProcessError as error:
        printed = [
            line for line in log_file.read_text(errors="replace").splitlines() if line.strip()
        ]
        return True, f"{name} failed: {printed[-1] if printed else error} (see {log_file})"
    except Exception as error:  # of this run alone
        return True, f"{name} failed: {type(error).__name__}: {first_line(error)}"
    finally:
        places.put(place)
    measured = measurements(task.folder)
    numbers = {cell.reading: measured[cell.reading]["value"] for cell in task.cells}
    words = [
        f"{key} {value:.4g}" for key, value in numbers.items() if isinstance(value, (int, float))
    ]
    return False, f"{name}: {', '.join(words) or 'done'}"


def _measure(cell: Cell, task: Task, run: Any, environment: Mapping[str, str]) -> None:
    """Get one number by the commands that it takes, and note it with them."""
    folder, began = task.folder, time.perf_counter()

    def printed(words: Sequence[str]) -> dict[str, Any]:
        result: dict[str, Any] = run([*words, "--json"])
        task.read += result.get("read", [])
        return result

    def note(name: str, **values: Any) -> None:
        where = {"hardware": machine(), "threads": int(environment["OMP_NUM_THREADS"])}
        where |= {"date": datetime.date.today().isoformat(), **software()}
        folder.mkdir(parents=True, exist_ok=True)
        write_file(
            folder / DONE,
            json.dumps({**measurements(folder), name: values | where}, indent=1) + "\n",
        )

    if cell.measure in TRAINED and PRETRAINED not in measurements(folder):
        words = _pretrain_words(task)
        resumed = ["nearfar", "pretrain", str(task.source), "--resume", str(folder)]
        printed(["-m", *(resumed if (folder / CONFIG).is_file() else words)])
        seconds = time.perf_counter() - began
        note(PRETRAINED, commands=[shlex.join(words)], seconds=seconds)
        began = time.perf_counter()
    numbers: dict[str, Any] = {}
    right: dict[str, dict[str, Any]] = {}
    if cell.measure in ("run", "detect"):
        same = [other for other in task.cells if _how(other) == _how(cell)]
        words = _evaluation_words(cell, same, task)
        printed(["-m", *words])
        if cell.measure == "detect":
            numbers = read_detection(folder)[cell.protocol[0]]["results"]["trained"]
        else:
            numbers = Run(folder).results[-1]["trained"]  # what the command has just measured
            if os.path.lexists(path := folder / PREDICTIONS):
                right = {name: packed(answers) for name, answers in right_in(path).items()}
        values = {
            other.metric: (other.reading, 100 * numbers[other.metric])
            for other in same
            if other.metric in numbers
        }
    else:
        words = _measure_words(cell, task)
        values = {cell.metric: (cell.reading, printed(words[1:])["result"])}
    seconds = (time.perf_counter() - began) / max(1, len(values))
    for metric, (reading, value) in values.items():
        also = {"right": right[metric]} if metric in right else {}
        note(reading, value=value, commands=[shlex.join(words)], seconds=seconds, **also)
    if cell.metric not in values:
        raise ValueError(f"results.json has no {cell.metric}, but {', '.join(numbers)}")


def _pretrain_words(task: Task) -> list[str]:
    """Return the command line that makes the run of a task."""
    settings = {key: value for key, value in task.settings.items() if key != "data"}
    usual = PAPERS | (SMALL if settings.get("recipe") == "small" else {})
    words = ["nearfar", "pretrain", str(task.source), *to_argv(usual | settings)]
    return [*words, "--seed", str(task.seed), "--out", str(task.folder)]


def _evaluation_words(cell: Cell, same: Sequence[Cell], task: Task) -> list[str]:
    """Return the command line that measures a cell, with the protocols of others that are measured
    as it is.
    """
    words = ["nearfar", verb_of(cell), str(task.folder)]
    if (other := cell.evaluate.get("data")) is not None:
        standard = other.startswith(PREFIX)
        words += [other, "--root", str(task.data)] if standard else [str(task.data / other)]
    protocols = dict.fromkeys(name for other in same for name in other.protocol)
    words += ["--protocol", *protocols, "--no-baselines"]
    return words + to_argv({key: value for key, value in cell.evaluate.items() if key != "data"})


def _measure_words(cell: Cell, task: Task) -> list[str]:
    """Return the command line of a measure in a process of its own."""
    given = {
        **{key: value for key, value in task.settings.items() if key != "data"},
        "data": task.source,
        "seed": task.seed,
        "metric": cell.metric,
        "unit": cell.unit,
    }
    if cell.measure == "short":
        given["evaluate"] = dict(cell.evaluate)
    words = ["python", "-m", "nearfar_papers.measures", cell.measure]
    return [*words, json.dumps(given), str(task.folder)]


def commands_of(table: Table, results: Results) -> list[str]:
    """Return the command lines that make the first run of a table that has numbers, as they are
    written today: of data in `data` and runs in `runs`.
    """
    for cell in table.cells():
        for seed in results[cell.place]["seeds"]:
            alike = [other for other in table.cells() if other.key == cell.key]
            name = cell.settings.get("data")
            source = name if name is None or name in ALWAYS_THERE else f"data/{name}"
            folder = folder_of(cell, seed, Path())
            task = Task(folder, cell.settings, source, int(seed), Path("data"), alike)
            words = [_pretrain_words(task)] if cell.measure in TRAINED else []
            if cell.measure in ("run", "detect"):
                same = [other for other in alike if _how(other) == _how(cell)]
                words.append(_evaluation_words(cell, same, task))
            else:
                words.append(_measure_words(cell, task))
            return [shlex.join(command) for command in words]
    return []


def _how(cell: Cell) -> tuple[str, str, tuple[str, ...], Mapping[str, Any]]:
    """Return how a cell's number is measured: those that are alike come from one command, with all
    of their protocols.
    """
    return (
        cell.measure,
        verb_of(cell),
        cell.protocol if cell.measure == "detect" else (),
        cell.evaluate,
    )


def path_of(table: Table, out: Path) -> Path:
    """Return where a table is written, as Markdown; with .json and .png beside it."""
    return out / table.paper / f"{table.name}{'' if table.size == 'full' else '.small'}.md"


def written_in(out: Path) -> list[Path]:
    """Return the JSON of every table in a folder, beside its page; that of other programs, and of
    runs, is none.
    """
    return sorted(path for path in out.glob("*/*.json") if path.with_suffix(".md").is_file())


def known_in(out: Path) -> Known:
    """Return the numbers of all tables in a folder: what one table has, others with the same runs
    need not run.
    """
    known: dict[tuple[str, str], dict[str, Any]] = {}
    for path in written_in(out):
        for cell in outcome_in(path).get("cells", {}).values():
            same = known.setdefault((cell["key"], cell["reading"]), {})
            # where two tables have one, that with its versions is newer
            same.update(
                {
                    seed: number
                    for seed, number in cell["seeds"].items()
                    if "versions" in number or seed not in same
                }
            )
    return known


def outcome_in(path: Path) -> dict[str, Any]:
    """Return what was written of a table, empty before; ValueError, one line, for a damaged
    file.
    """
    if not os.path.lexists(path):
        return {}
    outcome = read_json(path, "remove it, its runs are kept")
    cells, claims = outcome.get("cells"), outcome.get("claims")
    whole = (
        isinstance(cells, dict)
        and all(map(_is_cell, cells.values()))
        and isinstance(claims, list)
        and all(map(_is_claim, claims))
        and all(isinstance(outcome.get(name), str) for name in ("paper", "table"))
    )
    if not whole:
        raise ValueError(
            f"{path} is damaged: it is no table of nearfar reproduce; remove it, its runs are kept"
        )
    return outcome


def _is_cell(cell: Any) -> bool:
    return (
        isinstance(cell, dict)
        and all(isinstance(cell.get(name), str) for name in ("key", "reading"))
        and isinstance(seeds := cell.get("seeds"), dict)
        and all(map(str.isdecimal, seeds))
        and all(map(_is_number, seeds.values()))
    )


def _is_claim(claim: Any) -> bool:
    """Return whether that is a claim with its verdict; p, if it was tested, is a share."""
    return (
        isinstance(claim, dict)
        and all(isinstance(claim.get(name), str) for name in ("text", "numbers"))
        and claim.get("holds") in VERDICTS
        and ("p" not in claim or (_is_finite(claim["p"]) and 0 <= claim["p"] <= 1))
    )


def found_so_far(table: Table, out: Path, known: Known | None = None) -> Results:
    """Return the numbers of a table: those written before, of runs with the same settings, and
    those of run folders.

    known: numbers of other tables; their own come first. Seeds before the first one of a table are
    those that chose its settings, and folders behind whose key no seed stands are copies.
    """
    before = outcome_in(path_of(table, out).with_suffix(".json")).get("cells", {})
    results: Results = {}
    for cell in table.cells():
        old = before.get(cell.place, {})
        same = old.get("key") == cell.key and old.get("reading") == cell.reading
        seeds = dict((known or {}).get((cell.key, cell.reading), {})) | (
            old["seeds"] if same else {}
        )
        results[cell.place] = {"key": cell.key, "reading": cell.reading, "seeds": seeds}
        stem = folder_of(cell, "", out)
        for folder in sorted(stem.parent.glob(f"{glob.escape(stem.name)}*")):
            measured = measurements(folder)
            if number := measured.get(cell.reading):
                if training := measured.get(PRETRAINED):
                    commands = training["commands"] + number["commands"]
                    number |= {"commands": commands, "training_seconds": training["seconds"]}
                seeds[folder.name.removeprefix(stem.name)] = number
        results[cell.place]["seeds"] = {
            seed: number
            for seed, number in seeds.items()
            if seed.isdecimal() and int(seed) >= table.first_seed
        }
    return results


def resolved(table: Table, out: Path, known: Known | None = None) -> Table:
    """Return a table with the settings that the numbers in a folder choose for each of its cells.

    That trial is taken whose mean over the seeds is best. Raises Waiting where a number of a trial
    is missing. The effective numbers of negatives are read as well.
    """
    if table.effective is not None:
        table = replace(table, effective_numbers=_effective_numbers(table, out, known))
    if table.chosen is None:
        return table
    trials = resolved(table.chosen.at(table.size), out, known)
    results, own, choices = found_so_far(trials, out, known), dict(table.own), {}
    for row in (table.rows[name] for name in table.run):
        for column in table.columns:
            where = column if column in trials.columns else next(iter(trials.columns))
            means = {}
            for trial_row in table.trials(row.name):
                seeds = results[f"{trial_row.name}/{where}"]["seeds"]
                numbers = [
                    seeds.get(str(trials.first_seed + seed), {}).get("value")
                    for seed in range(trials.seeds)
                ]
                if None in numbers:
                    raise Waiting(
                        f"{table.paper}/{table.name} waits for {trials.name}, "
                        f"{trial_row.name}/{where}"
                    )
                means[trial_row.name] = sum(numbers)
            best = (max if trials.better == "higher" else min)(means, key=means.__getitem__)
            cell, trial = own.get(f"{row.name} {column}", {}), trials.own.get(f"{best} {where}", {})
            run = {**(trials.rows[best].run or {}), **trial.get("run", {}), **cell.get("run", {})}
            own[f"{row.name} {column}"] = {**cell, "run": run}
            words = trials.choices.get(f"{best}/{where}"), trials.rows[best].trial
            choices[f"{row.name}/{column}"] = ", ".join(filter(None, words))
    return replace(table, own=own, choices=choices)


def _effective_numbers(table: Table, out: Path, known: Known | None) -> dict[float, float]:
    """Return the effective number of negatives at each temperature, where it was measured."""
    assert table.effective is not None
    other = resolved(table.effective.at(table.size), out, known)
    results = found_so_far(other, out, known)
    return {
        cell.settings["pair_temperature"]: statistics.fmean(
            number["value"] for number in results[cell.place]["seeds"].values()
        )
        for cell in other.cells()
        if results[cell.place]["seeds"]
    }


def has(results: Results, cell: Cell, seed: int) -> bool:
    """Return whether a cell has its number for a seed; one without versions is older than the
    random samples of `limit`.
    """
    number = results[cell.place]["seeds"].get(str(seed))
    return number is not None and ("versions" in number or "limit" not in cell.settings)


def state_of(table: Table, out: Path) -> str:
    """Say in words whether a table was run, such as "small scale, begun" or "not run", and which
    claims hold.

    Of a table that was not run into `out`, the numbers that come with the source of nearfar are
    described.
    """
    own = _state_in(table, out)
    came = "" if own else _state_in(table, COMMITTED)
    return own or (f"{came}, in {'/'.join(COMMITTED.parts[-2:])}" if came else "not run")


def _state_in(table: Table, out: Path) -> str:
    words = []
    for sized, word in ((table, "run"), (table.small, "small scale")):
        if sized is not None and (path := path_of(sized, out).with_suffix(".json")).is_file():
            cells = found_so_far(resolved(sized, out), out).values()
            held = Counter(claim["holds"] for claim in outcome_in(path).get("claims", ()))
            claims = ", ".join(f"{holds} {held[holds]}" for holds in VERDICTS if held[holds])
            begun = "" if all(cell["seeds"] for cell in cells) else ", begun"
            words.append(word + begun + (f" (claims: {claims})" if claims else ""))
    return " and ".join(words)
