"""environment.json: what a run ran on."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from nearfar.atomic import write_file
from nearfar.device import hardware

PACKAGES = (
    "nearfar",
    "torch",
    "torchvision",
    "timm",
    "datasets",
    "scikit-learn",
    "numpy",
)


def write_environment(folder: Path, seed: int) -> None:
    """Write versions, commit, seed and hardware to environment.json in a run folder."""
    facts = {
        **software(),
        "seed": seed,
        "hardware": hardware() | {"threads": torch.get_num_threads()},
        "system": platform.system(),
    }
    write_file(folder / "environment.json", json.dumps(facts, indent=2) + "\n")


@cache
def software() -> Mapping[str, Any]:
    """Return the versions of Python and of the packages that matter, and the commit of a source
    tree, if it is one: those with which this process began.
    """
    versions = {"python": platform.python_version()} | {name: version_of(name) for name in PACKAGES}
    root, commit = Path(__file__).resolve().parents[3], None
    if (root / ".git").exists() and shutil.which("git") is not None:
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
    return {"versions": versions, "commit": commit}


def version_of(package: str) -> str | None:
    """Return the version of a package that is installed, None for one that is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
