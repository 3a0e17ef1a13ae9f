"""Print a script that lets bash, zsh or fish complete verbs, options and their values.

nearfar completion bash > ~/.local/share/bash-completion/completions/nearfar
nearfar completion zsh > ~/.zfunc/_nearfar
nearfar completion fish > ~/.config/fish/completions/nearfar.fish
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

import shtab
from rich.console import Console

from nearfar.commands.declared import VERBS, Option, read_verb
from nearfar.commands.detection import TASKS
from nearfar.commands.help import ALL, JSON, add_option, numbers_of
from nearfar.commands.layouts import LAYOUTS
from nearfar.commands.select import MEANING
from nearfar.evaluation import FINETUNE, PROTOCOLS
from nearfar.methods import method_class, method_names
from nearfar.networks import encoder_names
from nearfar.papers import paper_names, read_paper
from nearfar.views import PRESETS

SHELLS = ("bash", "zsh", "fish")
FILES = ("data", "run", "images", "out", "init", "config", "resume", "root", "labels", "onto", "columns", "table")


def completion_script(shell: str | None = None, *, console: Console | None = None) -> str:
    """Print a script that lets bash, zsh or fish complete verbs, options and their values.

    Write it to the file where the shell looks for it, as above, and again after an update of nearfar or timm.

    Args:
        shell: bash, zsh or fish.
        console: not used: the script goes to stdout as it is.

    Returns:
        The script.

    Raises:
        ValueError: for another shell.
    """
    if shell not in SHELLS:
        raise ValueError(f"name the shell, {', '.join(SHELLS)}: nearfar completion bash")
    script = shtab.complete(_parser(), shell)
    print(script)
    return script


def _parser() -> ArgumentParser:
    """The whole command line as a parser of argparse, which shtab reads; no words are ever parsed by it."""
    parser = ArgumentParser("nearfar", add_help=False)
    verbs = parser.add_subparsers()
    values = _values()
    for name in VERBS:
        verb = read_verb(name)
        own = verbs.add_parser(name, help=verb.summary, description=verb.summary, conflict_handler="resolve")
        options = [*verb.options, JSON, *([ALL] if name == "pretrain" else [])]
        if name == "pretrain":
            options += [number for _, numbers in numbers_of(None, None) for number in numbers]
        for option in options:
            _fill(add_option(own, option, verb.places.get(option.name, "")), option, values)
    return parser


def _fill(action: Any, option: Option, values: dict[str, list[str]]) -> None:
    """Give an action the words that it can take, or let it take files."""
    if action.nargs == 0:
        return
    if known := values.get(option.name) or option.choices or (("true", "false") if "bool" in option.annotation else ()):
        action.choices = known
    elif option.name in FILES:
        action.complete = shtab.FILE


def _values() -> dict[str, list[str]]:
    """The words that options take whose annotation does not list them."""
    methods = [method_class(name) for name in method_names()]
    return {
        "accelerator": ["auto", "cpu", "cuda"],
        "by": list(MEANING),
        "encoder": encoder_names(),
        "layout": list(LAYOUTS),
        "method": method_names(),
        "protocol": [name for name in (*PROTOCOLS, *FINETUNE, *TASKS) if not name.endswith(("K", "P"))],
        "recipe": sorted({name for method in methods for name in method.recipes}),
        "shell": list(SHELLS),
        "table": [f"{paper}/{table}" for paper in paper_names() for table in read_paper(paper).tables],
        "views": list(PRESETS),
    }
