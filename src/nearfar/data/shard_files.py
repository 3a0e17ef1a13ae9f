"""Files that are read from any byte on: on this machine, or of a data set on the Hugging Face Hub."""

from __future__ import annotations

from typing import Any, BinaryIO

from nearfar.data.sources import hub_name
from nearfar.messages import first_line

ADDRESS = "hf://datasets/"


def opened(path: str) -> BinaryIO:
    """Open a file for reading; ValueError, one line, for one that is not there or cannot be reached."""
    try:
        return _hub().open(path, "rb") if path.startswith(ADDRESS) else open(path, "rb")
    except Exception as error:  # the network and the Hub fail in many ways
        raise ValueError(f"cannot read '{path}': {first_line(error)}") from error


def hub_files(source: str, ending: str) -> tuple[str, dict[str, str]]:
    """The address of a data set "hf:owner/name", and its files with that ending: what each is, in a word.

    ValueError, one line, where the Hub cannot be reached or has no such data set.
    """
    root = ADDRESS + hub_name(source)
    try:
        listed = _hub().find(root, detail=True)
    except Exception as error:
        raise ValueError(f"cannot open '{source}' of the Hugging Face Hub: {first_line(error)}") from error
    inside = root.removeprefix("hf://") + "/"
    files = {path.removeprefix(inside): f"{about['size']} {about.get('blob_id')}" for path, about in listed.items()}
    return root, {name: mark for name, mark in sorted(files.items()) if name.lower().endswith(ending)}


def _hub() -> Any:
    import huggingface_hub

    return huggingface_hub.HfFileSystem()
