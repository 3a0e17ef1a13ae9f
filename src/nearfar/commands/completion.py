"""Print a script that lets bash, zsh or fish complete verbs, options and their values.

nearfar completion bash > ~/.local/share/bash-completion/completions/nearfar
nearfar completion zsh > ~/.zfunc/_nearfar
nearfar completion fish > ~/.config/fish/completions/nearfar.fish
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console

FILES = ("data", "run", "images", "out", "init", "config", "resume", "root", "labels", "onto", "columns", "table")


def completion_script(shell: Literal["bash", "zsh", "fish"] | None = None, *, console: Console | None = None) -> str:
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
    if shell is None:
        raise ValueError("name the shell, bash, zsh, fish: nearfar completion bash")
    from cyclopts import App

    from nearfar.arguments import VERBS, verb_app
    from nearfar.methods import method_names

    app, known = App(name="nearfar"), dict.fromkeys(FILES, Path) | _values()
    for verb in VERBS:
        app.command(verb_app(verb, method_names(), full=True, known=known), name=verb)
    script = app.generate_completion(shell=shell)
    print(script)
    return script


def _values() -> dict[str, Sequence[str]]:
    """The words that options take whose annotation does not list them."""
    from nearfar.evaluation import FINETUNE, PROTOCOLS
    from nearfar.methods import method_class, method_names
    from nearfar.networks import encoder_names
    from nearfar.views import PRESETS

    methods = [method_class(name) for name in method_names()]
    modules = (importlib.import_module(f"nearfar.papers.{name}") for name in ("paper", "protocols", "detector"))
    papers, protocols, detector = modules  # by name, as no room imports the papers
    return {
        "accelerator": ["auto", "cpu", "cuda"],
        "by": ["diverse", "typical", "outlier", "near"],
        "encoder": encoder_names(),
        "layout": ["projector", "finetune", "cluster-embedding"],
        "method": method_names(),
        "protocol": [
            name
            for name in (*PROTOCOLS, *FINETUNE, *protocols.PROTOCOLS, *detector.TASKS)
            if not name.endswith(("K", "P"))
        ],
        "recipe": sorted({name for method in methods for name in method.recipes}),
        "table": [f"{paper}/{table}" for paper in papers.paper_names() for table in papers.read_paper(paper).tables],
        "views": list(PRESETS),
    }
