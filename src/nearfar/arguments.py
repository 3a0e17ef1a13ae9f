"""Options of each verb on the command line: the arguments of its function, for `pretrain` those of
`Settings`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from inspect import Parameter as Argument
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_type_hints

from cyclopts import App, CoercionError, Group, Parameter, Token, convert

import nearfar
from nearfar.messages import first_line, parse_args_section, summary_of
from nearfar.plugins import commands
from nearfar.tools import find_tool

VERBS = {  # of nearfar: the public function behind each, in the order of the overview
    "pretrain": "pretrain",
    "evaluate": "evaluate",
    "embed": "embed",
    "map": "map",
    "search": "search",
    "duplicates": "duplicates",
    "select": "select",
    "cluster": "cluster",
    "check": "check",
    "export": "export",
    "push": "push",
    "views": "show_views",
    "methods": "list_methods",
    "demo": "run_demo",
    "doctor": "doctor",
    "completion": "completion_script",
}
OBJECTS = {"encoder", "views"}  # that no word can give, but for the views of `nearfar views`
GROUPS = {
    "Data": (
        "data limit split image_size",
        "channels value_range show_channels max_pixels stream mean std held_out cache workers",
    ),
    "Budget and hardware": (
        "minutes epochs batch_size micro_batch devices",
        "precision accelerator compile threads sync_batch_norm",
    ),
    "Method and encoder": (
        "method encoder init adapt",
        "recipe whiten grid beside layer_decay frozen teacher teacher_weight teacher_temperature",
    ),
    "Views": ("views crop_size keep_colour", ""),
    "Optimisation": ("lr", "optimizer final_lr weight_decay warmup_epochs clip_gradient"),
    "Checkpoint and output": ("out resume config seed json", "data_changed log_every tensorboard"),
}
"""Options of `pretrain` by group: those on the short page, then the others. What is in none joins
the last.
"""
LAST = "Checkpoint and output"
SEVERAL = ("data", "images")  # sources of images, where they are of any type
RANGE, RANGE_WORDS = (
    list[float] | Literal["full", "uint8"] | None,
    list[Literal["full", "uint8"] | float],
)
HELP = ("--help", "-h", "--help-all")
JSON = ("json", bool, "print one JSON object on stdout, and all else on stderr", False)
NULL = ("null", bool, "in a pipe, end each path with a zero byte, for xargs -0", False)
PIXELS = (
    "max_pixels",
    int | None,
    "read images of up to this many pixels. Default: 178 956 970, or those of the run",
    None,
)
REQUIRED = {("embed", "out")}  # options that a command needs, where a function does not
OPENING = ("embed", "views")  # verbs besides `pretrain` and the tools that open images
PAGE: dict[str, Any] = {"help_format": "plaintext", "result_action": "return_value"}


def function_of(verb: str) -> Callable[..., Any]:
    """Import the function behind a verb, of nearfar or of another installed package."""
    if verb in VERBS or verb in nearfar.tool_names():
        return getattr(nearfar, VERBS.get(verb, verb))
    function: Callable[..., Any] = commands()[verb].load()
    return function


def all_verbs() -> list[str]:
    """Return the verbs of nearfar, then tools and commands of other installed packages."""
    return list(dict.fromkeys([*VERBS, *nearfar.tool_names(), *commands()]))


def opens_images(verb: str) -> bool:
    """Return whether a verb opens images, and so takes --max-pixels."""
    return verb in OPENING or verb in nearfar.tool_names()


def lists_paths(verb: str) -> bool:
    """Return whether a verb gives paths to other programs in a pipe."""
    return verb in nearfar.tool_names() and find_tool(verb).lists


def examples_of(verb: str) -> list[str]:
    """Return the lines of the module's docstring that show how a verb is used."""
    module = inspect.getmodule(function_of(verb))
    return re.findall(f"^nearfar {verb}(?: .*)?$", module.__doc__ or "", re.MULTILINE)


