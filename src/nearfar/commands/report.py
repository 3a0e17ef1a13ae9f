"""report.html: what a run did and what it is worth, in one file that asks for nothing else."""

from __future__ import annotations

import base64
import html
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from nearfar.atomic import replacing
from nearfar.commands.curves import Curve, chart
from nearfar.commands.detection_page import detection_section
from nearfar.commands.neighbours import neighbours_section
from nearfar.commands.page import whole_page
from nearfar.commands.run import Run
from nearfar.commands.views_page import views_section
from nearfar.commands.worth import ENCODERS, PROTOCOLS, accuracies, best_rows, capital, sentence
from nearfar.data import describe
from nearfar.maps.document import map_scripts
from nearfar.messages import first_line
from nearfar.training.config import read_yaml

TONES = {"healthy": "good", "unclear": "unsure", "partly collapsed": "unsure", "not learning": "bad"}

# Title, what it means, and the lines: key in metrics.jsonl or its "health", and name.
TRAINING = (
    ("Loss", "Mean of the steps since the point before. Comparable only within one method.", {"loss": "loss"}),
    ("Learning rate", "Warm-up, then cosine.", {"lr": "learning rate"}),
)
HEALTH = (
    (
        "Effective rank",
        "Dimensions in use on held-out images.",
        {"effective_rank": "features", "embedding_rank": "embeddings"},
    ),
    (
        "Spread",
        "0: all images at one point; 1: as far apart as can be.",
        {"feature_spread": "features", "embedding_spread": "embeddings"},
    ),
    ("Own view found", "Share of images whose other view is nearer than any other image.", {"own_view": "own view"}),
    ("Alignment", "Squared distance of two views of an image; 0: equal, 2: unrelated.", {"alignment": "alignment"}),
    ("Uniformity", "Lower is more even; 0: all images at one point.", {"uniformity": "uniformity"}),
    ("RankMe", "Directions that the embeddings use. Higher is better, among similar runs.", {"rankme": "RankMe"}),
    ("LiDAR", "Directions that tell images apart, but not views of one image. Higher is better.", {"lidar": "LiDAR"}),
)
MOST_SKIPPED = 200
Made = TypeVar("Made")
log = logging.getLogger("nearfar")


def write_report(run_dir: str | os.PathLike[str], *, title: str | None = None) -> Path:
    """Write report.html into a run folder from what lies there, and return its path.

    Parts that the folder does not hold (results, map, health, skipped images) are left out, so a report can be written
    at any time of a run. title: by default the method and the data. Raises FileNotFoundError without such a folder.
    """
    folder = Path(run_dir)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no run folder {folder}")
    run = Run(folder)
    nothing: dict[str, Any] = {}
    settings, problem = _readable("config.yaml", lambda: _settings(folder), nothing)
    if title is None:
        known = {"method", "data"} <= set(settings)
        title = f"{_words(settings['method'])} on {_named(settings['data'])}" if known else folder.name
    about, _ = _readable("metrics.jsonl", lambda: _about(settings, run.metrics), "")
    parts: tuple[tuple[str, Callable[[], str]], ...] = (
        ("metrics.jsonl", lambda: _verdict(run)),
        ("results.json", lambda: _numbers(run.results)),
        ("results.json", lambda: detection_section(run.detection)),
        ("neighbours.json", lambda: neighbours_section(folder)),
        ("map.html", lambda: _map(folder)),
        ("metrics.jsonl", lambda: _curves(run.metrics)),
        ("views.html", lambda: views_section(folder)),
        ("config.yaml", lambda: _table("Settings", settings) if settings else ""),
        ("environment.json", lambda: _environment(folder)),
        ("skipped.txt", lambda: _skipped(folder)),
    )
    sections = [_readable(file, make, "") for file, make in parts]
    details = "".join(section for section, _ in sections[-3:])
    shown = [section for section, _ in sections[:-3]]
    shown += [f"<section><h2>Details</h2>{details}</section>"] if details else []
    problems = dict.fromkeys([problem, *(said for _, said in sections)])
    main = "\n".join(filter(None, [*shown, *problems]))
    page = whole_page(title, about, main, scripts=map_scripts())
    path = folder / "report.html"
    with replacing(path) as unfinished:
        unfinished.write_text(page, encoding="utf-8")
    return path


def _readable(file: str, make: Callable[[], Made], otherwise: Made) -> tuple[Made, str]:
    """Return what can be made of a file, and a note for the report where it is damaged: the rest is shown without."""
    try:
        return make(), ""
    except Exception as error:  # anything, for a file that something else wrote
        log.warning("%s is damaged and left out of the report: %s", file, first_line(error))
        return otherwise, f'<section><p class="note">{file} is damaged and left out.</p></section>'


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / "config.yaml"
    return read_yaml(path) if path.is_file() else {}


def _about(settings: dict[str, Any], metrics: list[dict[str, Any]]) -> str:
    facts = [f"{_words(settings['encoder'])} encoder"] if "encoder" in settings else []
    if "image_size" in settings:
        channels = "grey" if settings["channels"] == 1 else f"{settings['channels']} channels"
        facts.append(f"{settings['image_size']} px, {channels}")
    done = max((line.get("epoch", 0.0) for line in metrics), default=0.0)
    if "epochs" in settings:
        whole = done >= settings["epochs"]
        length = f"{settings['epochs']:.4g} epochs"
        facts.append(length if whole else f"{done:.3g} of {length} so far")
    rates = sorted(line["images_per_second"] for line in metrics if "images_per_second" in line)
    if rates:
        facts.append(f"{rates[len(rates) // 2]:,.0f} images per second".replace(",", "\u202f"))
    return " · ".join(facts)


