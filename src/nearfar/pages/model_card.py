"""The folder of a run for the Hugging Face Hub: a timm model, with a model card from the template
model_card.md.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

import nearfar
from nearfar.atomic import translate_errors, write_file
from nearfar.data import photographs
from nearfar.messages import to_argv
from nearfar.methods import method_class, method_names
from nearfar.networks import Encoder, find_weights, write_timm_folder
from nearfar.networks.pretrained import OWN, PACKAGES, PRETRAINED
from nearfar.pages.report import NEIGHBOURS, results_shown
from nearfar.pages.template import render_page, words
from nearfar.run import Run
from nearfar.training.settings import Settings, settings_fields

_OF_A_MACHINE = {
    "data",
    "out",
    "cache",
    "workers",
    "devices",
    "threads",
    "accelerator",
    "log_every",
    "tensorboard",
}
_OF_A_MACHINE |= {"minutes"}
_TAGS = ["timm", "image-feature-extraction", "self-supervised-learning", "nearfar"]
TRIED = 8  # photographs on which timm's features are compared with ours


def model_card(run: Run, name: str, licence: str | None, licence_of_start: str | None) -> str:
    """Return the README.md of a model in timm's form: what it saw, how it was trained, its results,
    and how to use it.

    name: "owner/name" on the Hub, or a folder. Nothing tells where the data lies. What a run folder
    does not hold (results, a verdict) is left out.
    """
    settings, measured = run.settings, run.results
    results = measured[-1] if measured else {}
    shown = results_shown(measured[-1]) if measured else {"columns": {}}
    method = method_class(settings.method) if settings.method in method_names() else None
    init, images, start = settings.init or "", None, _start(settings)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # a missing or damaged file
        images = json.loads((run.path / NEIGHBOURS).read_text())["images"]
    data = ModelCardData(
        library_name="timm",
        pipeline_tag="image-feature-extraction",
        tags=_TAGS,
        license=licence,
        base_model=start if init.startswith("hf:") else None,
        model_name=name,
        eval_results=[
            EvalResult(
                "image-classification",
                "private",
                "labelled images",
                "accuracy",
                accuracy,
                metric_name=title,
            )
            for key, title in shown["columns"].items()
            if (accuracy := results["trained"].get(key)) is not None
        ],
    )
    used = ("epochs", "batch_size", "optimizer", "lr", "weight_decay", "views", "precision", "seed")
    training = {
        "method": words(settings.method)
        + (f" ({method.paper})" if method and method.paper else ""),
        **dict(settings.hyperparameters),
        **{key: getattr(settings, key) for key in used},
        "starting weights": start or None,
    }
    return render_page(
        "model_card.md",
        **shown,
        card_data=data.to_yaml(),
        name=name,
        on_hub=re.fullmatch(r"[\w.-]+/[\w.-]+", name),
        encoder=run.encoder,
        settings=settings,
        images=images,
        training=training,
        verdict=run.verdict,
        licence=licence,
        licence_of_start=licence_of_start,
        start=start,
        held=_held(settings),
        command=_command(settings),
        method=method,
        version=nearfar.__version__,
    )


def _start(settings: Settings) -> str:
    """Name the starting weights without a path of this machine."""
    if settings.init is None:
        return ""
    if settings.init in (OWN, "timm"):
        return f"{settings.init}'s {words(settings.encoder)}"
    return (
        settings.init.removeprefix("hf:")
        if settings.init.startswith("hf:")
        else "weights from a file"
    )


def _held(settings: Settings) -> tuple[str, str] | None:
    """Name the pretrained net that the saved encoder holds beside the trained one, and its licence;
    None where there is none.
    """
    if PRETRAINED not in (settings.beside or "").split("+"):
        return None
    name, package = next(iter(PACKAGES.items()))
    return name, package.license


def _command(settings: Settings) -> str:
    """The command that trains so again, with all that is not a default of `pretrain`, but for the
    user's objects.
    """
    given = {}
    for field in settings_fields():
        value = getattr(settings, field.name)
        if field.name == "init" and value is not None:
            value = value if value in (OWN, "timm") or value.startswith("hf:") else "WEIGHTS"
        plain = isinstance(value, str | int | float | list | tuple)
        if plain and value != field.default and field.name not in _OF_A_MACHINE:
            given[field.name] = value
    return shlex.join(
        ["nearfar", "pretrain", "DATA", *to_argv(given | dict(settings.hyperparameters))]
    )


def write_hub_folder(
    folder: Path,
    run: Run,
    encoder: Encoder,
    name: str,
    license: str | None = None,
    online: bool = False,
) -> float:
    """Write model.safetensors, config.json and README.md, and return the largest difference of
    features through timm.

    name: what the model card calls the model: "owner/name" on the Hub, else a folder. license: of
    the model; None: that of the weights that it started from or holds, if all are under it. online:
    ask the Hub for that one where they come from there. ValueError for an encoder that timm cannot
    build.
    """
    settings, of_start = run.settings, None
    if settings.init is not None and (online or not settings.init.startswith("hf:")):
        with contextlib.suppress(
            ValueError, OSError
        ):  # what is no longer there, or cannot be reached
            own = settings.encoder if isinstance(settings.encoder, str) else None
            of_start = find_weights(settings.init, own).license
    if license is None:
        known = {of_start} if settings.init is not None else set[str | None]()
        known |= {held[1]} if (held := _held(settings)) else set()
        license = known.pop() if len(known) == 1 else None
    folder.mkdir()
    with translate_errors(folder):
        images = photographs(TRIED, encoder.image_size, encoder.channels)
        error = write_timm_folder(folder, encoder, images, license)
    write_file(folder / "README.md", model_card(run, name, license, of_start))
    return error
