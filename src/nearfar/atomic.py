"""Files that are written whole or not at all, and a look before the work whether they can be."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PAGES = (".html",)
PROBE = 2**16  # bytes, about the smallest page or picture
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class NotWrittenError(OSError):
    """A file could not be written: the disk is full or fails, or the file is larger than files may be."""


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`, and move what was written there to `path` in one step.

    The temporary file keeps the ending of `path`. After an error it is removed and `path` is as it was before. A folder
    may be written instead of a file; one that is there is then removed first, so that replacing it takes two steps.
    Raises NotWrittenError for a full disk, and other errors as they are.
    """
    path = Path(path)
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        with told_clearly(path):
            yield unfinished
            if unfinished.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with unfinished.open("rb+") as file:
                    os.fsync(file.fileno())
            os.replace(unfinished, path)
    except BaseException:
        if unfinished.is_dir():
            shutil.rmtree(unfinished, ignore_errors=True)
        else:
            unfinished.unlink(missing_ok=True)
        raise


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write bytes, or text as UTF-8, to a file: whole or not at all, see `replacing`."""
    with replacing(path) as unfinished:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def told_clearly(path: Path) -> Iterator[None]:
    """Turn the error of a full disk into a NotWrittenError that names the file.

    Libraries raise errors of other kinds on top of that of the operating system: torch's says "unexpected pos".
    """
    try:
        yield
    except NotWrittenError:
        raise
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, OSError) and cause.errno in FULL:
                raise NotWrittenError(f"cannot write {path}: {os.strerror(cause.errno)}") from error
            cause = cause.__cause__ or cause.__context__
        raise


def check_text(path: str | os.PathLike[str]) -> None:
    """Raise ValueError for a path that is not text in UTF-8, which safetensors and ONNX cannot write."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{path} is not text in UTF-8; choose another name") from error


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Raise OSError, one line, where nothing can be written into a folder: it is missing, read-only or full."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(PROBE))
    except OSError as error:
        raise OSError(f"cannot write into {folder}: {error.strerror}") from error


def check_output(path: Path, endings: Sequence[str], beside: Sequence[str] = ()) -> None:
    """Raise ValueError for an output that exists already, or with another ending; OSError where none can be written.

    beside: endings of further files, which are written beside it and must not exist either.
    """
    if path.suffix not in endings:
        raise ValueError(
            f"{path} ends in {path.suffix or 'nothing'}; choose an --out in {' or '.join(endings)}"
        )
    for one in (path, *(path.with_suffix(ending) for ending in beside)):
        if os.path.lexists(one):
            also = "" if one == path else f", and {path.name} comes with a {one.suffix} beside it"
            raise ValueError(f"{one} exists already{also}; choose another --out")
    check_folder(path.parent)


def check_new_folder(folder: Path) -> None:
    """Raise ValueError for a folder that exists already, OSError where none can be made."""
    check_text(folder)
    if os.path.lexists(folder):
        raise ValueError(f"{folder} exists already; choose another one")
    check_folder(folder.parent)
