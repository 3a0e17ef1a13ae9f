"""Options from the definition of the settings, and from the numbers of the method."""

from __future__ import annotations

import re
from argparse import HelpFormatter
from typing import get_type_hints

from jsonargparse import ArgumentParser

from nearfar.methods import method_class
from nearfar.training.settings import Settings, settings_fields


class DashedParser(ArgumentParser):
    """Shows options with dashes, as they are written on the command line."""

    def format_help(self, formatter: HelpFormatter | None = None) -> str:
        return re.sub(r"--[a-z][\w]*", lambda match: match[0].replace("_", "-"), super().format_help(formatter))


def add_settings(parser: ArgumentParser, method: str, recipe: str) -> None:
    """Add an option for every setting, and for every number of a method as a recipe sets it.

    Raises ValueError for an unknown method or recipe.
    """
    hints = get_type_hints(Settings)
    for one in settings_fields():
        if one.name not in ("data", "hyperparameters"):
            kind = one.metadata["word"] or hints[one.name]
            parser.add_argument(f"--{one.name}", type=kind, default=one.default, help=one.metadata["meaning"])
    chosen = method_class(method)
    if recipe not in chosen.recipes:
        raise ValueError(f"{method} has no recipe {recipe!r}, it has: {', '.join(chosen.recipes)}")
    parser.add_class_arguments(chosen)
    parser.set_defaults({"method": method, "recipe": recipe, **chosen.recipes[recipe].hyperparameters})
