"""Values of settings as config.yaml holds them, and back."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import yaml

from nearfar.views import ViewPlan
from nearfar.yaml_files import load_yaml

OBJECTS = ("data", "method", "encoder", "views")  # what may be an object instead of a name


@dataclass(frozen=True)
class Described:
    """Stands in settings read from a file for an object that the file only describes."""

    words: str


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
