"""A run folder as an object, with every command as a method."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

import nearfar
from nearfar.atomic import write_file
from nearfar.data.table import digest_of_file
from nearfar.evaluation.results import ENCODERS, Measurement
from nearfar.messages import first_line, raise_as_value_error, read_json
from nearfar.networks import Encoder, join_encoders, load_encoder
from nearfar.networks.encoder import WEIGHTS
from nearfar.progress import quietly
from nearfar.training.health import Health, Verdict, verdict
from nearfar.training.run_folder import read_metrics
from nearfar.training.settings import Settings

if TYPE_CHECKING:
    from nearfar.methods import Model
    from nearfar.views import Views

RESULTS, PREDICTIONS, TRUTH = "results.json", "predictions.npz", "truth"
"""What `evaluate` predicted last: an array of labels by the key of the result, and those that are
right.
"""

REMEDY = "remove it and evaluate again"


class Verb:
    """A method of `Run` that is a function of `nearfar`, with its arguments and documentation."""

    def __init__(self, function: str) -> None:
        self.function = function

    def __get__(self, run: Run | None, owner: type[Run]) -> Callable[..., Any]:
        function = getattr(nearfar, self.function)
        return function if run is None else MethodType(function, run)


@dataclass(frozen=True, init=False)
class Run:
    """A finished or interrupted run. `path` is its folder; its commands are the functions of
    `nearfar` of these names.

    >>> run = nearfar.Run.of("runs/photos")
    >>> run.settings.method, run.encoder.image_size
    ('simclr', 32)
    """

    path: Path

    def __init__(self, path: str | Path) -> None:
        object.__setattr__(self, "path", Path(path))

    embed = Verb("embed")
    explore = Verb("explore")
    export = Verb("export")
    push = Verb("push")
    views = Verb("show_views")
    resume = Verb("resume")
    _repr_html_ = Verb("in_notebook")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a tool as a method: `run.search(...)` is `nearfar.search(run, ...)`."""
        return nearfar.tool_method(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *nearfar.tool_names()})

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

    def model(self) -> Model:
        """Return the networks and the loss of the last checkpoint, in eval mode.

        `online` is the backbone with the projector: normalised images [B, C, H, W] -> projections
        [B, dim]. Raises FileNotFoundError without a checkpoint, ValueError for a damaged one, for
        data that has changed, and for a run with objects of your own, which no file holds.

        >>> backbone, projector = nearfar.Run("runs/photos").model().online
        >>> projector(backbone(torch.zeros(2, 3, 32, 32))).shape
        torch.Size([2, 128])
        """
        from nearfar.training.run_folder import CHECKPOINT, load_checkpoint
        from nearfar.training.run_header import resume_plan

        state = load_checkpoint(self.path / CHECKPOINT)["model"]
        with quietly():
            job = resume_plan(self.settings, {})
            with raise_as_value_error(f"the settings of {self.path}", ValueError):
                model = job.model()
        model.load_state_dict(state)
        return model.eval()

    @property
    def view_plan(self) -> Views:
        """The views that the run is trained on.

        >>> len(nearfar.Run("runs/photos").view_plan)
        2
        """
        from nearfar.training.view_choice import resolve_views

        return resolve_views(self.settings.given("views"), self.settings)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return read_metrics(self.path)

    @property
    def results(self) -> list[Measurement]:
        """Measurements of `evaluate` and other protocols, the last at the end; empty before.

        Each is a mapping of rows (the encoder and the baselines) to accuracies, and says what they
        were measured on: the data, the split, the limit, the seed and the encoder. Running a
        protocol again on the same replaces it.

        >>> nearfar.Run("runs/photos").results
        []
        """
        listed = self._written.get("measurements", [])
        try:
            if not isinstance(listed, list):
                raise ValueError("its measurements are no list")
            return [Measurement.from_json(entry) for entry in listed]
        except ValueError as error:
            raise self._damaged(error) from error

    @property
    def _written(self) -> dict[str, Any]:
        path = self.path / RESULTS
        if not os.path.lexists(path):
            return {}
        content = read_json(path, REMEDY)
        if content.keys() & ENCODERS.keys():
            raise ValueError(
                f"{path} is of an earlier version, which did not note what its numbers "
                f"were measured on: "
                "remove it and evaluate again"
            )
        return content

    def _damaged(self, error: Exception) -> ValueError:
        return ValueError(f"{self.path / RESULTS} is damaged: {first_line(error)}; {REMEDY}")

    def write_results(self, measured: Sequence[Measurement]) -> None:
        """Write results.json."""
        whole = {"measurements": [measurement.to_json() for measurement in measured]}
        write_file(self.path / RESULTS, json.dumps(whole, indent=2) + "\n")

    @property
    def weights(self) -> str:
        """The digest of the encoder's weights, which changes when a run is trained further; empty
        without any.
        """
        return digest_of_file(self.path / WEIGHTS)

    def summary(self) -> dict[str, Any]:
        """Return in plain values what the run came to: None or empty for what there is not, or not
        yet.

        "path", "report"; "method"; "verdict", whether it is "healthy", its "state" and "words";
        "health" as measured last; "metrics", the last line of them; "results", a list of what
        `evaluate` measured, each with what it was measured "on", its "results" by row and a
        "sentence".
        """
        lines, verdict, report = self.metrics, self.verdict, self.path / "report.html"
        return {
            "path": str(self.path),
            "report": str(report) if report.is_file() else None,
            "method": getattr(self.settings.method, "words", self.settings.method),
            "verdict": None if verdict is None else asdict(verdict),
            "health": next((line["health"] for line in reversed(lines) if "health" in line), None),
            "metrics": next((line for line in reversed(lines) if "loss" in line), None),
            "results": [measurement.summary() for measurement in self.results],
        }

    @property
    def planned_epochs(self) -> float:
        """The epochs that were planned, where a slower machine left time for fewer; else those of
        the settings.
        """
        planned = [line["planned_epochs"] for line in self.metrics if "planned_epochs" in line]
        return planned[-1] if planned else self.settings.epochs

    @property
    def shortened(self) -> str:
        """One line on what was planned and trained and how to train on; empty for a run that came
        to its end.
        """
        planned, trained = self.planned_epochs, self.settings.epochs
        if trained >= planned:
            return ""
        data = self.settings.data
        images = repr(data) if isinstance(data, str) else getattr(data, "words", "DATA")
        return (
            f"trained {trained:.3g} of {planned:g} planned epochs, as the time was over: to train "
            f"on, `nearfar.pretrain({images}, init={str(self.path)!r}, minutes=60)`"
        )

    @property
    def verdict(self) -> Verdict | None:
        """Return whether the representation is healthy, in words; None for a run without a
        validation set.
        """
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
    """Return the encoder of a run in eval mode, with its preprocessing: uint8 [B, C, H, W] ->
    features [B, dim].

    encoder: the trained module, if it was an object of your own; its weights are read from the run.
    Raises FileNotFoundError for a folder without an encoder, ValueError for a damaged one or a
    missing module.

    >>> encoder = nearfar.load("runs/photos")
    >>> encoder(torch.zeros(2, 3, 40, 50, dtype=torch.uint8)).shape
    torch.Size([2, 128])
    """
    return load_encoder(Run.of(run).path, encoder)


