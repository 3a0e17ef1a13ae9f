"""What the cells of a paper's table ask for, checked before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from typing import Any

from nearfar.commands.evaluate import evaluate
from nearfar.commands.finetuning import percent_of
from nearfar.data.standard_sets import standard_set
from nearfar.evaluation import FINETUNE, check_protocols, result_names
from nearfar.evaluation.detection import TASKS
from nearfar.messages import did_you_mean, first_line
from nearfar.methods import method_class
from nearfar.papers import TRAINED, Cell, Size, Table
from nearfar.training import Health, Settings
from nearfar.training.checking import check_numbers
from nearfar.training.settings import settings_fields

LOGGED = ("loss", "lr", "images_per_second", "data_wait")
PRECISIONS = ("AP", "AP50", "AP75", "box AP")


def check_cells(table: Table, size: Size) -> None:
    """Raise ValueError, which names the cell, for settings, options, protocols and metrics that there are not."""
    for cell in table.cells(size):
        try:
            _check_settings(cell)
            if cell.measure in ("run", "detect"):
                _check_evaluation(cell)
            elif cell.measure == "curve" and not cell.metric.startswith("monitored."):
                _known("metric", cell.metric, [*LOGGED, *(f"health.{one.name}" for one in fields(Health))])
        except (ValueError, TypeError) as error:
            raise ValueError(f"{table.name}, row {cell.row}, column {cell.column}: {first_line(error)}") from error


def _check_settings(cell: Cell) -> None:
    settings = dict(cell.settings)
    if "method" not in settings:
        raise ValueError("method is missing in the settings")
    method = method_class(settings["method"])
    own = {one.name for one in fields(method)}
    usual = {one.name for one in settings_fields()} - {"hyperparameters", "out"}
    for name in settings:
        _known("setting", name, usual | own | ({"images"} if cell.measure == "variables" else set()))
    numbers = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items() if key in own}
    check_numbers(method, numbers)
    method.from_recipe(settings.get("recipe", "small"), **numbers)
    Settings(**{key: value for key, value in settings.items() if key in usual})
    if cell.measure in TRAINED and "data" not in settings:
        raise ValueError("the column names no data to train on")


def _check_evaluation(cell: Cell) -> None:
    for name in cell.evaluate:
        _known("option of evaluate", name, _options())
    if not cell.protocol:
        raise ValueError("protocol is missing")
    if cell.measure == "detect":
        _known("protocol", cell.protocol[0], TASKS)
        if not cell.metric.startswith("AP "):  # of a class
            _known("metric", cell.metric, PRECISIONS)
        return
    check_protocols([one for one in cell.protocol if percent_of(one) is None], FINETUNE)
    standard = standard_set(str(cell.evaluate.get("data", "")))
    _known("metric", cell.metric, result_names(cell.protocol, standard[0] if standard else ""))


@cache
def _options() -> set[str]:
    return {*inspect.signature(evaluate).parameters} - {"run", "protocol", "baselines", "encoder", "console"}


def _known(kind: str, name: Any, known: Iterable[str]) -> None:
    if name not in (known := sorted(known)):
        raise ValueError(f"there is no {kind} {name!r}: {did_you_mean(str(name), known, ', '.join(known))}")
