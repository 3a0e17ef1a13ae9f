"""report.html: what a run did and what it is worth, in one file that loads nothing else; and the
neighbours in it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from markupsafe import Markup

from nearfar.atomic import write_file
from nearfar.data import Images, describe
from nearfar.data.thumbnails import LOSSLESS, as_url, data_url, thumbnails
from nearfar.device import find_device
from nearfar.evaluation import extract, raw_pixels
from nearfar.evaluation.results import (
    ENCODERS,
    Measurement,
    Outcome,
    accuracies,
    best_rows,
    capital,
    column_name,
    outcome,
    sentence,
)
from nearfar.messages import first_line
from nearfar.neighbours import nearest_rows
from nearfar.networks import Encoder
from nearfar.pages.template import in_channels, map_scripts, policy, section, words, write_page
from nearfar.plugins import report_sections
from nearfar.run import Run
from nearfar.training.readout import beside_words
from nearfar.training.seeding import stream
from nearfar.training.settings import read_yaml

MOST_POINTS = 240  # of a curve
MOST_SKIPPED = 200
NEIGHBOURS = "neighbours.json"
QUERIES, NEAREST, SIZE = 10, 6, 64
MOST_IMAGES, SECONDS, CHUNK = 2000, 3.0, 32
Schema: TypeAlias = Mapping[str, type | tuple[type, ...]]
NEIGHBOURS_SCHEMA: Schema = {"searched": int, "images": int, "queries": list, "pictures": dict}
VIEWS_SCHEMA: Schema = {"side": (int, float), "sides": list, "images": list}
Made = TypeVar("Made")
log = logging.getLogger("nearfar")


def write_report(run_dir: str | os.PathLike[str]) -> Path:
    """Write report.html into a run folder from what lies there, and return its path.

    Parts that the folder does not hold (results, map, health, skipped images) are left out, so a
    report can be written at any time of a run. Raises FileNotFoundError without such a folder.

    >>> write_report("runs/photos").name
    'report.html'
    """
    folder = Path(run_dir)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no run folder {folder}")
    run, parts = Run(folder), _Parts(folder)
    nothing: dict[str, Any] = {}
    config = folder / "config.yaml"
    settings = parts.read(config.name, lambda: _settings_of(config), nothing)
    known = {"method", "data"} <= set(settings)
    title = _named(settings["data"]) if known else folder.name
    untrained: list[dict[str, Any]] = []
    lines = parts.read("metrics.jsonl", lambda: _checked(run.metrics), untrained)
    state = parts.read("metrics.jsonl", lambda: run.verdict, None)
    unmeasured: list[Measurement] = []
    results = parts.read("results.json", lambda: run.results, unmeasured)
    about = parts.made("the first line", lambda: _about(settings, lines))
    sections = [
        parts.made(
            "verdict",
            lambda: section("verdict", verdict=state, outcome=_outcome(run, results)),
        ),
        parts.made("evaluation", lambda: _evaluations(run, results)),
        *(parts.plugged(name, section) for name, section in report_sections().items()),
        parts.filled("neighbours", NEIGHBOURS, NEIGHBOURS_SCHEMA),
        parts.read("map.html", lambda: _map(folder), ""),
        parts.made("curves", lambda: _curves(lines)),
        parts.filled("views", "views.json", VIEWS_SCHEMA),
        parts.made("settings", lambda: section("facts", title="Settings", values=settings)),
        parts.filled("environment", "environment.json", {}),
        parts.read("skipped.txt", lambda: _skipped(folder), ""),
    ]
    path = folder / "report.html"
    write_page(
        path,
        "report.html",
        title=title,
        about=about,
        sections=filter(None, sections[:-3]),
        details=list(filter(None, sections[-3:])),
        damaged=parts.damaged.values(),
        scripts=map_scripts(),
    )
    return path


def in_notebook(run: Run) -> str:
    """The report of a run in a frame, as a notebook shows it: verdict, table, map and curves."""
    report = run.path / "report.html"
    if not report.is_file():
        return section("paragraph", words=str(run))
    text = report.read_text(encoding="utf-8", errors="replace")
    return section("framed", page=text, policy=policy(*map_scripts()))  # whoever wrote the file


class _Parts:
    """The parts of a report; `damaged` says by file or section what could not be read or made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: dict[str, str] = {}

    def read(self, file: str, reader: Callable[[], Made], otherwise: Made) -> Made:
        """Return what a file holds, and `otherwise` where something else has damaged it."""
        try:
            return reader()
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s is damaged and left out of the report: %s", file, first_line(error))
            self.damaged[file] = f"{file} is damaged and left out."
            return otherwise

    def made(self, name: str, make: Callable[[], str]) -> str:
        """Return a section; where it cannot be made of what was read, that is a defect of ours."""
        try:
            return make()
        except Exception as error:  # the rest of the report is worth having
            log.exception("the report's section %s could not be made", name)
            self.damaged[name] = (
                f"The section {name} could not be made, which is a defect of nearfar: "
                f"{first_line(error)}"
            )
            return ""

    def plugged(self, name: str, section: EntryPoint) -> str:
        """Return a section of another installed package."""
        return self.made(
            name, lambda: self.read(name, lambda: Markup(section.load()(self.folder)), Markup())
        )

    def filled(self, name: str, file: str, form: Schema) -> str:
        """Return a section that is filled from a file of JSON; empty where there is none."""
        nothing: dict[str, Any] = {}
        content = self.read(file, lambda: _json_of(self.folder / file, form), nothing)
        return self.made(name, lambda: section(name, content=content)) if content else ""


