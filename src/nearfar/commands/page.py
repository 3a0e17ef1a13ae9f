"""A web page that asks for nothing outside itself, in the style of the report."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

from nearfar.maps.document import policy

IMAGE = r"data:image/(png|jpeg);base64,[A-Za-z0-9+/]*={0,2}"  # the address of an image in the page itself


def whole_page(title: str, about: str, main: str, *, scripts: Sequence[str] = ()) -> str:
    """Return a page with a heading and a line below it (plain text, both), and the HTML of its main part.

    scripts: texts of those in the page, or in a page that it holds: no other may run.
    """
    below = f'<p class="about">{html.escape(about)}</p>' if about else ""
    style = resources.files("nearfar.commands").joinpath("report.css").read_text(encoding="utf-8")
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(*scripts)}">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{html.escape(title)}</h1>{below}</header>\n"
        f"<main>\n{main}\n</main>\n</body>\n</html>\n"
    )
    return page.encode("utf-8", "backslashreplace").decode("utf-8")  # the name of a folder need not be UTF-8


def main_part(page: str) -> str:
    """Return the HTML of the main part of such a page."""
    return page.partition("<main>\n")[2].partition("\n</main>")[0]


def image_url(text: Any) -> str:
    """Return a data URL of an image that a file holds; raises ValueError for anything else."""
    if not (isinstance(text, str) and re.fullmatch(IMAGE, text)):
        raise ValueError("what should be an image is none")
    return text
