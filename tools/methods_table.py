"""Write docs/methods.md from the code: `python -m tools.methods_table [FILE]`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from nearfar.commands.methods import list_methods
from nearfar.methods import method_class

HEAD = """# Methods

This page is written by `python -m tools.methods_table`; to change it, change the files in
`src/nearfar/methods/`.

`nearfar pretrain DATA --method NAME` runs any method, on one process or several, with or without labels. A method may
need a *momentum encoder*, a slowly updated copy of the networks; a *queue* of embeddings of earlier batches; an
*index*, for state per image; a *predictor*, a second head. Views are those for images of 64 pixels and more; smaller
images get milder ones. Unless the authors pass each view separately, views of one size go through the encoder together,
and all views through a head together.

Defaults are those of the recipe `small`, for small data. It is the same for all methods: encoder and epochs adjusted to
the images and the time, Muon with learning rate 0.02 * sqrt(batch / 256) and weight decay 0.1, two epochs of warm-up,
batch size 256 ([photographs.md](photographs.md)). `--recipe NAME` uses all settings of a paper instead: encoder, image
size, the paper's own views, optimiser, schedule, batch size and batch norm. Any hyperparameter can also be set by
itself: `--temperature 0.1`.

The papers' recipes have in common: the learning rate warms up linearly and changes with every step, not every epoch;
shortened runs warm up for at most a quarter of their epochs and drop the rate at the same fractions of the run; crops
come from the original files only if the images are not cached (`--no-cache`), otherwise from images resized to the
recipe's size; incomplete batches are dropped.

*Computation* is that of the encoder for one image in a step, in forward passes over a view of full size: a backward
pass counts as two, a small view by its share of the pixels; heads and loss are not counted. Methods that are compared at
equal epochs have spent these numbers.

The table omits hyperparameters that are off, and the projector if it is 512-128; its last column counts the differences
from the paper, which the sections list.
"""


def methods_page() -> str:
    """Return the page in Markdown: a table of all methods, and a section for each."""
    facts = list_methods()
    rows = [
        (
            f"[{name}](#{name})",
            _citation(fact["paper"]),
            ", ".join(fact["needs"]) or "-",
            _views(fact["views"]),
            f"{fact['computation']:.1f}",
            _numbers(fact["defaults"]),
            str(len(fact["differs"]) or "-"),
        )
        for name, fact in facts.items()
    ]
    table = _table(
        (
            "method",
            "paper",
            "needs",
            "views",
            "computation",
            "default hyperparameters",
            "differences",
        ),
        rows,
    )
    return "\n".join([HEAD, table, *(_section(name, fact) for name, fact in facts.items())])


def _section(name: str, fact: dict[str, Any]) -> str:
    numbers = [
        (f"`{key}`", _value(value), fact["meanings"][key])
        for key, value in fact["defaults"].items()
    ]
    parts = [
        f"## {name}\n",
        f"{fact['summary']}\n",
        f"{fact['paper']}. Needs: {', '.join(fact['needs']) or 'nothing'}. Views: "
        f"{_views(fact['views'])}.\n",
        _table(("hyperparameter", "default", "meaning"), numbers),
        *(_recipe(name, key, recipe) for key, recipe in fact["recipes"].items() if key != "small"),
    ]
    if fact["differs"]:
        points = "\n".join(
            f"{place}. {_sentence(point)}" for place, point in enumerate(fact["differs"], start=1)
        )
        parts.append(f"Differs from the paper:\n\n{points}\n")
    return "\n".join(parts)


def _recipe(name: str, key: str, recipe: dict[str, Any]) -> str:
    """Return the recipe's table: every number that it sets, with its source."""
    drops = " and ".join(f"{drop:g}" for drop in recipe["lr_drops"])
    end = f"{recipe['final_lr']:g} of it" if recipe["final_lr"] else "0"
    start = f", from {recipe['warmup_start']:g} of the rate" if recipe["warmup_start"] else ""
    size = f"{recipe['image_size']} px" if recipe["image_size"] else "images at their own size"
    stem = (
        ", 3x3 stem"
        if recipe["image_size"] is None and not recipe["encoder"].endswith("-stem")
        else ""
    )
    encoder = f"{recipe['encoder']}{stem}, {size}"
    decay = (
        f"{recipe['weight_decay']:g}, "
        f"{'on all parameters' if recipe['decay_all'] else 'not on biases and norms'}"
    )
    if recipe["optimizer"] == "larc":
        decay = f"{recipe['weight_decay']:g}, on all parameters"
    rows = {
        "encoder": encoder,
        "views": recipe["views"] or _views(method_class(name).from_recipe(key).views),
        "optimizer": recipe["optimizer"],
        "lr": _rate(recipe),
        "vector_lr": f"{recipe['vector_lr']:g}" if recipe["vector_lr"] != 1 else "",
        "weight_decay": decay,
        "final_lr": f"multiplied by {recipe['lr_drop']:g} at epochs {drops}"
        if drops
        else f"cosine to {end}",
        "warmup_epochs": f"{recipe['warmup_epochs']:g}{start}",
        "batch_size": f"{recipe['batch_size']}{', batch norm synchronised' * recipe['sync_batch_norm']}",
        "epochs": f"{recipe['epochs']}",
        **{number: _value(value) for number, value in recipe["hyperparameters"].items()},
        "protocol": recipe["protocol"],
    }
    other = {"optimizer": "decay_all", "final_lr": "lr_drops", "batch_size": "sync_batch_norm"}
    cited = recipe["sources"]
    lines = [
        (f"`{row}`", text, cited.get(row) or cited.get(other.get(row, "")) or recipe["source"])
        for row, text in rows.items()
        if text
    ]
    return f"### {name} --recipe {key}\n\n" + _table(("setting", "value", "source"), lines)


def _citation(paper: str) -> str:
    """Shorten "Authors, Title, Venue year" to "Authors, Venue year"; a paper without authors stays
    as it is.
    """
    parts = paper.split(", ")
    return f"{parts[0]}, {parts[-1]}" if len(parts) > 2 else paper


def _views(names: Iterable[str]) -> str:
    counted = [(name, len(list(group))) for name, group in groupby(names)]
    return " + ".join(f"{count} {name}" if count > 1 else name for name, count in counted)


def _numbers(defaults: dict[str, Any]) -> str:
    """List the numbers, without those that are off and the usual projector."""
    shown = {
        name: value
        for name, value in defaults.items()
        if value not in (None, ()) and value is not False
    }
    return (
        ", ".join(f"{name} {_value(value)}" for name, value in shown.items() if value != (512, 128))
        or "-"
    )


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return "-".join(str(width) for width in value) or "none"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _rate(recipe: dict[str, Any]) -> str:
    """Write the learning rate as it depends on the batch."""
    rate, reference = f"{recipe['lr']:g}", recipe["reference_batch"]
    if recipe["lr_scaling"] == "none":
        return rate
    batch = "batch" if reference == 1 else f"batch / {reference}"
    return f"{rate} * sqrt({batch})" if recipe["lr_scaling"] == "sqrt" else f"{rate} * {batch}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [titles, tuple("---" for _ in titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/methods.md")
    target.write_text(methods_page(), encoding="utf-8")
    print(f"wrote {target}")
