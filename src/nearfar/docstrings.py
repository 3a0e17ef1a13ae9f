"""What a docstring says of each argument."""

from __future__ import annotations

import re


def arguments(docs: str) -> dict[str, str]:
    """Read the section "Args:" of a cleaned docstring: the text after each name, in one line."""
    block = re.search(r"^Args:\n(.*?)(?:\n\n|\Z)", docs, re.DOTALL | re.MULTILINE)
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", block[1] if block else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}
