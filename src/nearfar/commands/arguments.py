"""What each verb takes on the command line: the arguments of its function, for `pretrain` those of `Settings`."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from inspect import Parameter as Argument
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_type_hints

from cyclopts import App, CoercionError, Group, Parameter, Token, convert

from nearfar.docstrings import arguments

VERBS = {  # the function in the file of that name, and what it does
    "pretrain": ("pretrain", "Pretrain an encoder on images without labels and write a run folder."),
    "evaluate": ("evaluate", "Compare the encoder with what needs no training, on labelled images."),
    "embed": ("embed", "Write the embedding of every image to a .parquet, .csv or .npz file."),
    "map": ("map_images", "Draw a 2-D map of the images, similar ones together: an interactive page and a picture."),
    "search": (
        "search_images",
        "Find the images most alike to given ones: a table, a contact sheet, paths for other commands.",
    ),
    "duplicates": (
        "find_duplicates",
        "Find copies of images, exact, resized or encoded again, and images that are nearly alike.",
    ),
    "select": (
        "select_images",
        "Choose images to label or to look at: diverse, typical, odd ones, or those near others.",
    ),
    "cluster": ("cluster_images", "Group the images without labels, and show each group by a few of its images."),
    "export": (
        "export",
        "Write the encoder for other tools: ONNX, torch.export, a timm folder, or one file of weights.",
    ),
    "push": ("push", "Push the encoder to the Hugging Face Hub in timm's format, with a model card."),
    "views": (
        "show_views",
        "Show what the augmentation does to your images: originals and samples of their views, on one page.",
    ),
    "methods": ("list_methods", "List the methods: paper, what each needs, and its default numbers."),
    "reproduce": ("reproduce", 'Run the papers\' tables: "paper | ours", and which claims hold.'),
    "demo": (
        "run_demo",
        "The whole job on scikit-learn's digits, offline in about a minute, or on a folder of photographs in ten.",
    ),
    "doctor": (
        "doctor",
        "Look at the installation and the machine: versions, hardware, speed, caches, and whether a run would work.",
    ),
    "completion": (
        "completion_script",
        "Print a script that lets bash, zsh or fish complete verbs, options and their values.",
    ),
}
LISTING = ("search", "duplicates", "select")  # verbs that give paths to other programs
OBJECTS = {"console", "encoder", "views"}  # parameters that no word can give, but for the views of `nearfar views`
GROUPS: dict[str, tuple[str, str]] = {
    "Data": (
        "data limit split image_size",
        "channels value_range show_channels stream steps_per_epoch stream_buffer mean std held_out cache workers",
    ),
    "Budget and hardware": (
        "minutes epochs batch_size micro_batch devices",
        "precision accelerator threads sync_batch_norm",
    ),
    "Method and encoder": ("method encoder init adapt", "recipe small_stem whiten layer_decay frozen"),
    "Views": ("views crop_size", ""),
    "Optimisation": (
        "lr",
        "optimizer final_lr lr_drops lr_drop vector_lr weight_decay decay_all warmup_epochs warmup_start clip_gradient",
    ),
    "Checkpoint and output": ("out resume config seed json", "data_changed log_every health_every tensorboard"),
}
"""Options of `pretrain` by group: those on the short page, then the others. What is in none joins the last."""
LAST = "Checkpoint and output"

SEVERAL = ("data", "images")  # sources of images, where they are of any type
RANGE, RANGE_WORDS = list[float] | Literal["full", "uint8"] | None, list[Literal["full", "uint8"] | float]
PAGE: dict[str, Any] = {"help_format": "plaintext", "result_action": "return_value"}


def _option(name: str, kind: Any, meaning: str, default: Any = None, **shown: Any) -> Argument:
    annotation = Annotated[kind, Parameter(help=meaning, **shown)]
    return Argument(name, Argument.KEYWORD_ONLY, default=default, annotation=annotation)


JSON = ("json", bool, "print one JSON object on stdout, and all else on stderr", False)
NULL = ("null", bool, "where the output is piped: a zero byte behind each path, for xargs -0", False)


def overview(version: str) -> App:
    """The verbs, by what they do; none of their files is imported."""
    said = "nearfar VERB --help tells more. With --json a verb prints one JSON object for other programs."
    said += "\nA flag such as --adapt stands alone, or is --no-adapt; what follows -- is no option."
    title = "nearfar: contrastive representation learning for images"
    app = App(name="nearfar", help=title, help_epilogue=said, version=version, **PAGE)
    for place, (verb, (function, summary)) in enumerate(VERBS.items()):
        app.command(f"nearfar.commands.{verb}:{function}", name=verb, help=summary, sort_key=place)
    return app


def function_of(verb: str) -> Callable[..., Any]:
    """Import the function behind a verb."""
    return getattr(importlib.import_module(f"nearfar.commands.{verb}"), VERBS[verb][0])


def verb_app(
    verb: str,
    methods: Sequence[str] = (),
    recipe: str | None = None,
    full: bool = False,
    known: Mapping[str, Sequence[str] | type] | None = None,
) -> App:
    """The command line of a verb; that of `pretrain` has the numbers of methods too, as the recipe sets them.

    methods: by name; none for the default. full: the help of `pretrain` has all settings. known: words that options
    take, or their type, for completion.

    Raises ValueError for an unknown method or recipe.
    """
    module, function = importlib.import_module(f"nearfar.commands.{verb}"), function_of(verb)
    options = _settings(methods, recipe, full) if verb == "pretrain" else _arguments(verb, function)
    app = App(
        name=f"nearfar {verb}",
        help_epilogue="\n".join(re.findall("^nearfar .*", module.__doc__ or "", re.MULTILINE)),
        help_flags=("--help", "-h", "--help-all") if verb == "pretrain" else ("--help", "-h"),
        version_flags=(),
        **PAGE,
    )
    app.default(with_signature([_spoken(one, known or {}) for one in options], function.__doc__))
    return app


def with_signature(arguments: Sequence[Argument], documentation: str | None = None) -> Callable[..., None]:
    """A function that stands for its arguments: words are parsed for it, and it does nothing."""

    def stand_in(*_: Any, **__: Any) -> None: ...

    stand_in.__signature__ = inspect.Signature(arguments)  # type: ignore[attr-defined]
    stand_in.__doc__ = documentation
    return stand_in


def as_words(settings: Mapping[str, Any]) -> list[str]:
    """Write settings as options of the command line."""
    words: list[str] = []
    for name, value in settings.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        else:
            words += [option, *(map(str, value or ["[]"]) if isinstance(value, list | tuple) else [str(value)])]
    return words


def _arguments(verb: str, function: Callable[..., Any]) -> Iterator[Argument]:
    """The arguments of a function that words can give, and the options that it need not know of."""
    hints, meanings = get_type_hints(function), arguments(inspect.getdoc(function) or "")
    for name, one in inspect.signature(function).parameters.items():
        if name not in OBJECTS - {verb}:
            kind = str if name == "run" and hints[name] is not bool else hints[name]  # a run folder
            yield _option(name, kind, meanings[name], one.default).replace(kind=one.kind)
    yield from (_option(*one, negative="") for one in ([NULL, JSON] if verb in LISTING else [JSON]))


def _settings(methods: Sequence[str], recipe: str | None, full: bool) -> Iterator[Argument]:
    """The settings, what else `pretrain` takes, and the numbers of methods, each in its group of the help."""
    from nearfar.methods import describe, method_class
    from nearfar.training.settings import Settings, settings_fields

    places = {
        name: (title, usual) for title, pair in GROUPS.items() for usual in (0, 1) for name in pair[usual].split()
    }
    groups = {title: Group(title, sort_key=place) for place, title in enumerate(GROUPS)}

    def grouped(name: str, kind: Any, meaning: str, default: Any = None, **also: Any) -> Argument:
        title, unusual = places.get(name, (LAST, 1))
        meaning = re.sub(r"[;.] [iI]n Python also .*?(?=\. |\.?$)", "", meaning)
        return _option(name, kind, meaning, default, group=groups[title], show=full or not unusual, **also)

    hints = get_type_hints(Settings)
    for one in settings_fields():
        if one.name != "hyperparameters":
            option = grouped(one.name, hints[one.name], one.metadata["meaning"], one.default)
            yield option.replace(kind=Argument.POSITIONAL_OR_KEYWORD) if not one.kw_only else option
    going_on = "run folder to go on with; give it alone, or with the data where that lies elsewhere now"
    yield grouped("resume", str | None, going_on)
    yield grouped("data_changed", bool, "with --resume: go on although the data has changed", False)
    yield grouped("config", str | None, "YAML file with any of these settings")
    yield grouped(*JSON, negative="")
    named: set[str] = set()
    for place, method in enumerate(methods or [Settings.method]):
        kind, of = method_class(method), recipe or Settings.recipe
        title = f"--method {method} --recipe {of}"
        hints, meanings, numbers = get_type_hints(kind), describe(kind)["meanings"], kind.from_recipe(of)
        shown = dict(group=Group(title, sort_key=len(groups) + place), show=full or bool(methods))
        for number in fields(kind):
            if number.name not in named:
                value, meaning = getattr(numbers, number.name), meanings.get(number.name, "")
                yield _option(number.name, hints[number.name], meaning, value, **shown)
        named |= {number.name for number in fields(kind)}


def _spoken(one: Argument, known: Mapping[str, Sequence[str] | type]) -> Argument:
    """An argument as words give it: text for what may be of any type, one or more for a list, exact whole numbers."""
    hint, shown = get_args(one.annotation)
    several, placed = hint is Any and one.name in SEVERAL, one.kind is Argument.POSITIONAL_OR_KEYWORD
    if hint is Any:
        hint = list[str] if several and not placed else str
    hint = RANGE_WORDS if hint == RANGE else hint
    words = known.get(one.name, ())
    hint = words if isinstance(words, type) else hint
    taken = Parameter(
        converter=None if bool in (hint, *get_args(hint)) else partial(_value, hint),
        consume_multiple=None if several else 1,
        negative_iterable="",
        show_default=_default if one.default not in (None, False) else False,
        choices=None if isinstance(words, type) else words or None,
    )
    if several and placed:
        one = one.replace(kind=Argument.VAR_POSITIONAL, default=Argument.empty)
    elif placed:
        one = one.replace(kind=Argument.POSITIONAL_ONLY)
    return one.replace(annotation=Annotated[hint, taken, shown])


def _default(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _value(hint: Any, _: Any, tokens: Sequence[Token]) -> Any:
    """What words stand for, `none` for None but where it is text; cyclopts would round 1.5 to a whole number."""
    if tokens[0].value.lower() in ("none", "null") and NoneType in get_args(hint) and str not in get_args(hint):
        return None
    value = convert(hint, tokens)
    if value == ([],):  # of cyclopts 4, which Python 3.10 has
        return ()
    for token, one in zip(tokens, value if isinstance(value, list | tuple) else [value], strict=False):
        if type(one) is int and "." in token.value:
            raise CoercionError(token=token, target_type=int)
    return value[0] if hint == RANGE_WORDS and len(value) == 1 and isinstance(value[0], str) else value
