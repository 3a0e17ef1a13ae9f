"""The commands as cyclopts takes them: each is a function, its annotations are its options and the
section "Args:" of its docstring is their help.

Commands come from three lists: those below, the tools, and what other packages add.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial, reduce
from importlib import import_module
from inspect import Parameter as Argument
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_args, get_origin, get_type_hints

from cyclopts import App, ArgumentCollection, CoercionError, Group, Parameter, Token, convert

import nearfar
from nearfar.messages import as_options, first_line, summary_of
from nearfar.plugins import commands as commands_of_packages
from nearfar.tools import find_tool

CORE = {  # the functions behind the commands that are no tools
    "pretrain": "nearfar:pretrain",
    "embed": "nearfar:embed",
    "explore": "nearfar:explore",
    "link": "nearfar.commands.link:link_copies",
    "export": "nearfar:export",
    "push": "nearfar:push",
    "views": "nearfar:show_views",
    "methods": "nearfar:list_methods",
    "demo": "nearfar:run_demo",
    "doctor": "nearfar:doctor",
    "mcp": "nearfar.mcp:serve_mcp",
    "completion": "nearfar:completion_script",
}
FIRST = ("pretrain", "evaluate", "embed")  # in the overview, before the tools
OPENING = ("embed", "explore", "views")  # commands besides `pretrain` and the tools with images
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
    "Checkpoint and output": (
        "out resume config seed json",
        "data_changed save_every log_every tensorboard",
    ),
}
"""Options of `pretrain` by group: those on the short page, then the others. What is in none joins
the last.
"""
LAST = "Checkpoint and output"
SOURCES = ("data", "images")  # of images: one or more, where they are of any type
REQUIRED = {("embed", "out")}  # options that a command needs, where its function does not
HELP = ("--help", "-h", "--help-all")
PAGE: dict[str, Any] = {"help_format": "plaintext", "result_action": "return_value"}
Flag = Annotated[bool, Parameter(negative="", show_default=False)]
MEANINGS = {  # of options that a command has and its function has not
    "max_pixels": "read images of up to this many pixels. Default: 178 956 970, or those of the "
    "run",
    "null": "in a pipe, end each path with a zero byte, for xargs -0",
    "json": "print one JSON object on stdout, and all else on stderr",
    "resume": "run folder to resume; give it alone, or with the data where that has moved",
    "data_changed": "with --resume: resume although the data has changed",
    "config": "YAML file with any of these settings",
}


def command_paths() -> dict[str, str]:
    """Return the commands in the order of the overview, each with its function as
    "module:function"; a name of nearfar's own stays its own.
    """
    tools = {name: f"nearfar:{name}" for name in nearfar.tool_names()}
    others = {name: point.value for name, point in commands_of_packages().items()}
    paths = others | tools | CORE
    first = [name for name in FIRST if name in paths]
    return {name: paths[name] for name in dict.fromkeys([*first, *tools, *CORE, *others])}


def function_of(name: str) -> Callable[..., Any]:
    """Import the function behind a command."""
    module, _, function = command_paths()[name].partition(":")
    function_object: Callable[..., Any] = getattr(import_module(module), function)
    return function_object


def parameters_in_messages(name: str) -> set[str]:
    """Return the parameters that a message to the user of a command may name: its own options, the
    settings and the hyperparameters, which a message advises.
    """
    from nearfar.training.settings import settings_fields

    own: list[Argument] = []
    with suppress(Exception):  # another package's, whose import fails: that is the message
        own = list(inspect.signature(function_of(name)).parameters.values())
    names = {argument.name for argument in own if argument.kind is Argument.KEYWORD_ONLY}
    names |= {*MEANINGS, *(setting.name for setting in settings_fields())}
    methods = sys.modules.get("nearfar.methods")  # else no method has said anything
    if methods is not None:
        kinds = map(methods.method_class, methods.method_names())
        names |= {parameter.name for kind in kinds for parameter in fields(kind)}
    return names - {argument.name for argument in own if argument.kind is not Argument.KEYWORD_ONLY}


def offered_by(name: str) -> set[str]:
    """Return the parameters that the options of a command give."""
    from nearfar.training.settings import settings_fields

    if name == "pretrain":
        return {setting.name for setting in settings_fields()}
    return {*inspect.signature(function_of(name)).parameters}


def opens_images(name: str) -> bool:
    """Return whether a command opens images, and so takes --max-pixels."""
    return name in OPENING or name in nearfar.tool_names()


def lists_paths(name: str) -> bool:
    """Return whether a command gives paths to other programs in a pipe."""
    return name in nearfar.tool_names() and find_tool(name).lists


def examples_of(name: str) -> list[str]:
    """Return the lines of the module's docstring that show how a command is used."""
    module = inspect.getmodule(function_of(name))
    return re.findall(f"^nearfar {name}(?: .*)?$", module.__doc__ or "", re.MULTILINE)


