"""The protocols of an evaluation with their options, checked before anything is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearfar.atomic import check_folder
from nearfar.data.sources.files import special
from nearfar.data.text import lines_of, text_of
from nearfar.evaluation import Probe, check_protocols, percent_of, probe_settings
from nearfar.run import Run


@dataclass(frozen=True)
class Protocols:
    """The protocols in the order of the user, with their options.

    probe: settings of linear-sgd by name, None for those of the recipe; rates: its learning rates,
    None for those of the settings. views: crops and flips of each training image that linear and
    linear-sgd fit on. labels: file with the names of labelled images for fine-tuning.
    """

    names: Sequence[str]
    probe: str | None = None
    rates: Sequence[float] | None = None
    views: int = 0
    knn_temperature: float = 0.07
    labels: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Protocols:
        """Return those that the arguments of `evaluate` name; ValueError for what does not go
        together.
        """
        names = given["protocol"]
        protocols = cls(
            [names] if isinstance(names, str) else list(names),
            given["probe"],
            given["probe_lr"],
            given["probe_views"],
            given["knn_temperature"],
            given["labels"],
        )
        protocols.check()
        return protocols

    @property
    def tuned(self) -> dict[str, float]:
        """The protocols that fine-tune the encoder, with their share of the labels in per cent."""
        shares = {name: percent_of(name) for name in self.names}
        return {name: percent for name, percent in shares.items() if percent is not None}

    @property
    def frozen(self) -> list[str]:
        """The protocols on the features of a frozen encoder."""
        return [name for name in self.names if name not in self.tuned]

    @property
    def linear(self) -> list[str]:
        """The protocols that fit a linear layer."""
        return [name for name in self.names if name in ("linear", "linear-sgd")]

    def check(self) -> None:
        """Raise ValueError for unknown protocols, and for options of protocols that are not
        among them.
        """
        tuned, labels = self.tuned, self.labels
        check_protocols(self.frozen)
        if labels is not None and min(tuned.values(), default=100) == 100:
            raise ValueError(
                "`labels` is for finetune-P, such as finetune-1, which `protocol` does not ask for"
            )
        if labels is not None and (kind := special(labels)):
            raise ValueError(f"`labels={str(labels)!r}` is {kind}, not a text file")
        if (self.probe or self.rates) and "linear-sgd" not in self.names:
            raise ValueError(
                "`probe` and `probe_lr` are for linear-sgd, which `protocol` does not ask for"
            )
        if self.views and not self.linear:
            raise ValueError(
                "`probe_views` is for linear and linear-sgd, which `protocol` does not ask for"
            )
        if self.probe or self.rates:
            self.probe_or("saclr-cifar")

    def probe_or(self, usual: str) -> Probe:
        """Return the settings of linear-sgd; usual: their name where the user gives none."""
        return probe_settings(self.probe or usual, self.rates)

    def listed(self) -> list[str] | None:
        """Read the names of the labelled images; None without a file."""
        return None if self.labels is None else lines_of(text_of(Path(self.labels).read_bytes()))


def check_run(run: Run) -> None:
    """Raise OSError where nothing can be written into a run, ValueError where its results cannot
    be read.
    """
    check_folder(run.path)
    _ = run.results
