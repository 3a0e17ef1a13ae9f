"""The words of a command line: put in order before they are parsed, and what the parser says of them made plain."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfar.commands.help import FULL
from nearfar.messages import did_you_mean

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

LISTS = ("protocol", "projector", "predictor", "mean", "std", "probe_lr", "only", "value_range", "show_channels")
PLACE = "\0"  # no word of a shell holds it


def ahead(words: Sequence[str]) -> list[str]:
    """The words before "--", which ends the options."""
    return list(words[: words.index("--")] if "--" in words else words)


def places_first(words: Sequence[str], behind: Sequence[str], flags: Iterable[str]) -> list[str]:
    """Put what is given by its place before the options: argparse wants it together.

    An option begins with two dashes and takes the next word; a flag takes it only if it is true or false. behind: words
    that are no options. Those that argparse might take for one begin with `PLACE` then.
    """
    placed: list[str] = []
    options: list[str] = []
    takes = False
    for word in words:
        if takes and options[-1] in flags:
            takes = False
            if word.lower() in ("true", "false"):
                options[-1] += f"={word.lower()}"
                continue
        is_option = word.startswith("--")
        (options if takes or is_option else placed).append(word)
        takes = is_option and "=" not in word
    return [*(PLACE + word if word.startswith("-") else word for word in [*placed, *behind]), *options]


def lists_joined(words: Sequence[str]) -> list[str]:
    """Join what follows an option that takes a list, `--protocol knn linear`, to the one word [knn, linear]."""
    joined: list[str] = []
    taken: list[str] | None = None
    for word in [*words, "--"]:
        if taken is not None and not word.startswith("--"):
            taken.append(word)
            continue
        if taken:
            word_alone = joined[-1] == "--value_range" and taken[0].isalnum() and len(taken) == 1
            joined.append(taken[0] if taken[0].startswith("[") or word_alone else f"[{', '.join(taken)}]")
        taken = [] if word.removeprefix("--") in LISTS and word.startswith("--") else None
        joined.append(word)
    return joined[:-1]


def data_joined(words: Sequence[str]) -> list[str]:
    """Join several sources, `--data a/ --data b/`, to one option with a list."""
    places = [place for place, word in enumerate(words[:-1]) if word == "--data"]
    if len(places) < 2:
        return list(words)
    given = [words[place + 1] for place in places]
    taken = {*places, *(place + 1 for place in places)}
    return [*(word for place, word in enumerate(words) if place not in taken), "--data", json.dumps(given)]


def chosen_ahead(words: Sequence[str]) -> dict[str, Any]:
    """Look for method and recipe ahead of parsing, since the options depend on them, and for the data of --config."""
    from nearfar.training.config import read_yaml

    chosen: dict[str, Any] = {"method": None, "recipe": None, "data": None}
    given = [
        word.split("=", 1) if "=" in word else [word, after]
        for word, after in zip(words, [*words[1:], ""], strict=False)
        if word.startswith("--")
    ]
    options = dict(given)
    for file in (Path(value) for option, value in given if option == "--config" and value):
        settings = read_yaml(file) if file.exists() else {}
        for name, value in settings.items():
            if isinstance(value, dict) and set(value) == {"object"}:
                raise ValueError(f"the {name} of {file} was an object ({value['object']}): run it in Python")
        chosen |= {name: settings[name] for name in chosen if name in settings}
    return chosen | {name: options[f"--{name}"] for name in chosen if f"--{name}" in options}


def plain_words(message: str, verb: str, parser: ArgumentParser) -> str:
    """Turn a parser's complaint into one line."""
    message = message.replace(PLACE, "")
    unknown = re.search(r"unrecognized arguments: (\S+)", message)
    if unknown:
        options = [option for action in parser._actions for option in action.option_strings] + ["--json", FULL]
        hint = nearest(unknown[1], options, f"see nearfar {verb} --help")
        return f"nearfar {verb} does not know {dashes(unknown[1])}: {hint}"
    key = re.search(r'[Kk]ey "([\w.]+)"', message)
    value = re.search(r"(?:Given value|Got value): (.*)", message)
    if key and value:
        return f"--{dashes(key[1])} cannot be {value[1]!r}; see nearfar {verb} --help"
    return " ".join(message.split())


def nearest(word: str, known: Iterable[str], otherwise: str) -> str:
    """Suggest the known word that is most like one, as an option is written; else what is said otherwise."""
    return dashes(did_you_mean(word, known, otherwise, cutoff=0.5))


def dashes(option: str) -> str:
    """Write an option as it is on the command line."""
    return option.replace("_", "-")