def overview() -> App:
    """Return the overview: the verbs, each with the first line of its function's docstring."""
    said = (
        "`nearfar COMMAND --help` shows its options. With --json a command prints one JSON object."
    )
    said += "\nFlags have a negation (--no-adapt); arguments after -- are not options."
    title = "nearfar: contrastive representation learning for images"
    app = App(name="nearfar", help=title, help_epilogue=said, version=nearfar.__version__, **PAGE)
    for place, verb in enumerate(all_verbs()):
        summary = _summary(verb)
        app.command(with_signature([]), name=verb, help=summary, sort_key=place)
    return app


def _summary(verb: str) -> str:
    """The first line on a verb; of another package's that cannot be imported, why."""
    try:
        return summary_of(inspect.getdoc(function_of(verb)) or "")
    except Exception as error:
        if verb in VERBS:
            raise
        return f"cannot be imported: {first_line(error)}"


def verb_app(
    verb: str,
    methods: Sequence[str] | None = None,
    recipe: str | None = None,
    full: bool = False,
    choices: Mapping[str, Sequence[str]] | None = None,
) -> App:
    """Return the command line of a verb; that of `pretrain` has the hyperparameters of methods too,
    as the recipe sets them.

    methods: by name; None for the default. full: the help of `pretrain` has all settings. choices:
    words that options take, for completion.

    Raises ValueError for an unknown method or recipe.
    """
    function = function_of(verb)
    epilogue = "\n".join(examples_of(verb))
    app = App(
        name=f"nearfar {verb}", help_epilogue=epilogue, help_flags=HELP, version_flags=(), **PAGE
    )
    make = partial(_option, choices or {})
    options = (
        _settings(make, methods, recipe, full)
        if verb == "pretrain"
        else _arguments(make, verb, function)
    )
    app.default(with_signature(list(options), function.__doc__))
    return app


def with_signature(
    arguments: Sequence[Argument], documentation: str | None = None
) -> Callable[..., None]:
    """Return a function that stands for its arguments: words are parsed for it, and it does
    nothing.
    """

    def stand_in(*_: Any, **__: Any) -> None: ...

    stand_in.__signature__ = inspect.Signature(arguments)  # type: ignore[attr-defined]
    stand_in.__doc__ = documentation
    return stand_in


def _arguments(
    make: Callable[..., Argument], verb: str, function: Callable[..., Any]
) -> Iterator[Argument]:
    """Yield the arguments of a function that words can give, and the options that it need not know
    of.
    """
    meanings, names = (
        parse_args_section(inspect.getdoc(function) or ""),
        inspect.unwrap(function).__globals__,
    )
    for name, one in inspect.signature(function).parameters.items():
        named = name in OBJECTS and str(one.annotation).startswith(
            "str |"
        )  # a name, or in Python an object
        if named or name not in OBJECTS - {verb}:
            # or a `Run`, a name for type checkers only
            folder = name in ("run", "target") and one.default is Argument.empty
            kind = one.annotation
            kind = eval(kind, names) if isinstance(kind, str) and not (named or folder) else kind
            hint = str | None if named else str | Path if folder else kind
            default = Argument.empty if (verb, name) in REQUIRED else one.default
            yield make(name, hint, meanings[name], default, one.kind)
    if opens_images(verb):
        yield make(*PIXELS)
    yield from (make(*one, negative="") for one in ([NULL, JSON] if lists_paths(verb) else [JSON]))


