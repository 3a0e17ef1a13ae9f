"""A run folder as an object, with every command as a method."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MethodType
from typing import Any

from torch import nn

import nearfar
from nearfar.atomic import write_file
from nearfar.messages import first_line
from nearfar.networks import Encoder, load_encoder
from nearfar.training.health import Health, Verdict, verdict
from nearfar.training.run_folder import read_metrics
from nearfar.training.settings import Settings

PREDICTIONS, TRUTH = "predictions.npz", "truth"
"""What `evaluate` predicted last: an array of labels by the key of the result, and those that are right."""


class Verb:
    """A method of `Run` that is a function of `nearfar`, with its arguments and documentation."""

    def __init__(self, function: str) -> None:
        self.function = function

    def __get__(self, run: Run | None, owner: type[Run]) -> Callable[..., Any]:
        function = getattr(nearfar, self.function)
        return function if run is None else MethodType(function, run)


@dataclass(frozen=True, init=False)
class Run:
    """A finished or interrupted run. `path` is its folder; its commands are the functions of `nearfar` of these names.

    >>> run = nearfar.Run.of("runs/photos")
    >>> run.settings.method, run.encoder.image_size
    ('simclr', 32)
    """

    path: Path

    def __init__(self, path: str | Path) -> None:
        object.__setattr__(self, "path", Path(path))

    evaluate = Verb("evaluate")
    transfer = Verb("transfer")
    embed = Verb("embed")
    map = Verb("map_images")
    search = Verb("search_images")
    duplicates = Verb("find_duplicates")
    select = Verb("select_images")
    cluster = Verb("cluster_images")
    check = Verb("check")
    export = Verb("export")
    push = Verb("push")
    views = Verb("show_views")
    resume = Verb("resume")
    _repr_html_ = Verb("in_notebook")

    @classmethod
    def of(cls, run: str | Path | Run) -> Run:
        """Return a run from its folder, or as it is."""
        return run if isinstance(run, Run) else cls(Path(run))

    @cached_property
    def settings(self) -> Settings:
        """The resolved settings, with the folder where it is now."""
        settings = replace(Settings.load(self.path / "config.yaml"), out=str(self.path))
        missing = [name for name in ("method", "encoder") if getattr(settings, name) is None]
        if missing := missing + settings.unchosen():
            raise ValueError(
                f"{self.path / 'config.yaml'} is not that of a run: it lacks {', '.join(missing)}"
            )
        return settings

    @cached_property
    def encoder(self) -> Encoder:
        """The pretrained encoder in eval mode, with its preprocessing."""
        return load_encoder(self.path)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return read_metrics(self.path)

    @property
    def results(self) -> dict[str, dict[str, float]]:
        """What `evaluate` wrote, empty before: accuracies of the encoder and the baselines."""
        return {row: numbers for row, numbers in self._written.items() if row != "detection"}

    @property
    def detection(self) -> dict[str, dict[str, Any]]:
        """What `evaluate` wrote of detectors by task, empty before: settings, and "results" by where they started."""
        return self._written.get("detection", {})

    @property
    def _written(self) -> dict[str, Any]:
        path = self.path / "results.json"
        try:
            return json.loads(path.read_text()) if path.is_file() else {}
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is damaged: {first_line(error)}; evaluate again") from error

    def write_results(
        self,
        rows: dict[str, dict[str, float]] | None = None,
        detection: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        """Write results.json; what is not given stays as it is."""
        whole: dict[str, Any] = dict(self.results if rows is None else rows)
        if of_detectors := self.detection if detection is None else detection:
            whole["detection"] = of_detectors
        write_file(self.path / "results.json", json.dumps(whole, indent=2) + "\n")

    def summary(self) -> dict[str, Any]:
        """Return in plain values what the run came to: None or empty for what there is not, or not yet.

        "path", "report"; "method"; "verdict", whether it is "healthy", its "state" and "words"; "health" as measured
        last; "metrics", the last line of them; "results" and "detection", what `evaluate` wrote.
        """
        lines, verdict, report = self.metrics, self.verdict, self.path / "report.html"
        return {
            "path": str(self.path),
            "report": str(report) if report.is_file() else None,
            "method": getattr(self.settings.method, "words", self.settings.method),
            "verdict": None if verdict is None else asdict(verdict),
            "health": next((line["health"] for line in reversed(lines) if "health" in line), None),
            "metrics": next((line for line in reversed(lines) if "loss" in line), None),
            "results": self.results,
            "detection": self.detection,
        }

    @property
    def planned_epochs(self) -> float:
        """The epochs that were planned, where a slower machine left time for fewer; else those of the settings."""
        planned = [line["planned_epochs"] for line in self.metrics if "planned_epochs" in line]
        return planned[-1] if planned else self.settings.epochs

    @property
    def shortened(self) -> str:
        """One line on what was planned and trained and how to train on; empty for a run that came to its end."""
        planned, trained = self.planned_epochs, self.settings.epochs
        if trained >= planned:
            return ""
        data = getattr(self.settings.data, "words", self.settings.data)
        return (
            f"trained {trained:.3g} of {planned:g} planned epochs, as the time was over: to train on, nearfar pretrain "
            f"{data if isinstance(data, str) else 'DATA'} --init {self.path} --minutes 60"
        )

    @property
    def verdict(self) -> Verdict | None:
        """Whether the representation is healthy, in words; None for a run without a validation set."""
        try:
            lines = [line for line in self.metrics if "health" in line]
            measured = [Health(**line["health"]) for line in lines]
            epochs = lines[-1].get("epoch") if lines else None
            return verdict(measured[-1], measured[0], epochs) if measured else None
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ValueError(
                f"{self.path / 'metrics.jsonl'} is damaged: {first_line(error)}"
            ) from error


def load(run: str | Path | Run, *, encoder: nn.Module | None = None) -> Encoder:
    """Return the encoder of a run in eval mode, with its preprocessing: uint8 [B, C, H, W] -> features [B, dim].

    encoder: the trained module, if it was an object of your own; its weights are read from the run.
    Raises FileNotFoundError for a folder without an encoder, ValueError for a damaged one or a missing module.

    >>> encoder = nearfar.load("runs/photos")
    >>> encoder(torch.zeros(2, 3, 40, 50, dtype=torch.uint8)).shape
    torch.Size([2, 128])
    """
    return load_encoder(Run.of(run).path, encoder)
