"""The HTML of a map's page, for one file and for a folder alike."""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import Any

SCRIPTS = {
    "script": ("store.js", "painters.js", "page.js", "selection.js"),
    "controls": ("panel.js", "table.js", "controls.js"),
}
# A page opened from disk may load images and scripts that lie beside it, and nothing else.
FROM_ITSELF, FROM_FOLDER = (
    "img-src data:; script-src 'unsafe-inline'",
    ("img-src data: file: 'self'; script-src 'unsafe-inline' file: 'self'"),
)


def document(title: str, note: str, data: dict[str, Any], *, folder: bool) -> str:
    """Return the page with its styles, scripts and data; nothing in names or titles can end the element it is in."""
    page = _asset("page.html").replace("{{style}}", _asset("page.css"))
    page = page.replace("{{sources}}", FROM_FOLDER if folder else FROM_ITSELF)
    for part, names in SCRIPTS.items():
        page = page.replace("{{" + part + "}}", "".join(map(_asset, names)))
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
