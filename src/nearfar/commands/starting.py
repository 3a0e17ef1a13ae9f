"""The commands to begin with: the whole job on an example, the list of methods, and completion for
a shell.

nearfar demo
nearfar demo photos/ --minutes 8 --out runs/photos
nearfar methods
nearfar completion bash > ~/.local/share/bash-completion/completions/nearfar
nearfar completion zsh > ~/.zfunc/_nearfar
nearfar completion fish > ~/.config/fish/completions/nearfar.fish
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nearfar.isolation import isolated
from nearfar.progress import Table, log

if TYPE_CHECKING:
    from nearfar.run import Run

EPOCHS = 75
MINUTES = 8.0  # of training; the rest is for evaluation and map


@isolated()
def run_demo(
    data: Any = "digits",
    *,
    out: str = "runs/demo",
    minutes: float | None = None,
    seed: int = 0,
) -> Run:
    """Do the whole job on scikit-learn's digits, offline in about a minute, or on a folder of
    photographs in ten.

    That is to pretrain, to evaluate, to draw the map and to write the report.

    Args:
        data: images, as `pretrain` takes them; those with labels are evaluated. Default:
            scikit-learn's digits.
        out: run folder to write; it must not exist.
        minutes: time for the pretraining. Default: 75 epochs for digits, 8 minutes for anything
            else.
        seed: random seed.

    Returns:
        The run.

    Raises:
        ValueError: for data that cannot be read, or where `out` exists.

    >>> nearfar.run_demo("photos", out="runs/demo", minutes=0.1).path.name
    'demo'
    """
    import nearfar
    from nearfar.rendering import shown_nowhere
    from nearfar.training.plan import open_data

    started = time.perf_counter()
    if minutes is None and data == "digits":  # the same numbers on every machine
        run = nearfar.pretrain(data, out=out, seed=seed, epochs=EPOCHS, precision="32-true")
    else:
        length = MINUTES if minutes is None else minutes
        run = nearfar.pretrain(data, out=out, seed=seed, minutes=length)
    with shown_nowhere():
        images = open_data(run.settings)
    if getattr(images, "labels", None) is not None:  # a stream has none
        run.evaluate()
    run.map()
    for name in ("report.html", "map.html", "results.json"):
        if (run.path / name).is_file():
            log.info("  %s", Path(out) / name)
    log.info("done in %.0f s", time.perf_counter() - started)
    return run


def list_methods() -> dict[str, dict[str, Any]]:
    """List the methods: paper, what each needs, and its default hyperparameters.

    Returns:
        For each method its "paper", its "needs" and its "defaults".

    >>> nearfar.list_methods()["simclr"]["defaults"]["temperature"]
    0.2
    """
    from nearfar.methods import describe, method_class, method_names

    facts = {name: describe(method_class(name)) for name in method_names()}
    table = Table("method", "paper", "needs", "hyperparameters", title="nearfar methods")
    for name, fact in facts.items():
        numbers = ", ".join(f"{key} {value}" for key, value in fact["defaults"].items())
        table.add(name, fact["paper"], ", ".join(fact["needs"]), numbers)
    log.info(table)
    return facts


def completion_script(shell: Literal["bash", "zsh", "fish"]) -> str:
    """Print a script that lets bash, zsh or fish complete commands, options and their values.

    Write it to the file where the shell looks for it, as below, and again after an update of
    nearfar or timm.

    Args:
        shell: bash, zsh or fish.

    Returns:
        The script.
    """
    from cyclopts import App

    from nearfar.arguments import all_verbs, verb_app
    from nearfar.device import KINDS
    from nearfar.methods import method_class, method_names
    from nearfar.networks import encoder_names
    from nearfar.views import PRESETS

    choices = {
        "accelerator": KINDS,
        "encoder": encoder_names(),
        "method": method_names(),
        "recipe": sorted(
            {name for method in method_names() for name in method_class(method).recipes}
        ),
        "views": list(PRESETS),
    }
    app = App(name="nearfar")
    for verb in all_verbs():
        app.command(verb_app(verb, method_names(), full=True, choices=choices), name=verb)
    script = app.generate_completion(shell=shell)
    print(script)
    return script
