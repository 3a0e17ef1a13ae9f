"""Files that are read from any byte on: on this machine, or of a data set on the Hugging Face Hub."""

from __future__ import annotations

from typing import Any, BinaryIO

from nearfar.data.sources import hub_name
from nearfar.messages import one_line

ADDRESS = "hf://datasets/"


def opened(path: str) -> BinaryIO:
    """Open a file for reading; ValueError, one line, for one that is not there or cannot be reached."""
    with one_line(f"cannot read '{path}'"):
        return _hub().open(path, "rb") if path.startswith(ADDRESS) else open(path, "rb")


def hub_files(source: str, ending: str) -> tuple[str, dict[str, str]]:
    """The address of a data set "hf:owner/name", and its files with that ending: what each is, in a word.

    ValueError, one line, where the Hub cannot be reached or has no such data set.
    """
    root = ADDRESS + hub_name(source)
    with one_line(f"cannot open '{source}' of the Hugging Face Hub"):
        listed = _hub().find(root, detail=True)
    inside = root.removeprefix("hf://") + "/"
    files = {path.removeprefix(inside): f"{about['size']} {about.get('blob_id')}" for path, about in listed.items()}
    return root, {name: mark for name, mark in sorted(files.items()) if name.lower().endswith(ending)}


def _hub() -> Any:
    import huggingface_hub

    return huggingface_hub.HfFileSystem()
