"""The HTML of a map's page, for one file and for a folder alike."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib import resources
from typing import Any

SCRIPTS = {
    "script": ("store.js", "painters.js", "page.js", "selection.js"),
    "controls": ("panel.js", "table.js", "controls.js"),
}
NOTHING = "'none'"
BESIDE = "file: 'self'"  # what lies beside a page that was opened from disk


def policy(*scripts: str, beside: bool = False) -> str:
    """Return the Content-Security-Policy of a page: it loads nothing, shows the images in it and runs these scripts.

    scripts: their texts, as they stand between the tags; a page in a frame is held to those of the page around it too.
    beside: whether it may also load images and scripts that lie beside it.
    """
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    own = [*(f"'sha256-{one}'" for one in hashes), *([BESIDE] if beside else [])]
    images = f"data: {BESIDE}" if beside else "data:"
    return (
        f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; img-src {images}; "
        f"script-src {' '.join(own) or NOTHING}"
    )


def map_scripts() -> list[str]:
    """Return the scripts of a map's page, as they stand between their tags."""
    return ["\n" + "".join(map(_asset, names)) + "\n" for names in SCRIPTS.values()]


def document(title: str, note: str, data: dict[str, Any], *, folder: bool) -> str:
    """Return the page with its styles, scripts and data; nothing in names or titles can end the element it is in."""
    page = _asset("page.html").replace("{{style}}", _asset("page.css"))
    scripts = map_scripts()
    page = page.replace("{{policy}}", policy(*scripts, beside=folder))
    for part, script in zip(SCRIPTS, scripts, strict=True):
        page = page.replace("{{" + part + "}}", script)
    before, after = page.split("{{data}}")
    before = before.replace("{{note}}", html.escape(note)).replace("{{title}}", html.escape(title))
    return before + _json_in_script(data) + after


def compact(value: Any) -> str:
    """Return plain ASCII JSON without spaces."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def _asset(name: str) -> str:
    return (resources.files("nearfar.maps") / name).read_text(encoding="utf-8")


def _json_in_script(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    return compact(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