def join(
    members: Mapping[Any, float] | Sequence[Any],
    weights: Sequence[float] | None = None,
    *,
    image_size: int | None = None,
    channels: int | None = None,
) -> Encoder:
    """Put encoders side by side as one encoder: each gives rows of unit length times its weight.

    members: encoders, run folders, and words: "pretrained" (the weights of nearfar[pretrained], at
    128 px), "nearfar" (those of this package), "edges" (`hog`), "colours" (`colour_histogram`),
    "pixels"; or a mapping of these to their weights. weights: one for each; default: 1. image_size:
    pixels of a side to which images are brought first, and then to each encoder's own; default: the
    largest of the encoders', 128 without any. channels: of the images; default: that of the
    encoders, 3 without any. An encoder for three channels takes grayscale by repeating it; beside
    one for grayscale all images become grayscale, and a line of the log says so. The encoders that
    are given stay as they are, and members of one that is joined share its weight. `save_encoder`
    writes the result as any other; `load` and timm read it. Raises ValueError for unknown words,
    other numbers of channels, weights not above 0, and two ranges of values.

    >>> join({"edges": 1.0, "colours": 0.5}, image_size=32).num_features
    836
    """
    if isinstance(members, Mapping):
        if weights is not None:
            raise ValueError("the weights stand beside the members already: leave weights out")
        pairs = list(members.items())
    else:
        weights = [1.0] * len(members) if weights is None else weights
        if isinstance(members, (str, Path)) or len(weights) != len(members):
            raise ValueError(
                "members are a list, such as ['pretrained', 'edges'], with as many weights"
            )
        pairs = list(zip(members, weights, strict=True))
    plain = [weight.item() if isinstance(weight, np.number) else weight for _, weight in pairs]
    encoders = [_member(member) for member, _ in pairs]
    return join_encoders(list(zip(encoders, plain, strict=True)), image_size, channels)


def _member(member: Any) -> Encoder | str:
    """An encoder as it is, or that of a run; else the word for one."""
    if isinstance(member, Encoder):
        return member
    folder = member.path if isinstance(member, Run) else Path(member)
    return load(folder) if isinstance(member, Run) or (folder / WEIGHTS).exists() else str(member)
