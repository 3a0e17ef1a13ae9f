"""Files that are written whole or not at all, and a look before the work whether they can be."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

PAGES = (".html",)
ABANDONED = 24 * 60 * 60.0  # seconds without a change
PROBE = 2**16  # bytes, about the smallest page or picture
OF_RUST = re.compile(r"\(os error (\d+)\)")
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class NotWrittenError(OSError):
    """A file could not be written: the disk is full or fails, or the file is larger than files may
    be.
    """


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`, and move what was written there to `path` in
    one step.

    The temporary file keeps the ending of `path`. After an error it is removed and `path` is as it
    was before. A folder may be written instead of a file; one that is there is then removed first,
    so that replacing it takes two steps. What processes that were killed had begun for `path`, with
    whatever ending, is removed first. Raises NotWrittenError for a full disk, and other errors as
    they are.
    """
    with replacing_all([path]) as [unfinished]:
        yield unfinished


@contextlib.contextmanager
def replacing_all(paths: Sequence[str | os.PathLike[str]]) -> Iterator[list[Path]]:
    """Yield a temporary path for each of these files that belong together, and move them all when
    the last is written; see `replacing`.

    After an error none is replaced. NotWrittenError names the first.
    """
    unfinished: dict[Path, Path] = {}
    for path in map(Path, paths):
        remove_abandoned(path)
        name = f".{path.stem}.{_machine()}-{os.getpid()}.partial{path.suffix}"
        unfinished[path] = path.with_name(name)
    try:
        with translate_errors(Path(paths[0])):
            yield list(unfinished.values())
            for part in unfinished.values():
                if not part.is_dir():
                    with part.open("rb+") as file:
                        os.fsync(file.fileno())
            for path, part in unfinished.items():
                if part.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                os.replace(part, path)
    except BaseException:
        for part in unfinished.values():
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)
        raise


def remove_abandoned(path: Path) -> None:
    """Remove the temporary files and folders beside `path` that `replacing` left when its process
    was killed.

    Those of a process that still runs here stay, and those of other machines, which may share the
    folder, for a day after their last change.
    """
    own = re.compile(rf"\.{re.escape(path.stem)}\.(?:([0-9a-f]{{8}})-)?(\d+)\.partial(?:\..*)?")
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        left_files = [
            (Path(entry.path), match) for entry in entries if (match := own.fullmatch(entry.name))
        ]
        for left, match in left_files:
            machine, process = match[1], int(match[2])
            gone = not _runs(process) if machine == _machine() else _age(left) > ABANDONED
            if gone and left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            elif gone:
                left.unlink(missing_ok=True)


def _machine() -> str:
    """Eight digits for the machine and the space of process numbers, in which a number means one
    process.
    """
    try:
        space = os.stat(
            "/proc/self/ns/pid"
        ).st_ino  # of a container, which may bear its machine's name
    except OSError:
        space = 0
    return hashlib.blake2b(f"{platform.node()} {space}".encode(), digest_size=4).hexdigest()


def _runs(process: int) -> bool:
    """Return whether a process of this machine runs; where that cannot be told, it does."""
    if process <= 0 or not hasattr(os, "fork"):
        return True
    try:
        os.kill(process, 0)
    except (OSError, OverflowError) as error:
        return isinstance(error, OSError) and not isinstance(error, ProcessLookupError)
    return True


def _age(path: Path) -> float:
    """Seconds since a file, or anything right inside a folder, last changed."""
    times = [path.lstat().st_mtime]
    if path.is_dir() and not path.is_symlink():
        times += [entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(path)]
    return time.time() - max(times)


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write bytes, or text as UTF-8, to a file: whole or not at all, see `replacing`."""
    with replacing(path) as unfinished:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Turn the error of a full disk into a NotWrittenError that names the file.

    Libraries raise errors of other kinds on top of that of the operating system: torch's says
    "unexpected pos". Those in Rust, as safetensors, name its number in their text alone. A file
    that is written as a part of another is not named.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            number = _number_of(cause)
            if number in FULL:
                raise NotWrittenError(f"cannot write {path}: {os.strerror(number)}") from error
            cause = cause.__cause__ or cause.__context__
        raise


def _number_of(error: BaseException) -> int:
    """Return the operating system's number of an error, 0 where it has none."""
    if isinstance(error, OSError):
        return error.errno or 0
    in_text = OF_RUST.search(str(error))
    return int(in_text[1]) if in_text else 0


def check_text(path: str | os.PathLike[str]) -> None:
    """Raise ValueError for a path that is not text in UTF-8, which safetensors, ONNX and
    pyarrow cannot write.
    """
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{path} is not text in UTF-8; choose another name") from error


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Raise OSError, one line, where nothing can be written into a folder: it is missing, read-only
    or full.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(PROBE))
    except OSError as error:
        raise OSError(f"cannot write into {folder}: {error.strerror}") from error


def check_output(path: Path, endings: Sequence[str], beside: Sequence[str] = ()) -> None:
    """Raise ValueError for an output that exists already, or with another ending; OSError where
    none can be written.

    beside: endings of further files, which are written beside it and must not exist either.
    """
    if path.suffix not in endings:
        raise ValueError(
            f"{path} ends in {path.suffix or 'nothing'}; choose an `out` in {' or '.join(endings)}"
        )
    for output in (path, *(path.with_suffix(ending) for ending in beside)):
        if os.path.lexists(output):
            also = (
                ""
                if output == path
                else f", and {path.name} comes with a {output.suffix} beside it"
            )
            raise ValueError(f"{output} exists already{also}; choose another `out`")
    check_folder(path.parent)


def check_new_folder(folder: Path) -> None:
    """Raise ValueError for a folder that exists already, OSError where none can be made."""
    check_text(folder)
    if os.path.lexists(folder):
        raise ValueError(f"{folder} exists already; choose another one")
    check_folder(folder.parent)
