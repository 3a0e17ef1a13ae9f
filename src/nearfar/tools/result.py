"""Result of a tool: columns, lines for a person, a page; and the only place where it is written.

Nothing here moves or removes an image: a command that could is shown, for a person to decide.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nearfar.atomic import replacing_all
from nearfar.data.table import printable
from nearfar.embeddings import Embeddings
from nearfar.isolation import isolated
from nearfar.messages import raise_as_value_error
from nearfar.pages.sheet import contact_sheet, thumbnails_for
from nearfar.progress import Table, log

Columns = dict[str, list[Any]]
TABLE, FILES = ".csv", ".list"
FORMULA = re.compile(r"'*[=+\-@\t\r]")
ON_PAGE = 1000  # images, at most


class Result(dict[str, list[Any]]):
    """Findings of a tool about images: a dictionary of columns, each a list, as pandas takes it.

    The columns are returned and written as CSV; `lines` are what a person is told; `page()`
    is the page. Shown without more, the page has the images at `rows` with a line on each:
    `captions`, by default their values in the last column.
    """

    def __init__(
        self,
        photos: Embeddings,
        columns: Columns,
        *,
        rows: Sequence[int] = (),
        title: str = "Images",
        about: str = "",
        note: str = "",
        captions: Sequence[str] | None = None,
        lines: Sequence[str | Table] = (),
        files: Sequence[str] | None = None,
    ) -> None:
        """rows: positions of the images on the page. about, note: what the page says of all.
        files: those that the .list beside the page names; None: the tool has no list.
        """
        super().__init__(columns)
        self.photos, self.rows = photos, list(rows)
        self.title, self.note, self.captions = title, note, captions
        self.about = about or f"{len(self.rows)} of {len(photos)} images of {photos.images.where}"
        self.lines, self.files = list(lines), files
        self.again: Callable[..., str] = lambda *without: ""  # see `Tool`
        self.path: Path | None = None  # of the page, once it is written

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines))

    def summary(self) -> Any:
        """Return what JSON output prints."""
        return dict(self)

    @isolated()
    def page(self) -> str:
        """Return the page as HTML: a contact sheet."""
        rows = self.rows[:ON_PAGE]
        captions = self.captions
        if captions is None:
            captions = [_caption(value) for value in list(self.values())[-1]]
        figures = thumbnails_for(self.photos, rows, captions[: len(rows)])
        return contact_sheet(self.title, self.about, self.note, figures=figures)

    @isolated()
    def write(self, path: Path) -> None:
        """Write the page, the columns beside it as .csv, and the files as .list if there are any:
        all or none; log where.
        """
        files = self.files if self.photos.paths is not None else None
        endings = [path.suffix, TABLE] if files is None else [path.suffix, TABLE, FILES]
        with replacing_all([path.with_suffix(ending) for ending in endings]) as unfinished:
            unfinished[0].write_bytes(self.page().encode())
            write_table(unfinished[1], self)
            if files is not None:
                write_files(unfinished[2], files)
        self.path = path
        log.info("look -> %s and %s", path, path.with_suffix(TABLE).name)
        for line in self.after(path):
            log.info("%s", line)

    def default_page(self, page: Path) -> Path:
        """Return where the page goes if nobody says where: where the tool has it, or near."""
        return page

    def after(self, path: Path) -> Sequence[str]:
        """Return lines on what to do with the files that were written."""
        return ()

    def piped(self) -> list[str]:
        """Return what another program gets: the files of the images, or names without any."""
        return self["path" if "path" in self else "name"]


def _caption(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write_table(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns as CSV; a text that a spreadsheet would take for a formula begins with '
    then.
    """
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        cells = [map(_with_quote, column) for column in columns.values()]
        writer.writerows(zip(*cells, strict=True))


def _with_quote(cell: Any) -> Any:
    """Return a cell, with a ' before what a spreadsheet would take for a formula."""
    return "'" + cell if isinstance(cell, str) and FORMULA.match(cell) else cell


def read_table(path: Path) -> Columns:
    """Read what a tool found: the columns, as text, of the .csv that `write_table` wrote, or those
    of a file with its --json output, as they are there.

    Raises ValueError for what is neither, FileNotFoundError.
    """
    text = path.read_bytes().decode("utf-8-sig", "surrogateescape")
    with raise_as_value_error(f"{path} is no table that nearfar wrote"):
        if text.lstrip().startswith("{"):
            return {name: column for name, column in json.loads(text).items() if name != "read"}
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
        if not rows:
            raise ValueError("it is empty")
        names, columns = rows[0], zip(*rows[1:], strict=True)
        cells = [[_without_quote(cell) for cell in column] for column in columns]
        return dict(zip(names, cells or [[] for _ in names], strict=True))


def _without_quote(cell: str) -> str:
    """Return a cell without the ' before what a spreadsheet would take for a formula."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell[1:]) else cell


def write_files(path: Path, files: Sequence[str]) -> None:
    """Write names of files, each with a zero byte behind it, as `xargs -0` and `tar --null` read
    them.
    """
    path.write_bytes(b"".join(os.fsencode(file) + b"\0" for file in files))


def tar_command(files: Path) -> str:
    """Return the command that packs the files of a list into an archive beside it."""
    archive = shlex.quote(str(files.with_suffix(".tar")))
    return f"tar -cf {archive} --null -T {shlex.quote(str(files))}"


def link_command(table: Path) -> str:
    """Return the command that makes hard links of the copies in a table of duplicates."""
    return f"nearfar link {shlex.quote(str(table))}"


def archive_and_delete_command(files: Path) -> str:
    """Return the command that packs the files of a list into an archive, and removes them if that
    went well.
    """
    return f"{tar_command(files)} && xargs -0 rm -- < {shlex.quote(str(files))}"


def paths_for_stdout(names: Sequence[str], separator: str) -> bytes:
    """Return what a command gives to another program: each name once, a separator behind each.

    A name with a line break is exact before a zero byte, else escaped.
    """
    lines = (
        printable(name) if separator == "\n" and "\n" in name else name
        for name in dict.fromkeys(names)
    )
    return b"".join(os.fsencode(line + separator) for line in lines)