def _verdict(run: Run) -> str:
    verdict = run.verdict
    if verdict is None:
        tone, state = "unsure", "no verdict"
        words = "No images were held out, or training has not begun: nothing says yet whether this run is healthy."
    else:
        tone, state = TONES.get(verdict.state, "bad"), verdict.state
        words = verdict.words.removeprefix(f"{state.capitalize()}: ")
        words = words[:1].upper() + words[1:]
    return (
        f'<section class="verdict {tone}" aria-label="Verdict"><span class="badge">{html.escape(state.capitalize())}'
        f"</span><p>{html.escape(words)}</p></section>"
    )


def _numbers(results: dict[str, dict[str, float]]) -> str:
    if not results:
        return ""
    columns = accuracies(results)
    head = "".join(f'<th scope="col">{html.escape(PROTOCOLS.get(key, key.replace("_", " ")))}</th>' for key in columns)
    rows = ""
    for row, name in ENCODERS.items():
        if row in results:
            cells = "".join(
                f"<td{' class=best' if row in best_rows(results, key) else ''}>{_accuracy(results[row], key)}</td>"
                for key in columns
            )
            heading = capital(name.removeprefix("a ").removeprefix("the "))
            rows += f'<tr class="{row}"><th scope="row">{heading}</th>{cells}</tr>'
    said = f"<p>{html.escape(sentence(results))}</p>" if len(results) > 1 else ""
    return (
        f'<section><h2>What it is worth</h2><div class="scroll"><table class="numbers"><thead><tr><td></td>{head}</tr>'
        f"</thead><tbody>{rows}</tbody></table></div>{said}"
        '<p class="note">Accuracy on images that no classifier was fitted to, in percent; ± is the standard deviation '
        "over trials. The encoder is frozen and saw no labels, but for fine-tuning.</p></section>"
    )


def _accuracy(numbers: dict[str, float], key: str) -> str:
    if key not in numbers:
        return "\u2013"
    spread = f" <small>± {100 * numbers[f'{key}_std']:.1f}</small>" if f"{key}_std" in numbers else ""
    return f"{100 * numbers[key]:.1f}{spread}"


def _map(folder: Path) -> str:
    page, picture = folder / "map.html", folder / "map.png"
    whole = page.read_text(encoding="utf-8") if page.is_file() else ""
    if whole and (all(script in whole for script in map_scripts()) or not picture.is_file()):  # others cannot run
        inner = html.escape(whole)
        shown = f'<iframe class="map" title="Map of the images" sandbox="allow-scripts" srcdoc="{inner}"></iframe>'
    elif picture.is_file():
        data = base64.b64encode(picture.read_bytes()).decode()
        shown = f'<img class="map" alt="Map of the images" src="data:image/png;base64,{data}">'
        if whole:
            shown += (
                '<p class="note">map.html is not of this version of nearfar: draw the map again to use it here.</p>'
            )
        if (folder / "map" / "index.html").is_file():
            shown += '<p><a href="map/index.html">The map to pan, zoom and search</a></p>'
    else:
        return ""
    note = "Images that the encoder finds similar lie together. Directions and large distances mean nothing."
    return f'<section><h2>Map</h2>{shown}<p class="note">{note}</p></section>'


def _curves(metrics: list[dict[str, Any]]) -> str:
    health = [{"epoch": line["epoch"], **line["health"]} for line in metrics if "health" in line]
    figures = ""
    for plans, lines in ((TRAINING, metrics), (HEALTH, health)):
        for title, note, keys in plans:
            figures += chart(title, note, [_curve(lines, key, name) for key, name in keys.items()])
    return f'<section><h2>Training</h2><div class="curves">{figures}</div></section>' if figures else ""


def _curve(lines: list[dict[str, Any]], key: str, name: str) -> Curve:
    known = [line for line in lines if isinstance(line.get(key), (int, float)) and "epoch" in line]
    return Curve(name, [line["epoch"] for line in known], [line[key] for line in known])


def _environment(folder: Path) -> str:
    path = folder / "environment.json"
    return _table("Environment", _flat(json.loads(path.read_text()))) if path.is_file() else ""


def _skipped(folder: Path) -> str:
    skipped = folder / "skipped.txt"
    lines = skipped.read_text(encoding="utf-8", errors="replace").splitlines() if skipped.is_file() else []
    listed = dict(line.partition("\t")[::2] for line in lines[:MOST_SKIPPED])
    more = {"…": f"{len(lines) - MOST_SKIPPED} more in skipped.txt"} if len(lines) > MOST_SKIPPED else {}
    return _table(f"Skipped images ({len(lines)})", listed | more) if lines else ""


def _flat(nested: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        flat |= _flat(value, f"{before}{key} ") if isinstance(value, dict) else {f"{before}{key}": value}
    return flat


def _table(title: str, values: dict[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{html.escape(str(key))}</th><td>{html.escape(_plain(value))}</td></tr>'
        for key, value in values.items()
    )
    table = f'<div class="scroll"><table><tbody>{rows}</tbody></table></div>'
    return f"<details><summary>{html.escape(title)}</summary>{table}</details>"


def _words(value: Any) -> str:
    """A setting in words; one that was an object of the user's own is described in the file."""
    return str(value["object"]) if isinstance(value, dict) and "object" in value else str(value)


def _named(data: Any) -> str:
    """Data by the last part of its path, or of the paths of several sources."""
    return describe(data) if isinstance(data, list) else Path(_words(data)).name


def _plain(value: Any) -> str:
    if value is None or value == []:
        return "\u2013"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else _words(value)
