"""A run folder, as an object."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nearfar.atomic import replacing
from nearfar.messages import first_line
from nearfar.networks import Encoder, load_encoder
from nearfar.training import Health, Settings, Verdict, read_metrics, verdict

PREDICTIONS, TRUTH = "predictions.npz", "truth"
"""What `evaluate` predicted last: an array of labels by the key of the result, and those that are right."""


@dataclass(frozen=True)
class Run:
    """A finished or interrupted run. `path` is its folder."""

    path: Path

    @classmethod
    def of(cls, run: str | Path | Run) -> Run:
        """Return a run from its folder, or as it is."""
        return run if isinstance(run, Run) else cls(Path(run))

    @cached_property
    def settings(self) -> Settings:
        """The resolved settings, with the folder where it is now."""
        settings = replace(Settings.load(self.path / "config.yaml"), out=str(self.path))
        if settings.value_range is None:  # of a time when all images became 8 bits
            settings = replace(settings, value_range="uint8")
        if settings.whiten is None:  # of a time when no stem was whitened
            settings = replace(settings, whiten=False)
        if settings.threads is None:  # of a time when the number followed the load of the machine
            settings = replace(settings, threads=torch.get_num_threads())
        missing = [name for name in ("method", "encoder") if getattr(settings, name) is None]
        if missing := missing + settings.unchosen():
            raise ValueError(f"{self.path / 'config.yaml'} is not that of a run: it lacks {', '.join(missing)}")
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
        """What `evaluate` wrote, empty before: accuracies of the encoder and its rivals."""
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
        self, rows: dict[str, dict[str, float]] | None = None, detection: dict[str, dict[str, Any]] | None = None
    ) -> None:
        """Write results.json; what is not given stays as it is."""
        whole: dict[str, Any] = dict(self.results if rows is None else rows)
        if kept := self.detection if detection is None else detection:
            whole["detection"] = kept
        with replacing(self.path / "results.json") as unfinished:
            unfinished.write_text(json.dumps(whole, indent=2) + "\n")

    def search(self, *images: Any, **options: Any) -> dict[str, list[Any]]:
        """Find the images most alike to these; `nearfar.search_images` with this run. For pandas.DataFrame(...)."""
        from nearfar.commands.search import search_images

        return search_images(self, images[0] if len(images) == 1 else list(images), **options)

    def duplicates(self, data: Any = None, **options: Any) -> dict[str, list[Any]]:
        """Find copies and images that are nearly alike; `nearfar.find_duplicates` with this run."""
        from nearfar.commands.duplicates import find_duplicates

        return find_duplicates(self, data, **options)

    def select(self, *images: Any, **options: Any) -> dict[str, list[Any]]:
        """Choose images to label or to look at; `nearfar.select_images` with this run."""
        from nearfar.commands.select import select_images

        return select_images(self, images[0] if len(images) == 1 else list(images), **options)

    def cluster(self, data: Any = None, **options: Any) -> dict[str, list[Any]]:
        """Group the images without labels; `nearfar.cluster_images` with this run."""
        from nearfar.commands.cluster import cluster_images

        return cluster_images(self, data, **options)

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

    def _repr_html_(self) -> str:
        """The report, where a notebook shows the run: verdict, table, map and curves."""
        from nearfar.pages.map import map_scripts
        from nearfar.pages.template import policy, section

        report = self.path / "report.html"
        if not report.is_file():
            return section("said", words=str(self))
        text = report.read_text(encoding="utf-8", errors="replace")
        return section("framed", page=text, policy=policy(*map_scripts()))  # whoever wrote the file

    @property
    def verdict(self) -> Verdict | None:
        """Whether the representation is healthy, in words; None for a run without held-out images."""
        try:
            measured = [Health(**line["health"]) for line in self.metrics if "health" in line]
            return verdict(measured[-1], measured[0]) if measured else None
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ValueError(f"{self.path / 'metrics.jsonl'} is damaged: {first_line(error)}") from error


def load(run: str | Path | Run, *, encoder: nn.Module | None = None) -> Encoder:
    """Return the encoder of a run in eval mode, with its preprocessing: uint8 [B, C, H, W] -> features [B, dim].

    encoder: the module that was trained, where it was an object of your own; its weights are read from the run.
    Raises FileNotFoundError for a folder without an encoder, ValueError for a damaged one or a missing module.
    """
    return load_encoder(Run.of(run).path, encoder)
