"""A web page that asks for nothing outside itself, in the style of the report."""

from __future__ import annotations

import html
from importlib import resources


def whole_page(title: str, about: str, main: str, *, scripts: bool = False) -> str:
    """Return a page with a heading and a line below it (plain text, both), and the HTML of its main part.

    scripts: whether those in the page, or in a page that it holds, may run.
    """
    allowed = "style-src 'unsafe-inline'" + ("; script-src 'unsafe-inline'" if scripts else "")
    below = f'<p class="about">{html.escape(about)}</p>' if about else ""
    style = resources.files("nearfar.commands").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        f'{allowed}">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{html.escape(title)}</h1>{below}</header>\n"
        f"<main>\n{main}\n</main>\n</body>\n</html>\n"
    )


def main_part(page: str) -> str:
    """Return the HTML of the main part of such a page."""
    return page.partition("<main>\n")[2].partition("\n</main>")[0]
