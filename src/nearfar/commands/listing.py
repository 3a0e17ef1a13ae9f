"""Lists of images: columns in memory, a CSV file, a list of files for other commands, and what to type then.

Nothing here moves or removes an image: what could be done with a list is printed, for a person to decide.
"""

from __future__ import annotations

import csv
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nearfar.atomic import check_folder, replacing
from nearfar.commands.opening import PAGES, check_output
from nearfar.commands.run import Run
from nearfar.data.columns import printable

Columns = dict[str, list[Any]]
TABLE, FILES = ".csv", ".list"
FORMULA = re.compile(r"'*[=+\-@\t\r]")


def output_of(run: Run, out: str | Path | None, name: str, *beside: str) -> Path:
    """The page to write: `out`, or NAME.html in the run folder, replaced if there. beside: endings of its companions.

    Raises ValueError where one of them exists that the user named, OSError where nothing can be written.
    """
    if out is None:
        check_folder(run.path)
        return run.path / f"{name}.html"
    check_output(Path(out), PAGES, beside=beside)
    return Path(out)


def write_table(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns as CSV; a text that a spreadsheet would take for a formula begins with ' then."""
    with (
        replacing(path) as unfinished,
        unfinished.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in zip(*columns.values(), strict=True):
            writer.writerow("'" + cell if isinstance(cell, str) and FORMULA.match(cell) else cell for cell in row)


def write_files(path: Path, files: Sequence[str]) -> None:
    """Write names of files, each with a zero byte behind it, as `xargs -0` and `tar --null` read them."""
    with replacing(path) as unfinished:
        unfinished.write_bytes(b"".join(os.fsencode(file) + b"\0" for file in files))


def copying(files: Path) -> str:
    """The command that packs the files of a list into an archive beside it."""
    return f"tar -cf {shlex.quote(str(files.with_suffix('.tar')))} --null -T {shlex.quote(str(files))}"


def removing(files: Path) -> str:
    """The command that packs the files of a list into an archive, and removes them if that went well."""
    return f"{copying(files)} && xargs -0 rm -- < {shlex.quote(str(files))}"


def for_pipes(columns: Mapping[str, Sequence[Any]], separator: str) -> bytes:
    """What a verb gives to another program: the files of a list, or names where there are none, each once.

    Of duplicates those that have the same bytes as one that is kept. A name with a line break is exact before a zero
    byte, else escaped.
    """
    names = columns.get("path", columns["name"])
    kept = columns.get("kept", [False] * len(names))
    wanted = dict.fromkeys(name for name, keep in zip(names, kept, strict=True) if not keep)
    lines = (printable(name) if separator == "\n" and "\n" in name else name for name in wanted)
    return b"".join(os.fsencode(line + separator) for line in lines)
