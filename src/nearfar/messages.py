"""One clear line for a mistake: the nearest known name, the range of a number, and what an error says."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class RunsFailed(RuntimeError):
    """Some of several runs failed; what the others found is there."""


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "", most: int = 1, cutoff: float = 0.4) -> str:
    """Return "did you mean 'NAME'?" with the names of `known` nearest to a word, or `otherwise` if none is near."""
    near = difflib.get_close_matches(word, list(known), most, cutoff)
    return f"did you mean {' or '.join(repr(name) for name in near)}?" if near else otherwise


def check_range(option: str, value: float | None, least: float, most: float = math.inf) -> None:
    """Raise ValueError for a number that is given and not in least..most, or not finite."""
    if value is not None and not (least <= value <= most and abs(value) != math.inf):
        bounds = f"at least {least}" if most == math.inf else f"{least} to {most}"
        raise ValueError(f"{option} must be {bounds}, not {value}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def one_line(what: str, *kinds: type[BaseException]) -> Iterator[None]:
    """Turn errors of these kinds into a ValueError of one line that begins with `what`.

    kinds: default: any, for decoders, networks and code of the user's, which raise anything.
    """
    kinds = kinds or (Exception,)
    try:
        yield
    except kinds as error:
        raise ValueError(f"{what}: {first_line(error)}") from error
