"""A mkdocs hook: the site has every tutorial as a notebook too, as `jupytext --to ipynb FILE`
writes it.
"""

from __future__ import annotations

from typing import Any

import jupytext
from mkdocs.structure.files import File, Files

FOLDER = "tutorials/"


def on_files(files: Files, config: Any) -> Files:
    """Add a notebook beside each tutorial."""
    for file in files.documentation_pages():
        if file.src_uri.startswith(FOLDER):
            content = jupytext.writes(jupytext.reads(file.content_string, fmt="md"), fmt="ipynb")
            files.append(
                File.generated(config, file.src_uri.replace(".md", ".ipynb"), content=content)
            )
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Link the notebook below the title of its tutorial."""
    if not page.file.src_uri.startswith(FOLDER):
        return markdown
    title, rest = markdown.lstrip().split("\n", 1)
    return f"{title}\n\n[This page as a notebook]({page.file.name}.ipynb){{ download }}\n{rest}"