def _settings(
    make: Callable[..., Argument], methods: Sequence[str] | None, recipe: str | None, full: bool
) -> Iterator[Argument]:
    """Yield the settings, what else `pretrain` takes, and the hyperparameters of methods, each in
    its group of the help.
    """
    from nearfar.training.settings import Settings, settings_fields

    places = {
        name: (title, group.index(some))
        for title, group in GROUPS.items()
        for some in group
        for name in some.split()
    }
    groups = {title: Group(title, sort_key=place) for place, title in enumerate(GROUPS)}

    def grouped(
        name: str, hint: Any, meaning: str, default: Any = None, placed: bool = False, **also: Any
    ) -> Argument:
        title, unusual = places.get(name, (LAST, 1))
        meaning = re.sub(r"[;.] [iI]n Python also .*?(?=\. |\.?$)", "", meaning)
        kind = Argument.POSITIONAL_OR_KEYWORD if placed else Argument.KEYWORD_ONLY
        return make(
            name,
            hint,
            meaning,
            default,
            kind,
            group=groups[title],
            show=full or not unusual,
            **also,
        )

    hints = get_type_hints(Settings)
    for one in settings_fields():
        yield grouped(
            one.name, hints[one.name], one.metadata["meaning"], one.default, not one.kw_only
        )
    yield grouped(
        "resume",
        str | Path | None,
        "run folder to resume; give it alone, or with the data where that has moved",
    )
    yield grouped(
        "data_changed", bool, "with --resume: resume although the data has changed", False
    )
    yield grouped("config", str | Path | None, "YAML file with any of these settings")
    yield grouped(*JSON, negative="")
    names = [Settings.method] if methods is None else methods
    yield from _hyperparameters(make, names, recipe or Settings.recipe, full or bool(methods))


def _hyperparameters(
    make: Callable[..., Argument], methods: Sequence[str], recipe: str, shown: bool
) -> Iterator[Argument]:
    """Yield the hyperparameters of methods, each with its value in the recipe; those of one name
    are given once.
    """
    if not methods:
        return  # without torch
    from nearfar.methods import describe, method_class

    named: set[str] = set()
    for number, method in enumerate(methods):
        kind = method_class(method)
        group = Group(f"--method {method} --recipe {recipe}", sort_key=len(GROUPS) + number)
        hints, meanings, values = (
            get_type_hints(kind),
            describe(kind)["meanings"],
            kind.from_recipe(recipe),
        )
        for one in fields(kind):
            if one.name not in named:
                meaning, value = meanings.get(one.name, ""), getattr(values, one.name)
                yield make(one.name, hints[one.name], meaning, value, group=group, show=shown)
        named |= {one.name for one in fields(kind)}


def _option(
    choices: Mapping[str, Sequence[str]],
    name: str,
    hint: Any,
    meaning: str,
    default: Any = None,
    kind: Any = Argument.KEYWORD_ONLY,
    **shown: Any,
) -> Argument:
    """Return an argument as words give it: text for what may be of any type, one or more for a
    list, exact whole numbers.
    """
    several, placed = hint is Any and name in SEVERAL, kind is Argument.POSITIONAL_OR_KEYWORD
    if hint is Any:  # with Path, for which a shell completes files, where a word may be one
        hint = list[str | Path] if several and not placed else str | Path if several else str
    hint = RANGE_WORDS if hint == RANGE else hint
    taken = Parameter(
        converter=None if bool in (hint, *get_args(hint)) else partial(_value, hint),
        consume_multiple=None if several else 1,
        negative_iterable="",
        show_default=_default if default not in (None, False) else False,
        choices=choices.get(name),
    )
    if placed:
        kind = Argument.VAR_POSITIONAL if several else Argument.POSITIONAL_ONLY
        default = Argument.empty if several else default
    return Argument(
        name,
        kind,
        default=default,
        annotation=Annotated[hint, taken, Parameter(help=meaning, **shown)],
    )


def _default(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _value(hint: Any, _: Any, tokens: Sequence[Token]) -> Any:
    """Convert words to a value, `none` for None but where it is text; cyclopts would round 1.5 to a
    whole number.
    """
    if (
        tokens[0].value.lower() in ("none", "null")
        and NoneType in get_args(hint)
        and str not in get_args(hint)
    ):
        return None
    value = convert(hint, tokens)
    for token, one in zip(
        tokens, value if isinstance(value, list | tuple) else [value], strict=False
    ):
        if type(one) is int and "." in token.value:
            raise CoercionError(token=token, target_type=int)
    return (
        value[0] if hint == RANGE_WORDS and len(value) == 1 and isinstance(value[0], str) else value
    )
