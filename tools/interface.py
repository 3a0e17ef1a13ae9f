"""Write docs/interface.md, the public interface, from the code: `python -m tools.interface
[FILE]`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from inspect import Parameter
from pathlib import Path
from typing import Any, get_origin

import nearfar
import nearfar_papers
from nearfar.app import command_app, command_paths, options_of_app, pretrain_app
from nearfar.methods import Method
from nearfar.run import Run, Verb

ROOMS = {  # in the order of the page
    "losses": "One `nn.Module` for each paper's loss, used alone "
    "([reference](reference/losses.md)).",
    "testing": "A contract for any loss on embeddings, needing torch alone ([guide](conformance.md)).",
    "pairs": "The reductions behind the losses, for writing your own "
    "([reference](reference/pairs.md)).",
    "views": "Augmentations of batches ([guide](views.md)).",
    "data": "Sources of images and the table of a data set ([guide](sources.md)).",
    "networks": "Backbones, the momentum encoder, the queue and the saved encoder "
    "([guide](export.md)).",
    "methods": "One declaration for each method ([list](methods.md), [guide](extending.md)).",
    "neighbours": "Nearest neighbours in feature space ([guide](neighbours.md)).",
    "evaluation": "Features, and the protocols on them ([guide](evaluation.md)).",
    "maps": "Layouts and their quality ([guide](maps.md)).",
    "embeddings": "Images with their features, and what a target of a tool can be "
    "([guide](extending.md#a-tool)).",
    "pages": "Pages in HTML: templates, and the report of a run "
    "([guide](extending.md#commands-and-sections-of-the-report)).",
    "sklearn": "Estimators for scikit-learn ([guide](export.md#scikit-learn)).",
}
PAPERS = """## nearfar_papers

A second package of the same installation: the papers' tables ([guide](reproduce.md)) and protocols
([guide](evaluation.md)). `nearfar` finds its commands by entry points.
"""
HEAD = """# Public interface

What this page lists is public; everything else may change without notice, even if it has no underscore: the other names
of a subpackage, other files, the HTML of pages and the wording of messages. `python -m tools.interface` writes the
page, and a test compares it with the code, so that no change of the interface goes unseen.

## Stability

Versions follow semantic versioning from 1.0 on. Until then a minor version (0.3) may change what is listed here, and
[CHANGELOG.md](changes.md) names every such change under "Changed" or "Removed"; a patch (0.2.1) changes nothing of it.
Before 1.0 names are changed rather than deprecated.

| what | before 1.0 |
|---|---|
| commands, options, functions of `nearfar`, methods of `Run` | may change in a minor version; removals are rare |
| `nearfar.losses`: names, arguments, values and gradients | stable; a corrected value is listed under "Fixed" |
| other subpackages | may change in a minor version |
| defaults (encoder, views, optimiser, schedule) | change when measurements say so; `config.yaml` keeps those of a run |
| a paper's `--recipe` | changes only where it is shown to differ from the paper or its code |
| run folders: encoder, results, `config.yaml` | `nearfar.load` reads those of 0.2 and later |
| checkpoints | resume with the version that wrote them |
| columns of CSV and Parquet files, keys of `--json` | may gain some; others change in a minor version |
| numbers of equal seeds | equal for one version of nearfar and its requirements, on one kind of processor |
| Python and the requirements | a minor version may raise the oldest supported ones (constraints-lowest.txt) |

Undecided, and likely to change before 1.0: the names of `nearfar.data`, and functions that are not called as their
commands are (`run_demo`, `show_views`, `list_methods`), because `nearfar.views` and `nearfar.methods` are subpackages.

## Commands

