"""The folder of a run for the Hugging Face Hub: a timm model, with a model card from the template model_card.md."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from nearfar.atomic import replacing, told_clearly
from nearfar.data import photographs
from nearfar.evaluation.results import ENCODERS, PROTOCOLS, accuracies, best_rows, capital, sentence
from nearfar.messages import as_words
from nearfar.methods import method_class, method_names
from nearfar.networks import Encoder, find_weights, write_timm_folder
from nearfar.run import Run
from nearfar.training.settings import Settings, settings_fields

_OF_A_MACHINE = {"data", "out", "cache", "workers", "devices", "threads", "accelerator", "log_every", "tensorboard"}
_OF_A_MACHINE |= {"minutes"}
_TAGS = ["timm", "image-feature-extraction", "self-supervised-learning", "nearfar"]
TRIED = 8  # photographs on which timm's features are compared with ours
_PLAIN = (str, int, float, list, tuple)


def model_card(run: Run, name: str, licence: str | None, licence_of_start: str | None) -> str:
    """Return the README.md of a model in timm's form: what it saw, how it was trained, its results, and how to use it.

    name: "owner/name" on the Hub, or a folder. Nothing tells where the data lies. What a run folder does not hold
    (results, a verdict) is left out.
    """
    settings, results = run.settings, run.results
    on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", name)
    method = method_class(settings.method) if settings.method in method_names() else None
    columns = {
        column: PROTOCOLS.get(column, column.replace("_", " ")) for column in accuracies(results or {"trained": {}})
    }
    channels, images, init = run.encoder.channels, "Images", settings.init or ""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # a missing or damaged file
        images = f"{json.loads((run.path / 'neighbours.json').read_text())['images']:,} images"
    data = ModelCardData(
        library_name="timm",
        pipeline_tag="image-feature-extraction",
        tags=_TAGS,
        license=licence,
        base_model=init.removeprefix("hf:") if init.startswith("hf:") else None,
        model_name=name,
        eval_results=[
            EvalResult("image-classification", "private", "labelled images", "accuracy", accuracy, metric_name=title)
            for column, title in columns.items()
            if (accuracy := results["trained"].get(column)) is not None
        ],
    )
    card = ModelCard.from_template(
        data,
        str(Path(__file__).parent / "templates" / "model_card.md"),
        name=name,
        source=f"hf-hub:{name}" if on_hub else f"local-dir:{name}",
        encoder=run.encoder,
        settings=settings,
        images=images,
        colours={1: "grey", 3: "in colour"}.get(channels, f"of {channels} channels"),
        training=_training(settings, method.paper if method else ""),
        verdict=run.verdict,
        columns=list(columns.values()),
        rows=[
            [capital(ENCODERS[row]), *(_accuracy(results, row, one) for one in columns)]
            for row in ENCODERS
            if row in results
        ],
        sentence=sentence(results) if results else "",
        licence=licence,
        licence_of_start=licence_of_start,
        start=_start(settings),
        command=_command(settings),
        citations=[
            *([(method.__name__.lower(), method.paper)] if method and method.paper else []),
            ("nearfar", f"nearfar {version('nearfar')}: contrastive representation learning for images"),
        ],
    )
    return str(card)


def _training(settings: Settings, paper: str) -> list[tuple[str, str]]:
    facts = {
        "method": _words(settings.method) + (f" ({paper})" if paper else ""),
        **dict(settings.hyperparameters),
        **{name: getattr(settings, name) for name in ("epochs", "batch_size", "optimizer", "lr", "weight_decay")},
        "views": _words(settings.views),
        "starting weights": _start(settings) or "none",
        "precision": settings.precision,
        "seed": settings.seed,
    }
    used = {name: value for name, value in facts.items() if value not in (None, False, (), [])}
    return [(name.replace("_", " "), _cell(value)) for name, value in used.items()]


def _accuracy(results: dict[str, dict[str, float]], row: str, column: str) -> str:
    if column not in results[row]:
        return ""
    number = f"{100 * results[row][column]:.1f}"
    return f"**{number}**" if row in best_rows(results, column) else number


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


def _words(value: Any) -> str:
    """A setting in words, also one that was an object of the user's own."""
    return value if isinstance(value, str) else str(getattr(value, "words", getattr(value, "name", value)))


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else _words(value).replace("|", "\\|")


def write_hub_folder(
    folder: Path, run: Run, encoder: Encoder, name: str, license: str | None = None, online: bool = False
) -> float:
    """Write model.safetensors, config.json and README.md, and return the largest difference of features through timm.

    name: what the model card calls the model: "owner/name" on the Hub, else a folder. license: of the model; None: that
    of the starting weights, if known. online: ask the Hub for that one where they come from there.
    Nothing is left after an error: ValueError for an encoder that timm cannot build.
    """
    settings, of_start = run.settings, None
    if settings.init is not None and (online or not settings.init.startswith("hf:")):
        with contextlib.suppress(ValueError, OSError):  # what is no longer there, or cannot be reached
            own = settings.encoder if isinstance(settings.encoder, str) else None
            of_start = find_weights(settings.init, own).license
    folder.mkdir(exist_ok=True)
    try:
        with told_clearly(folder):
            images = photographs(TRIED, encoder.image_size, encoder.channels)
            error = write_timm_folder(folder, encoder, images, license or of_start)
        with replacing(folder / "README.md") as file:
            file.write_text(model_card(run, name, license or of_start, of_start), encoding="utf-8")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return error