def command_line(*apps: App, summaries: bool = False) -> App:
    """Return the command line. A command is imported, by `__getattr__` below, when it is asked for.

    apps: commands that are made already. summaries: import all commands for the overview, which
    shows the first line of each docstring.
    """
    epilogue = (
        "`nearfar COMMAND --help` shows its options. With --json a command prints one JSON object."
        "\nFlags have a negation (--no-adapt); arguments after -- are not options."
    )
    app = App(
        name="nearfar",
        help="nearfar: contrastive representation learning for images",
        help_epilogue=epilogue,
        version=nearfar.__version__,
        **PAGE,
    )
    made = {command.name[0]: command for command in apps}
    for place, name in enumerate(command_paths()):
        if name in made:
            app.command(made[name])
        elif summaries:
            app.command(lambda: None, name=name, help=_summary(name), sort_key=place)
        else:
            app.command(f"{__name__}:{name}", name=name, sort_key=place)
    return app


def __getattr__(name: str) -> App:
    if name not in command_paths():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return command_app(name)


def _summary(name: str) -> str:
    """Return the first line on a command; of another package's that cannot be imported, why."""
    try:
        return summary_of(inspect.getdoc(function_of(name)) or "")
    except Exception as error:
        if name in CORE:
            raise
        return f"cannot be imported: {first_line(error)}"


def command_app(name: str, choices: Mapping[str, Sequence[str]] | None = None) -> App:
    """Return a command, which returns the arguments that words give to its function.

    choices: words that options take, for completion.
    """
    if name == "pretrain":
        return pretrain_app(choices=choices)
    function = function_of(name)
    arguments = [*_arguments(name, function, choices or {}), *_further(name)]

    def command(*_: Any, **__: Any) -> None: ...

    command.__signature__ = inspect.Signature(arguments)  # type: ignore[attr-defined]
    options = {argument.name for argument in arguments if argument.kind is Argument.KEYWORD_ONLY}
    # a paragraph in one line: the help is wrapped where it is shown
    docs = re.sub(r"\n {5,}", " ", inspect.getdoc(function) or "")
    command.__doc__ = as_options(docs, lambda: options)
    return _app(name, command)


def options_of_app(app: App) -> ArgumentCollection:
    """Return what words can give to a command, with its help."""
    return ArgumentCollection(
        argument
        for argument in app.assemble_argument_collection(parse_docstring=True)
        if argument.parse and not argument.children
    )


def _app(name: str, command: Callable[..., Any], note: str = "") -> App:
    epilogue = "\n".join([*examples_of(name), note]).strip()
    app = App(name=name, help_epilogue=epilogue, help_flags=HELP, version_flags=(), **PAGE)
    app.default(command)
    return app


def _arguments(
    name: str, function: Callable[..., Any], choices: Mapping[str, Sequence[str]]
) -> Iterator[Argument]:
    """Yield the arguments of a function as words give them: by place alone or by name alone, and
    text for what may be of any type.
    """
    scope = inspect.unwrap(function).__globals__
    for parameter in inspect.signature(function).parameters.values():
        placed, hint = (
            parameter.kind is not Argument.KEYWORD_ONLY,
            _hint_of_words(parameter.annotation, scope),
        )
        several = hint is Any and parameter.name in SOURCES
        default = Argument.empty if (name, parameter.name) in REQUIRED else parameter.default
        if hint is None:
            taken: Any = Annotated[Any, Parameter(parse=False)]
            yield parameter.replace(kind=Argument.KEYWORD_ONLY, annotation=taken)
            continue
        if hint is Any:
            hint = str | Path if placed or several else str
        hint = list[hint] if several and not placed else hint
        kind: Any = Argument.POSITIONAL_ONLY if placed else Argument.KEYWORD_ONLY
        if several and placed:
            kind, default = Argument.VAR_POSITIONAL, Argument.empty
        shown = default if default is not Argument.empty else None
        if default in (None, ()):  # where pydantic is imported, cyclopts checks defaults by type
            default, hint = None, hint | None
        taken = _word(hint, shown, several=several, choices=choices.get(parameter.name))
        yield Argument(parameter.name, kind, default=default, annotation=taken)


def _hint_of_words(annotation: Any, scope: dict[str, Any]) -> Any:
    """Return a type without the alternatives that stand under TYPE_CHECKING, which are objects;
    None where no other is left.
    """
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, scope)
    except (NameError, AttributeError):
        known = []
        for alternative in annotation.split(" | "):
            try:
                known.append(eval(alternative, scope))
            except (NameError, AttributeError, SyntaxError):
                continue
    return reduce(or_, known) if any(alternative is not None for alternative in known) else None


def _further(name: str) -> Iterator[Argument]:
    """Yield the options that the function of a command need not know of."""
    if opens_images(name):
        yield _option("max_pixels", _word(int | None), None)
    if lists_paths(name):
        yield _option("null", Flag, False)
    yield _option("json", Flag, False)


def _option(name: str, hint: Any, default: Any) -> Argument:
    taken = Annotated[hint, Parameter(help=MEANINGS[name])]
    return Argument(name, Argument.KEYWORD_ONLY, default=default, annotation=taken)