`nearfar COMMAND` is a function of `nearfar`, and for a run a method of `Run`. Options that every command has, `--help`,
`--help-all` and `--json`, are left out. `pretrain` also has the [hyperparameters of its method](methods.md).
"""


def interface_page() -> str:
    """Return the page in Markdown: every command with its options, and every public name with its
    signature.
    """
    rooms = (_room(name, about) for name, about in ROOMS.items())
    return "\n".join([HEAD, *_commands(), *_functions(), *rooms, *_papers()])


def _commands() -> Iterator[str]:
    methods = {value.function: name for name, value in vars(Run).items() if isinstance(value, Verb)}
    yield "| command | function | method | arguments and options |\n|---|---|---|---|"
    for verb, path in command_paths().items():
        package, function = path.split(":")
        if package.split(".")[0] != "nearfar":
            continue
        called = f"`{function}`" if function in nearfar.__all__ else "-"
        method = f"`run.{methods[function]}`" if function in methods else "-"
        options = " ".join(f"`{option}`" for option in options_of(verb))
        yield f"| `{verb}` | {called} | {method} | {options} |"


def options_of(verb: str) -> Iterator[str]:
    """The arguments of a verb in capitals, then its options in the order of the alphabet."""
    app = pretrain_app(methods=[]) if verb == "pretrain" else command_app(verb)
    names = [option.name for option in options_of_app(app) if option.name != "--json"]
    yield from (name.removeprefix("--") for name in names if not name.startswith("--"))
    yield from sorted(name for name in names if name.startswith("--"))


def _functions() -> Iterator[str]:
    yield "\n## nearfar\n\n```python"
    yield from (
        signature(name, getattr(nearfar, name)) for name in nearfar.__all__ if name != "__version__"
    )
    yield "```\n\nA `Run` also has these, besides the methods above:\n\n```python"
    own = {
        name: value
        for name, value in vars(Run).items()
        if name[0] != "_" and not isinstance(value, Verb)
    }
    yield from (
        signature(f"Run.{name}", value if inspect.isfunction(value) else None)
        for name, value in sorted(own.items())
    )
    yield "```\n"


def _room(name: str, about: str) -> str:
    room = importlib.import_module(f"nearfar.{name}")
    lines = [signature(public, getattr(room, public)) for public in public_names(name)]
    return "\n".join([f"## nearfar.{name}\n\n{about}\n\n```python", *lines, "```\n"])


def _papers() -> Iterator[str]:
    """The second package: its commands, and its functions with their signatures."""
    yield PAPERS
    yield "| command | function | arguments and options |\n|---|---|---|"
    for name in nearfar_papers.__all__:
        listed = " ".join(f"`{word}`" for word in options_of(name))
        yield f"| `{name}` | `nearfar_papers.{name}` | {listed} |"
    lines = (signature(name, getattr(nearfar_papers, name)) for name in nearfar_papers.__all__)
    yield "\n".join(["\n```python", *lines, "```\n"])


def public_names(room: str) -> list[str]:
    """The names in a room's `__all__`; in a file without one, its own classes and functions."""
    module = importlib.import_module(f"nearfar.{room}")
    own = (
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__
    )
    return sorted(getattr(module, "__all__", None) or (name for name in own if name[0] != "_"))


class Text(str):
    """An annotation as the source has it, without the quotes of a text."""

    __repr__ = str.__str__


def signature(name: str, value: Any) -> str:
    """Return a name with its arguments, one on a line where they are many; of what takes none, the
    name alone.
    """
    listed_elsewhere = (
        isinstance(value, type) and issubclass(value, Exception | Method) and value is not Method
    )
    if (
        listed_elsewhere
        or not (inspect.isfunction(value) or isinstance(value, type))
        or get_origin(value)
    ):
        return name
    given = inspect.signature(value)
    arguments = [
        argument.replace(annotation=_as_text(argument.annotation))
        for argument in given.parameters.values()
    ]
    result = Parameter.empty if isinstance(value, type) else _as_text(given.return_annotation)
    line = f"{name}{given.replace(parameters=arguments, return_annotation=result)}"
    if len(line) <= 110:
        return line
    lines = [f"    {argument}," for argument in arguments]
    named = [
        place for place, argument in enumerate(arguments) if argument.kind is argument.KEYWORD_ONLY
    ]
    if named:
        lines.insert(named[0], "    *,")
    return "\n".join(
        [f"{name}(", *lines, f"){str(inspect.Signature(return_annotation=result))[2:]}"]
    )


def _as_text(annotation: Any) -> Any:
    words = getattr(annotation, "__forward_arg__", annotation)  # in a NamedTuple
    return Text(words) if isinstance(words, str) else annotation


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/interface.md")
    target.write_text(interface_page(), encoding="utf-8")
    print(f"wrote {target}")
