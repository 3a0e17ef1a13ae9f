"""What timm calls our nets and small stems, and what we call those of timm's that are ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nearfar.networks.small import OWN_NETS

SMALL_STEM = "nearfar_small_stem"
ENTRIES = {f"nearfar_{name}": name for name in OWN_NETS}
"""Our nets by the names that timm knows them by."""


def timm_name(name: str, arguments: Mapping[str, Any], small_stem: bool) -> tuple[str, dict[str, Any]]:
    """Return the name by which `timm.create_model` builds a net of an `Architecture`, and its arguments."""
    if name in OWN_NETS:
        return f"nearfar_{name}", dict(arguments)
    name = name.partition(".")[0]  # without the tag of weights
    return (SMALL_STEM, {"base": name, **arguments}) if small_stem else (name, dict(arguments))


def own_name(name: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any], bool | None]:
    """Return name, arguments and small stem of an `Architecture` for a name of timm's: the inverse of `timm_name`.

    The stem is None for nets that are timm's own, which leave it open.
    """
    if name == SMALL_STEM:
        return (
            str(arguments.get("base", "resnet18")),
            {key: value for key, value in arguments.items() if key != "base"},
            True,
        )
    return ENTRIES.get(name, name), dict(arguments), False if name in ENTRIES else None