def _json_of(path: Path, form: Schema) -> dict[str, Any]:
    """Read a JSON object whose values have these types, empty where there is no file; ValueError
    for another.
    """
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    for key, kind in form.items():
        if not isinstance(content.get(key), kind):
            raise ValueError(f"its {key} is {str(content.get(key))[:20]!r}")
    return content


def _settings_of(path: Path) -> dict[str, Any]:
    settings = read_yaml(path) if path.is_file() else {}
    if not isinstance(settings.get("epochs", 0), (int, float)):
        raise ValueError("its epochs are no number")
    return settings


def _checked(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return lines of metrics; ValueError where what a report shows of them is no number."""
    for line in lines:
        numbers = [line.get(key, 0.0) for key in ("epoch", "planned_epochs", "images_per_second")]
        if not all(isinstance(number, (int, float)) for number in numbers):
            raise ValueError(f"step {line['step']} holds something else than numbers")
        if "health" in line and not (isinstance(line["health"], dict) and "epoch" in line):
            raise ValueError(f"the health at step {line['step']} is not complete")
        if not isinstance(line.get("monitored", {}), dict):
            raise ValueError(f"what the loss monitors at step {line['step']} is no table")
    return lines


def _about(settings: dict[str, Any], metrics: list[dict[str, Any]]) -> str:
    facts = [words(settings["method"])] if "method" in settings else []
    if {"encoder", "image_size", "channels", "epochs"} <= set(settings):
        others = beside_words(str(settings.get("beside") or ""))
        beside = f" beside {others}" if others else ""
        facts.append(f"{words(settings['encoder'])} encoder{beside}")
        facts.append(f"{settings['image_size']} px, {in_channels(settings['channels'])}")
        done = max((line.get("epoch", 0.0) for line in metrics), default=0.0)
        length = f"{settings['epochs']:.4g} epochs"
        planned = max((line.get("planned_epochs", 0.0) for line in metrics), default=0.0)
        if planned > settings["epochs"]:
            length = (
                f"{settings['epochs']:.3g} of {planned:.4g} planned epochs, as the time was over"
            )
        facts.append(length if done >= settings["epochs"] else f"{done:.3g} of {length} so far")
    if isinstance(settings.get("split"), str):
        facts.append("all splits" if settings["split"] == "all" else f"split {settings['split']}")
    rates = [line["images_per_second"] for line in metrics if "images_per_second" in line]
    if rates:
        facts.append(f"{statistics.median(rates):,.0f} images per second".replace(",", "\u202f"))
    return " · ".join(facts)


def _evaluations(run: Run, results: Sequence[Measurement]) -> str:
    """A table for each data set, split, limit, seed and encoder that was measured, the last one
    first.
    """
    parts = [
        section(
            "evaluation",
            **results_shown(measurement),
            earlier=measurement.on.encoder != run.weights,
        )
        for measurement in reversed(results)
    ]
    return Markup("").join(parts)


def _outcome(run: Run, results: Sequence[Measurement]) -> Outcome | None:
    """Return the outcome of the last measurement of these weights; None where there is none, or
    nothing to compare with.
    """
    current = [measurement for measurement in results if measurement.on.encoder == run.weights]
    return outcome(current[-1]) if current else None


def results_shown(measured: Measurement) -> dict[str, Any]:
    """Return what a table of results shows: the numbers, names of rows and columns, the best rows,
    and a sentence.
    """
    columns = accuracies(measured)
    balanced = accuracies(measured, balanced=True)
    return {
        "results": measured.rows,
        "names": {
            row: capital(name.removeprefix("a ").removeprefix("the "))
            for row, name in ENCODERS.items()
        },
        "columns": {key: column_name(key) for key in columns},
        "balanced": {
            key: column_name(key).removesuffix(" by balanced accuracy") for key in balanced
        },
        "best": {key: best_rows(measured, key) for key in [*columns, *balanced]},
        "about": measured.on.words(),
        "sentence": sentence(measured),
    }


def _map(folder: Path) -> str:
    page, picture = folder / "map.html", folder / "map.png"
    whole = page.read_text(encoding="utf-8") if page.is_file() else ""
    known = bool(whole) and all(script in whole for script in map_scripts())  # others cannot run
    if picture.is_file() and not known:
        folded = (folder / "map" / "index.html").is_file()
        return section(
            "map", page="", picture=as_url(picture.read_bytes()), older=bool(whole), folder=folded
        )
    return section("map", page=whole, picture="", older=False, folder=False) if whole else ""


def _curves(metrics: list[dict[str, Any]]) -> str:
    health = [{"epoch": line["epoch"], **line["health"]} for line in metrics if "health" in line]
    monitored = [
        {"epoch": line["epoch"], **line["monitored"]} for line in metrics if "monitored" in line
    ]
    curves = {"metrics": metrics, "health": health, "monitored": monitored}
    return section("curves", **curves, points=points_of, ticks=ticks)


def points_of(lines: list[dict[str, Any]], keys: dict[str, str]) -> dict[str, list[list[float]]]:
    """Return the epochs and finite values of each key that is known, by its name; of many the means
    of neighbours.
    """
    curves: dict[str, list[list[float]]] = {}
    for key, name in keys.items():
        points = [
            (line["epoch"], line[key]) for line in lines if isinstance(line.get(key), (int, float))
        ]
        known = np.array([point for point in points if math.isfinite(point[1])])
        parts = (
            np.array_split(known, MOST_POINTS)
            if len(known) > MOST_POINTS
            else [[point] for point in known]
        )
        curves |= {name: [np.mean(part, axis=0).tolist() for part in parts]} if parts else {}
    return curves


def ticks(low: float, high: float) -> list[float]:
    """Return a few round numbers that lie around low..high."""
    from matplotlib.ticker import MaxNLocator  # here: it takes a third of a second to import

    margin = float(low == high)
    return list(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low - margin, high + margin))


def _skipped(folder: Path) -> str:
    skipped = folder / "skipped.txt"
    lines = (
        skipped.read_text(encoding="utf-8", errors="replace").splitlines()
        if skipped.is_file()
        else []
    )
    listed = dict(line.partition("\t")[::2] for line in lines[:MOST_SKIPPED])
    if len(lines) > MOST_SKIPPED:
        listed["…"] = f"{len(lines) - MOST_SKIPPED} more in skipped.txt"
    return section("facts", title=f"Skipped images ({len(lines)})", values=listed)


def _named(data: Any) -> str:
    """Data by the last part of its path, or of the paths of several sources."""
    return describe(data) if isinstance(data, list) else Path(words(data)).name


def write_neighbours(folder: Path, encoder: Encoder, images: Images, seed: int) -> None:
    """Write neighbours.json: ten images at random, and the six nearest of each by the encoder and
    by raw pixels.

    They are searched, by cosine, among at most 2000 images at random, of which the ten are the
    first; fewer where their features take longer than three seconds. Every image that is shown is
    held as a thumbnail of at most 64 pixels, so that the report can be written without the data.
    Nothing is written for fewer than two images.
    """
    if len(images) < 2:
        return
    order = torch.randperm(len(images), generator=stream(seed, "neighbours"))[:MOST_IMAGES]
    encoder.to(find_device())
    began = time.perf_counter()
    ours, plain = [], []
    for rows in order.split(CHUNK):
        pixels = images.gather(rows)
        ours.append(extract(encoder, pixels))
        plain.append(raw_pixels(pixels))
        if time.perf_counter() - began > SECONDS:
            break
    near = {"encoder": _nearest_of(torch.cat(ours)), "raw_pixels": _nearest_of(torch.cat(plain))}
    queries = [
        {"image": i, **{kind: lists[i] for kind, lists in near.items()}}
        for i in range(len(near["encoder"]))
    ]
    shown = sorted(
        {
            *range(len(queries)),
            *(image for lists in near.values() for row in lists for image in row),
        }
    )
    tiles = thumbnails(images.pictures(order[shown]), SIZE)
    pictures = {
        image: {
            "name": images.names[int(order[image])],
            "url": data_url(tile, lossless=len(tile[0]) <= LOSSLESS),
        }
        for image, tile in zip(shown, tiles, strict=True)
    }
    content = {
        "searched": sum(map(len, ours)),
        "images": len(images),
        "queries": queries,
        "pictures": pictures,
    }
    write_file(folder / NEIGHBOURS, json.dumps(content) + "\n")


def _nearest_of(features: torch.Tensor) -> list[list[int]]:
    queries = features[:QUERIES]
    count = min(NEAREST, len(features) - 1)
    return nearest_rows(features, queries, count, own=torch.arange(len(queries))).index.tolist()
