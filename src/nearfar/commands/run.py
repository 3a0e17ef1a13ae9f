"""A run folder, as an object."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nearfar.networks import Encoder, load_encoder
from nearfar.training import Config, Health, Verdict, read_metrics, verdict


@dataclass(frozen=True)
class Run:
    """A finished or interrupted run. `path` is its folder."""

    path: Path

    @cached_property
    def config(self) -> Config:
        """The resolved settings."""
        return Config.load(self.path / "config.yaml")

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
        """What `evaluate` wrote, empty before: accuracies of raw pixels, the untrained and the trained encoder."""
        path = self.path / "results.json"
        return json.loads(path.read_text()) if path.is_file() else {}

    @property
    def verdict(self) -> Verdict | None:
        """Whether the representation is healthy, in words; None for a run without held-out images."""
        measured = [Health(**line["health"]) for line in self.metrics if "health" in line]
        return verdict(measured[-1], measured[0]) if measured else None
