"""A mkdocs hook: the build fails if a page loads anything from another site."""

from __future__ import annotations

import re
from typing import Any

from mkdocs.exceptions import PluginError

LOADED = re.compile(
    r"""<(?:script|link|img|iframe|source|video|audio|object|embed)\b[^>]*?\s(?:src|href|data)=["']?((?:https?:)?//[^"'\s>]+)"""
)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Return the page as it is; raises PluginError where a browser would ask another machine for a
    part of it.
    """
    if outside := LOADED.findall(output):
        raise PluginError(f"{page.file.src_uri} loads from elsewhere: {', '.join(outside)}")
    return output