def pretrain_app(
    methods: Sequence[str] | None = None,
    recipe: str | None = None,
    full: bool = False,
    choices: Mapping[str, Sequence[str]] | None = None,
) -> App:
    """Return `nearfar pretrain`, whose options are the settings and the hyperparameters of methods,
    as the recipe sets them.

    methods: by name; None for the default. full: the help has all settings. choices: words that
    options take, for completion.

    Raises ValueError for an unknown method or recipe.
    """
    from nearfar.training.settings import Settings, settings_fields

    hints, choices = get_type_hints(Settings), choices or {}
    names = [Settings.method] if methods is None else methods
    data, *others = settings_fields()
    own = {
        setting.name: _word(
            str if hints[setting.name] is Any else hints[setting.name],
            setting.default,
            help=_in_words(setting.metadata["meaning"]),
            choices=choices.get(setting.name),
            **_place(setting.name, full),
        )
        for setting in others
    }
    of_methods = _hyperparameters(names, recipe or Settings.recipe, full or bool(methods))
    # dictionaries hold what is given; a dataclass would add its defaults
    given = TypedDict("Settings", own, total=False)  # type: ignore[misc]
    numbers = TypedDict("Hyperparameters", of_methods, total=False)  # type: ignore[misc]
    flat, quiet = Parameter(name="*"), Parameter(show_default=False)
    flat_or_none = flat if of_methods else Parameter(parse=False)
    about = {name: Parameter(help=MEANINGS[name], **_place(name, full)) for name in MEANINGS}
    sources = Parameter(help=_in_words(data.metadata["meaning"]), **_place("data", full))

    def pretrain(
        *data: Annotated[_word(str | Path), sources],
        settings: Annotated[given | None, flat] = None,
        hyperparameters: Annotated[numbers | None, flat_or_none] = None,
        resume: Annotated[str | Path | None, about["resume"]] = None,
        data_changed: Annotated[bool, quiet, about["data_changed"]] = False,
        config: Annotated[str | Path | None, about["config"]] = None,
        json: Annotated[Flag, about["json"]] = False,
    ) -> None: ...

    pretrain.__doc__ = summary_of(inspect.getdoc(function_of("pretrain")) or "")
    return _app("pretrain", pretrain, "" if full else "--help-all shows all settings.")


def _in_words(meaning: str) -> str:
    """Return the meaning of a setting without what it may be in Python alone."""
    from nearfar.training.settings import settings_fields

    words = re.sub(r"[;.] [iI]n Python also .*?(?=\. |\.?$)", "", meaning)
    return as_options(words, lambda: {setting.name for setting in settings_fields()})


def _place(name: str, full: bool) -> dict[str, Any]:
    """Return the group of a setting in the help, and whether the page shows it."""
    for place, (title, (usual, others)) in enumerate(GROUPS.items()):
        if name in usual.split() or name in others.split():
            return {"group": Group(title, sort_key=place), "show": full or name in usual.split()}
    return {"group": Group(LAST, sort_key=len(GROUPS) - 1), "show": full}


def _hyperparameters(methods: Sequence[str], recipe: str, shown: bool) -> dict[str, Any]:
    """Return the hyperparameters of methods by name, each with its value in the recipe; the first
    of a name counts.
    """
    if not methods:
        return {}  # without torch
    from nearfar.methods import describe, method_class

    numbers: dict[str, Any] = {}
    for number, method in enumerate(methods):
        kind = method_class(method)
        group = Group(f"--method {method} --recipe {recipe}", sort_key=len(GROUPS) + number)
        hints, values = get_type_hints(kind), kind.from_recipe(recipe)
        meanings = describe(kind)["meanings"]
        for parameter in fields(kind):
            meaning, value = meanings.get(parameter.name, ""), getattr(values, parameter.name)
            taken = _word(hints[parameter.name], value, help=meaning, group=group, show=shown)
            numbers.setdefault(parameter.name, taken)
    return numbers


def _word(hint: Any, default: Any = None, several: bool = False, **about: Any) -> Any:
    """Return a type with how words give it: a list takes those up to the next option.

    several: the option is repeated for each element. about: arguments of `Parameter`.
    """
    kinds = {get_origin(kind) or kind for kind in [hint, *get_args(hint)]}
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    taken = Parameter(
        converter=partial(_whole, hint) if int in kinds else None,
        consume_multiple=None if several else 1,
        negative_iterable="",
        n_tokens=-1 if {list, Literal} <= kinds else None,  # a list, or one word
        show_default=False if default in (None, False, ()) else shown,
    )
    return Annotated[hint, taken, Parameter(**about)]


def _whole(hint: Any, _: Any, tokens: Sequence[Token]) -> Any:
    """Convert words to a value of a type with whole numbers: cyclopts would round 1.5 to one."""
    value = convert(hint, tokens)
    values = value if isinstance(value, list | tuple) else [value]
    for token, number in zip(tokens, values, strict=False):
        if type(number) is int and "." in token.value:
            raise CoercionError(token=token, target_type=int)
    return value
