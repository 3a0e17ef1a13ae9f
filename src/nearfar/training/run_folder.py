"""The folder of a run: who writes it, its checkpoint, metrics.jsonl and skipped.txt.

filelock holds the lock; it does not say who holds it, nor wait for the workers of a killed owner.
A checkpoint is written whole or not at all, and read without running code.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearfar.atomic import NotWrittenError, check_text, replacing, translate_errors, write_file
from nearfar.data.table import digest
from nearfar.messages import lacking
from nearfar.networks.pretrained import is_zip, load_plain

# held by the process that writes the folder; the file stays, the lock ends with the process
LOCK = ".lock"
CONFIG, TABLE = "config.yaml", "data.arrow"  # the first is written last: with it a run has begun
CHECKPOINT = "checkpoints/last.ckpt"
STARTING = "starting"  # a folder with the weights that a run started from, as an encoder
PIECE = 8192  # rows that are hashed at a time
TEACHER = "teacher.safetensors"  # features of the training images, see training/teacher.py
METRICS, SKIPPED = "metrics.jsonl", "skipped.txt"
ENCODERS = "encoders"  # a folder with those that are kept on the way, each a folder
_BEFORE_CHECKPOINT = {LOCK, CONFIG, TABLE, STARTING, TEACHER, METRICS, SKIPPED}
_BEFORE_CHECKPOINT |= {"environment.json", "views.html", "views.json", "report.html"}
_BEFORE_CHECKPOINT |= {"checkpoints", "tensorboard", ENCODERS}
_PATIENCE = 15.0  # seconds in which the workers of a killed process end


@contextmanager
def lock_run_folder(folder: Path) -> Iterator[None]:
    """Be the only process that writes a run folder; raises ValueError that names the other one, if
    there is one.

    The lock belongs to the system and ends with its process, in whatever way that ends.
    """
    from filelock import FileLock, Timeout  # comes with torch

    lock, note = FileLock(folder / LOCK), folder / LOCK
    if os.path.lexists(note) and not note.is_file():
        raise ValueError(f"{note} is not a regular file, which a lock needs: remove it")
    try:
        lock.acquire(timeout=_PATIENCE if _is_gone(*_owner(note)) else 0)
        note.write_text(f"{os.getpid()} {platform.node()}\n")
    except Timeout as error:
        number, host = _owner(note)
        by = f"process {number} on {host}" if number else "another process"
        raise ValueError(
            f"{folder} is being written by {by}; wait for it, or choose another `out`"
        ) from error
    except OSError as error:
        if lock.is_locked:  # and the disk is full
            note.unlink()
            lock.release()
        raise ValueError(
            f"the run folder {folder} cannot be written: {error.strerror or error}"
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def create_run_folder(folder: Path) -> Iterator[None]:
    """Own the folder of a new run; an error before the run has begun leaves nothing of it.

    Raises ValueError for a folder with anything but a run without a checkpoint.
    """
    check_text(folder)
    if not (folder / LOCK).is_file():  # else its owner is named first, if there is one
        _must_be_free(folder)
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        home = folder.stat()
    except OSError as error:
        raise ValueError(f"the run folder {folder} cannot be made: {error.strerror}") from error
    try:
        with lock_run_folder(folder):
            _must_be_free(folder)
            try:
                yield
            except BaseException:
                if not was_renamed(folder, home) and not (folder / CONFIG).exists():
                    clear(folder)
                    (folder / LOCK).unlink(missing_ok=True)
                raise
    except BaseException:
        if not was_renamed(folder, home):
            with suppress(OSError):  # what is not empty stays
                for parent in made:
                    parent.rmdir()
        raise


def clear(folder: Path) -> None:
    """Remove a run that has no checkpoint, its settings first; the lock stays."""
    for name in sorted((path.name for path in folder.iterdir()), key=lambda name: name != CONFIG):
        path = folder / name
        if path.is_dir() and name in _BEFORE_CHECKPOINT:
            shutil.rmtree(path)
        elif name != LOCK and _is_ours(name):
            path.unlink()


def _must_be_free(folder: Path) -> None:
    """Raise ValueError for a folder that holds anything but what a run writes before its first
    checkpoint.
    """
    if not folder.exists():
        return
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {folder.name}
    ours = LOCK in names and all(map(_is_ours, names))
    if (names and not ours) or (folder / CHECKPOINT).exists():
        raise ValueError(
            f"{folder} exists already; choose another `out`, or resume it with "
            f"`nearfar.resume({str(folder)!r})`"
        )


def _is_ours(name: str) -> bool:
    """Return whether a run writes a file of this name before its first checkpoint, or
    `atomic.replacing` had begun it.
    """
    return name in _BEFORE_CHECKPOINT or (name.startswith(".") and ".partial" in name)


def _owner(note: Path) -> tuple[int, str]:
    """Process and machine that hold a lock; 0 where that is not known."""
    with suppress(OSError, ValueError):
        if note.is_file():  # a pipe may never end
            number, host = note.read_text().split()
            return int(number), host
    return 0, ""


def _is_gone(number: int, host: str) -> bool:
    """Return whether a process of this machine has ended, so that only what it started may still
    hold its lock.
    """
    if number == 0 or host != platform.node() or not hasattr(os, "fork"):
        return False
    try:
        os.kill(number, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


def was_renamed(folder: Path, home: os.stat_result) -> bool:
    """Return whether a run folder, whose `stat` was `home`, no longer lies there; perhaps another
    one does.
    """
    try:
        return not os.path.samestat(folder.stat(), home)
    except OSError:
        return True


def check_unmoved(folder: Path, home: os.stat_result) -> None:
    """Raise NotWrittenError where the folder was renamed: nothing may be written into what lies
    there now.
    """
    if was_renamed(folder, home):
        raise NotWrittenError(
            f"the run folder {folder} was renamed or removed while it was written; resume "
            f"it from its last checkpoint, "
            "wherever it lies now, with: `nearfar.resume(FOLDER)`"
        )


def kept_encoder(folder: Path, epochs: int) -> Path:
    """Return where the encoder after so many epochs is kept on the way."""
    return folder / ENCODERS / f"epoch-{epochs:04d}"


PARTS: dict[str, type] = {"model": dict, "optimizer": dict, "precision": dict, "pace": dict}
PARTS |= {"step": int, "loss_sum": torch.Tensor, "loss_count": int}


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.stem}.*.partial{path.suffix}"):
        left.unlink()  # of a process that was killed
    with (
        replacing(path) as unfinished,
        unfinished.open("wb") as file,
    ):  # our file: torch's own tells no reason
        torch.save(state, file)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint; only tensors and plain values are accepted. Raises ValueError for any
    other file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint at {path}; nothing to resume from")
    try:
        if not is_zip(path):  # older forms claim sizes that they do not have
            raise ValueError("it is no zip file")
        state = load_plain(path)
    except Exception as error:  # anything, for what is no such file
        if lacking(error):  # of the machine, and not of the file
            raise
        raise ValueError(
            f"the checkpoint {path} is damaged or not a checkpoint of nearfar"
        ) from error
    ours = isinstance(state, dict) and all(
        isinstance(state.get(name), kind) and not isinstance(state[name], bool)
        for name, kind in PARTS.items()
    )
    if not ours or state["loss_sum"].ndim or min(state["step"], state["loss_count"]) < 0:
        raise ValueError(f"{path} is not a checkpoint of nearfar")
    for name, value in {**state["model"], "loss_sum": state["loss_sum"]}.items():
        plain = isinstance(value, torch.Tensor) and value.layout == torch.strided
        if not plain or value.is_meta or value.is_quantized:
            raise ValueError(f"the checkpoint {path} is damaged: {name} is no plain tensor")
    if not state["loss_sum"].is_floating_point() or not state["loss_sum"].isfinite():
        raise ValueError(f"the checkpoint {path} is damaged: its loss is not a finite number")
    return state


def finite_names(state: dict[str, Any]) -> list[str]:
    """Return the names of the tensors of a state that hold finite numbers alone; others, as masks,
    may hold infinity.
    """
    return [
        name
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and bool(value.isfinite().all())
    ]


def not_finite(state: dict[str, Any], finite: set[str]) -> str:
    """Name what of a checkpoint holds numbers that are not finite, but should; empty where nothing
    does.

    finite: the names of the model's tensors that held finite numbers at the start.
    """
    now = set(finite_names(state["model"]))
    for name, value in state["model"].items():
        if name in finite and isinstance(value, torch.Tensor) and name not in now:
            return name
    for values in state["optimizer"]["state"].values():
        if len(finite_names(values)) < sum(
            isinstance(value, torch.Tensor) for value in values.values()
        ):
            return "the state of the optimiser"
    return ""


def must_be_finite(path: Path, state: dict[str, Any], finite: set[str]) -> None:
    """Raise ValueError for a checkpoint to go on from with numbers that are not finite; see
    `not_finite`.
    """
    try:
        spoiled = not_finite(state, finite)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a checkpoint of nearfar") from error
    if spoiled:
        raise ValueError(
            f"the checkpoint {path} cannot be resumed: {spoiled} holds nan or inf; start a new run "
            "with a lower `lr`, `clip_gradient=1` or more `warmup_epochs`"
        )


def load_optimizer(
    optimizer: torch.optim.Optimizer, state: dict[int, dict[str, torch.Tensor]]
) -> None:
    """Load the state of each parameter, as a checkpoint holds it; all else of the optimiser comes
    from the settings.

    Raises ValueError where a state does not fit its parameter.
    """
    own = optimizer.state_dict()
    count = sum(len(group["params"]) for group in own["param_groups"])
    if not all(type(number) is int and 0 <= number < count for number in state):
        raise ValueError("the state of the optimiser is that of other weights")
    optimizer.load_state_dict(own | {"state": state})
    for weights, values in optimizer.state.items():
        if not all(
            isinstance(value, torch.Tensor) and value.shape in (weights.shape, ())
            for value in values.values()
        ):
            raise ValueError("the state of the optimiser does not fit the weights")


OnMetrics = Callable[[dict[str, Any]], Any]
NEEDED = ("step", "epoch", "planned_epochs")
LARGEST_METRIC = 1e300


class MetricsLog:
    """Appends lines to metrics.jsonl and, where asked for, scalars to tensorboard event files
    beside it, and shows each line to a hook.

    `stop` is whether the hook returned True, `error` what it raised: it is not called again then.
    """

    def __init__(
        self,
        folder: Path,
        resume_step: int,
        tensorboard: bool,
        writes: bool,
        on_metrics: OnMetrics | None = None,
    ) -> None:
        """resume_step: drop lines of later steps, which will be logged again. writes: on the first
        process alone. on_metrics: the hook.
        """
        self.path, self.writes, self.on_metrics = folder / METRICS, writes, on_metrics
        self.stop = False
        self.error: Exception | None = None
        self.writer: Any = None
        if not writes:
            return
        self.home = folder.stat()
        kept = [line for line in read_metrics(folder) if line["step"] <= resume_step]
        write_file(self.path, "".join(json.dumps(line) + "\n" for line in kept))
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=resume_step + 1)

    def write(self, step: int, **values: Any) -> None:
        """Append one line; nested numbers are allowed and become name/inner in tensorboard.

        Raises NotWrittenError where the folder is no longer there.
        """
        if not self.writes:
            return
        check_unmoved(self.path.parent, self.home)
        line = json.dumps({"step": step, **values})
        with translate_errors(self.path), self.path.open("a") as file:
            file.write(line + "\n")
        if self.writer is not None:
            for name, value in values.items():
                inner = value if isinstance(value, dict) else {None: value}
                for key, number in inner.items():
                    if number is not None:
                        self.writer.add_scalar(
                            name if key is None else f"{name}/{key}", number, step
                        )

        if self.on_metrics is not None and not self.stop and self.error is None:
            try:
                self.stop = self.on_metrics(json.loads(line)) is True
            except Exception as error:  # raised by the loop, once the run is saved
                self.error = error

    def close(self) -> None:
        """Write what tensorboard still holds."""
        if self.writer is not None:
            self.writer.close()


def content_of(*tensors: Tensor) -> str:
    """Return a digest of the numbers of tensors on the CPU, which files of a run folder hold."""
    pieces = [piece for tensor in tensors for piece in tensor.split(PIECE)]
    return digest(piece.contiguous().numpy().tobytes() for piece in pieces)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl; a last line that was cut off is left out, and what
    is no such line.

    Raises ValueError for a line with something else than numbers.
    """
    path = folder / METRICS
    lines: list[dict[str, Any]] = []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else []:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            break
        if isinstance(values, dict) and type(values.get("step")) is int:
            for name, value in values.items():
                if not _is_metric(value, needed=name in NEEDED):
                    raise ValueError(
                        f"{path} is damaged: {name!r:.40} of step {values['step']!s:.20} "
                        f"is no number"
                    )
            lines.append(values)
    return lines


def _is_metric(value: Any, needed: bool) -> bool:
    """Return whether that is a number, or numbers by name; what is needed is finite, other values
    may be missing or words.
    """
    if needed:
        return type(value) in (int, float) and abs(value) < LARGEST_METRIC
    inner = value.values() if isinstance(value, dict) else [value]
    return all(value is None or type(value) in (int, float, str) for value in inner)


class SkippedImages:
    """Adds the images that it is called with to skipped.txt of a run folder, each once; for
    streams.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / SKIPPED
        self.known = (
            set(self.path.read_text(encoding="utf-8").splitlines())
            if self.path.is_file()
            else set()
        )

    def __call__(self, name: str, reason: str) -> None:
        line = f"{name}\t{reason}"
        if line not in self.known:
            self.known.add(line)
            with translate_errors(self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
