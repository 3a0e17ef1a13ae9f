"""Filling templates, and what a page may load and run."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from nearfar.atomic import write_file
from nearfar.evaluation.results import capital
from nearfar.messages import worded

# the address of an image in the page itself
IMAGE = r"data:image/(png|jpeg);base64,[A-Za-z0-9+/]*={0,2}"
MAP_SCRIPTS = (
    (
        "map/store.js",
        "map/painters.js",
        "map/map.js",
        "saving.js",
        "map/selection.js",
    ),
    ("map/panel.js", "map/table.js", "map/controls.js"),
)
NOTHING = "'none'"
PACKAGE = "nearfar.pages"
BESIDE = "file: 'self'"  # what lies beside a page that was opened from disk


def render_page(
    template: str,
    /,
    *,
    package: str = PACKAGE,
    scripts: Sequence[str] = (),
    beside: bool = False,
    **shown: Any,
) -> str:
    """Return a page from a template, which is given what it shows.

    package: that holds the template in its folder templates/. scripts: texts of those in the page,
    or in a page that it holds: no other may run. beside: whether the page may also load images and
    scripts that lie beside it. Values are escaped. A template may extend nearfar's own,
    such as "page.html". Raises jinja2.TemplateNotFound for a template that neither package has.

    >>> "<title>1 &lt; 2</title>" in render_page("page.html", title="1 < 2", about="")
    True
    """
    text = (
        templates(package)
        .get_template(template)
        .render(policy=policy(*scripts, beside=beside), scripts=scripts, **shown)
    )
    return text.encode("utf-8", "backslashreplace").decode(
        "utf-8"
    )  # the name of a folder need not be UTF-8


def write_page(path: Path, name: str, **shown: Any) -> None:
    """Write a page from a template, whole or not at all; see `render_page`.

    >>> from pathlib import Path
    >>> write_page(Path("greeting.html"), "page.html", title="Hello", about="")
    """
    write_file(path, render_page(name, **shown))


def section(name: str, **shown: Any) -> Markup:
    """Return a part of a page from the macro of this name in sections.html."""
    return getattr(templates().get_template("sections.html").module, name)(**shown)


def script(*names: str) -> Markup:
    """Return files as one script, as it stands between its tags."""
    return Markup("\n" + "".join(map(_asset, names)) + "\n")


def policy(*scripts: str, beside: bool = False) -> Markup:
    """Return the Content-Security-Policy of a page: it loads nothing, shows the images in it and
    runs these scripts.

    scripts: their texts, as they stand between the tags; a page in a frame is held to those of the
    page around it too. beside: whether it may also load images and scripts that lie beside it.
    """
    hashes = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    ]
    own = [*(f"'sha256-{hashed}'" for hashed in hashes), *([BESIDE] if beside else [])]
    images = f"data: {BESIDE}" if beside else "data:"
    return Markup(
        f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src "
        f"'unsafe-inline'; img-src {images}; "
        f"script-src {' '.join(own) or NOTHING}"
    )


def image_url(text: Any) -> str:
    """Return a data URL of an image that a file holds; raises ValueError for anything else."""
    if not (isinstance(text, str) and re.fullmatch(IMAGE, text)):
        raise ValueError("what should be an image is none")
    return text


def words(value: Any) -> str:
    """Return a setting as text; for an object of the user's own, in the settings or in their file,
    its description.
    """
    if value is None or value == []:
        return "\u2013"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(words, value))
    if isinstance(value, dict):
        return str(value.get("object", value))
    return (
        f"{value:g}"
        if isinstance(value, float)
        else str(getattr(value, "words", getattr(value, "name", value)))
    )


def in_channels(channels: int) -> str:
    """Return a number of channels in words."""
    return "grayscale" if channels == 1 else f"{channels} channels"


def number(value: float) -> str:
    """Return a number with at most four significant digits."""
    shown = f"{value:.3g}" if value and not 1e-3 <= abs(value) < 1e5 else f"{value:.4g}"
    return shown.replace("e-0", "e-").replace("e+0", "e").replace("-", "\u2212")  # a minus sign


def grouped(count: int | str) -> str:
    """Return a whole number with narrow spaces between thousands; words as they are.

    >>> grouped(1010000) == "1\N{NARROW NO-BREAK SPACE}010\N{NARROW NO-BREAK SPACE}000"
    True
    """
    return count if isinstance(count, str) else f"{count:,}".replace(",", "\u202f")


@cache
def templates(package: str = PACKAGE) -> Environment:
    """The templates of a package, and those of nearfar, with their filters; HTML is escaped."""
    made = Environment(
        loader=ChoiceLoader(
            [
                *(PackageLoader(name) for name in dict.fromkeys([package, PACKAGE])),
                PackageLoader("nearfar", "tools"),
            ]
        ),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {"image": image_url, "words": words, "number": number, "grouped": grouped}
    made.filters |= {"capital": capital, "worded": worded}
    made.filters["percent"] = lambda share: f"{100 * share:.1f}"
    made.globals["asset"] = _asset
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}  # ASCII
    return made


@cache
def _asset(name: str) -> Markup:
    """Return a file of a page: TOOL/NAME of a tool's folder, else NAME of all pages."""
    package, path = ("nearfar.tools", name) if "/" in name else (PACKAGE, f"templates/{name}")
    return Markup((resources.files(package) / path).read_text(encoding="utf-8"))


def map_scripts() -> list[str]:
    """Return the scripts of a map's page, as they stand between their tags."""
    return [script(*names) for names in MAP_SCRIPTS]
