"""The model card of a run: what it saw, how it was trained, what it is worth, and how to use it."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from importlib.metadata import version
from typing import Any

import yaml

from nearfar.commands.arguments import as_words
from nearfar.commands.run import Run
from nearfar.commands.worth import ENCODERS, PROTOCOLS, accuracies, best_rows, capital, sentence
from nearfar.methods import method_class, method_names
from nearfar.training import Settings
from nearfar.training.settings import settings_fields

_OF_A_MACHINE = {"data", "out", "cache", "workers", "devices", "threads", "accelerator", "log_every", "tensorboard"}
_OF_A_MACHINE |= {"minutes"}
_PLAIN = (str, int, float, list, tuple)


def model_card(run: Run, name: str, licence: str | None, licence_of_start: str | None) -> str:
    """Return the README.md of a model in timm's form, with its metadata in YAML on top.

    name: "owner/name" on the Hub, or a folder. Nothing tells where the data lies. What a run folder does not hold
    (results, a verdict) is left out.
    """
    settings, encoder = run.settings, run.encoder
    metadata: dict[str, Any] = {
        "library_name": "timm",
        "pipeline_tag": "image-feature-extraction",
        "tags": ["timm", "image-feature-extraction", "self-supervised-learning", "nearfar"],
    }
    if licence:
        metadata["license"] = licence
    if settings.init is not None and settings.init.startswith("hf:"):
        metadata["base_model"] = settings.init.removeprefix("hf:")
    on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", name)
    method = method_class(settings.method) if settings.method in method_names() else None
    parts = {
        "Use": _use(f"hf-hub:{name}" if on_hub else f"local-dir:{name}", "L" if encoder.channels == 1 else "RGB"),
        "Data": _data(run),
        "Training": _training(settings, method.paper if method else ""),
        "Verdict": run.verdict.words if run.verdict else "No images were held out: its health was not measured.",
        "Results": _results(run.results),
        "Licence": _licence(settings, licence, licence_of_start),
        "Command": f"```\n{_command(settings)}\n```",
        "Citation": _citation(method.__name__ if method else "", method.paper if method else ""),
    }
    about = (
        f"An image encoder that was trained without labels: `{encoder.name}`, {encoder.num_features} features from "
        f"images of {encoder.image_size} px, {_colours(encoder.channels)}."
    )
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in parts.items() if text)
    return f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---\n\n# {name}\n\n{about}\n\n{body}\n"


def _colours(channels: int) -> str:
    return {1: "grey", 3: "in colour"}.get(channels, f"of {channels} channels")


def _use(source: str, mode: str) -> str:
    return f"""```python
import nearfar.timm  # only for the nets "nearfar_..."
import timm
import torch
from PIL import Image

net = timm.create_model("{source}", pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(net))
with torch.no_grad():
    features = net(transform(Image.open("photo.jpg").convert("{mode}"))[None])
```"""


def _data(run: Run) -> str:
    settings, counted = run.settings, "Images"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # a missing or damaged file
        counted = f"{json.loads((run.path / 'neighbours.json').read_text())['images']:,} images"
    held = f"; {settings.held_out:,} of them were held out to measure health" if settings.held_out else ""
    return f"{counted} of {settings.image_size} px, {_colours(settings.channels)}, without labels{held}."


def _training(settings: Settings, paper: str) -> str:
    facts = {
        "method": f"{_words(settings.method)}" + (f" ({paper})" if paper else ""),
        **dict(settings.hyperparameters),
        **{name: getattr(settings, name) for name in ("epochs", "batch_size", "optimizer", "lr", "weight_decay")},
        "views": _words(settings.views),
        "starting weights": _start(settings) or "none",
        "precision": settings.precision,
        "seed": settings.seed,
    }
    used = {name: value for name, value in facts.items() if value not in (None, False, (), [])}
    rows = "".join(f"| {name.replace('_', ' ')} | {_cell(value)} |\n" for name, value in used.items())
    return f"| setting | value |\n|---|---|\n{rows}".rstrip()


def _results(results: dict[str, dict[str, float]]) -> str:
    if not results:
        return ""
    columns = accuracies(results)
    head = "".join(f" {PROTOCOLS.get(column, column.replace('_', ' '))} |" for column in columns)
    rows = ""
    for row, name in ENCODERS.items():
        if row in results:
            cells = [_accuracy(results, row, column) for column in columns]
            rows += f"| {capital(name)} | {' | '.join(cells)} |\n"
    said = sentence(results)
    note = "Accuracy in percent on images that no classifier was fitted to; the encoder is frozen and saw no labels."
    return f"| |{head}\n|---|{'---|' * len(columns)}\n{rows}\n{note} {said}".rstrip()


def _accuracy(results: dict[str, dict[str, float]], row: str, column: str) -> str:
    if column not in results[row]:
        return ""
    number = f"{100 * results[row][column]:.1f}"
    return f"**{number}**" if row in best_rows(results, column) else number


def _licence(settings: Settings, licence: str | None, of_start: str | None) -> str:
    own = f"These weights: {licence}." if licence else "The licence of these weights is not stated."
    if settings.init is None:
        return f"{own} They started from random numbers."
    known = f"which are under {of_start}" if of_start else "whose licence is not known here: see their source"
    return f"{own} They started from {_start(settings)}, {known}."


def _start(settings: Settings) -> str:
    """Name the starting weights without a path of this machine."""
    if settings.init is None:
        return ""
    if settings.init == "timm":
        return f"timm's {_words(settings.encoder)}"
    return settings.init.removeprefix("hf:") if settings.init.startswith("hf:") else "weights from a file"


def _command(settings: Settings) -> str:
    """The command that trains so again, with all that is not a default of `pretrain`, but for the user's objects."""
    given = {}
    for one in settings_fields():
        value = getattr(settings, one.name)
        if one.name == "init" and value is not None:
            value = value if value == "timm" or value.startswith("hf:") else "WEIGHTS"
        if one.name not in _OF_A_MACHINE and isinstance(value, _PLAIN) and value != one.default:
            given[one.name] = value
    return shlex.join(["nearfar", "pretrain", "DATA", *as_words(given | dict(settings.hyperparameters))])


def _citation(name: str, paper: str) -> str:
    entries = [("software", "nearfar", f"nearfar {version('nearfar')}: contrastive representation learning for images")]
    if paper:
        entries.insert(0, ("misc", name.lower(), paper))
    return "\n".join(f"```bibtex\n@{kind}{{{key},\n  title = {{{title}}}\n}}\n```" for kind, key, title in entries)


def _words(value: Any) -> str:
    """A setting in words, also one that was an object of the user's own."""
    return value if isinstance(value, str) else str(getattr(value, "words", getattr(value, "name", value)))


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else _words(value).replace("|", "\\|")
