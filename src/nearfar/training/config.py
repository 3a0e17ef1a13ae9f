"""Values of settings as config.yaml holds them, and back."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import yaml

from nearfar.data.sources import special
from nearfar.views import ViewPlan

OBJECTS = ("data", "method", "encoder", "views")  # what may be an object instead of a name


@dataclass(frozen=True)
class Described:
    """Stands in settings read from a file for an object that the file only describes."""

    words: str


def load_yaml(path: Path) -> Any:
    """Return what a YAML file holds.

    Raises yaml.YAMLError or ValueError for other files, for pipes and devices, which may never end, and for aliases
    (*name) that make a small file large.
    """
    if what := special(path):
        raise ValueError(f"it is {what}, not a file")
    text = path.read_text(encoding="utf-8")
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _written_out(node, 10_000 + 10 * len(text), {})
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _written_out(node: yaml.Node, most: int, known: dict[int, int]) -> int:
    """Count characters and nodes of a document with its aliases written out; ValueError for more than `most`."""
    if id(node) not in known:
        known[id(node)] = most  # where it holds itself
        parts = node.value if isinstance(node, yaml.SequenceNode) else ()
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        size = 1 + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)
        known[id(node)] = size + sum(_written_out(part, most, known) for part in parts)
        if known[id(node)] > most:
            raise ValueError("its aliases (*name) stand for far more than the file holds; write it without them")
    return known[id(node)]


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the names and values of a YAML file; raises ValueError for any other."""
    try:
        values = load_yaml(path)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ValueError(f"{path} does not hold the settings of a run: it must be names with values")
    return values


def describe_object(value: Any) -> Described:
    """Describe an object of the user's own by the name of its class or function."""
    kind = value if hasattr(value, "__qualname__") else type(value)
    return Described(f"{kind.__module__}.{kind.__qualname__}")


def written(value: Any) -> Any:
    """Return the value of a setting as YAML can hold it."""
    if isinstance(value, Described):
        return {"object": value.words}
    if isinstance(value, ViewPlan):
        return value.to_dict()
    return _plain(value)


def read_value(name: str, value: Any) -> Any:
    """Return the value of a setting from what YAML holds; raises ValueError for what cannot be one."""
    if name in OBJECTS and isinstance(value, dict) and set(value) == {"object"}:
        return Described(str(value["object"]))
    if name == "views" and isinstance(value, dict):
        return ViewPlan.from_dict(value)
    if name == "data" and isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return value
    if name in OBJECTS and not isinstance(value, str | None):
        raise ValueError(f"--{name} must be a text, not {value!r}")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):  # also those of NumPy, which YAML does not know
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return list(value) if isinstance(value, tuple) else value
