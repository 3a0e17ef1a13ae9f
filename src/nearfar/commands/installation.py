"""What is installed: the packages that nearfar needs, those that are optional, and what is missing or too old."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from email.message import Message
from typing import Any, cast

from packaging.requirements import Requirement

from nearfar.training.environment import version_of

DEVELOPERS = ("test", "benchmarks", "docs")
"""Extras that no run needs."""


def versions() -> dict[str, str | None]:
    """Return the versions of Python, nearfar and what it needs; None for a package that is missing."""
    needed = {one.name: version_of(one.name) for one in _required("")}
    return {"python": platform.python_version(), "nearfar": version_of("nearfar"), **needed}


def extras() -> dict[str, dict[str, Any]]:
    """Return the optional extras: "versions" of their packages, and "install", the command; None if all are there."""
    found: dict[str, dict[str, Any]] = {}
    for extra in _metadata().get_all("Provides-Extra", []):
        if extra not in DEVELOPERS:
            there = {one.name: version_of(one.name) for one in _required(extra)}
            install = f"pip install 'nearfar[{extra}]'" if None in there.values() else None
            found[extra] = {"versions": there, "install": install}
    return found


def lacking() -> list[str]:
    """Return what is missing or too old for nearfar to run, each with the command that installs it."""
    said = []
    for one in _required(""):
        there = version_of(one.name)
        if there is None:
            said.append(f"{one.name} is missing: pip install '{one.name}{one.specifier}'")
        elif not one.specifier.contains(there, prereleases=True):
            said.append(f"{one.name} {there} is not {one.specifier}: pip install '{one.name}{one.specifier}'")
    return said


def _required(extra: str) -> Iterator[Requirement]:
    """What nearfar needs, or with an extra what that adds."""
    for line in _metadata().get_all("Requires-Dist", []):
        one = Requirement(line)
        of_extra = one.marker is not None and "extra" in str(one.marker)
        if of_extra == bool(extra) and (one.marker is None or one.marker.evaluate({"extra": extra})):
            yield one


def _metadata() -> Message:
    try:
        return cast("Message", importlib.metadata.metadata("nearfar"))
    except importlib.metadata.PackageNotFoundError:  # a source tree that was not installed
        return Message()
