"""The digest of content, here and nowhere else, and those of whole files, remembered until a file changes."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

import pyarrow
import pyarrow.feather

from nearfar.atomic import replacing

TABLE = 4  # raise it when the table means something else
SETTLED = 2 * 10**9  # nanoseconds: a file that changes twice within a step of the file system's clock keeps its times
_READ = 2**20  # bytes at a time
_CHUNK = 64  # files that one thread takes on at a time

Stamp = tuple[int, int, int]
"""Size in bytes, time of modification and time of any change (which no program can set), both in nanoseconds."""


def digest(content: bytes | Iterable[bytes], size: int = 16) -> str:
    """The digest of bytes, or of pieces that follow each other: of `size` bytes, as hexadecimal digits."""
    hashed = blake2b(digest_size=size)
    for part in [content] if isinstance(content, bytes) else content:
        hashed.update(part)
    return hashed.hexdigest()


def digest_of_file(path: str | Path) -> str:
    """The digest of a whole file; empty for what cannot be read and for what is no file, such as a pipe."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return ""
        with open(path, "rb", buffering=0) as file:
            return digest(iter(lambda: file.read(min(found.st_size + 1, _READ)), b""))
    except (OSError, ValueError):  # ValueError: a name with a null character
        return ""


def digests(root: Path, names: Sequence[str], splits: Sequence[str], folder: Path) -> dict[str, str]:
    """The digests of the files that these splits of a source have below `root`, by name; see `digest_of_file`.

    A table in the cache `folder` keeps them for the next call: a file whose size and times have not changed is not
    opened, any other one is read whole. A file that changed less than two seconds ago is read the next time too, since
    its times may miss another change. Where the table cannot be written, that is all that is lost.
    """
    alone = names if len(names) == 1 else ()  # one of many files in a folder, each a source
    kind = json.dumps([TABLE, ["files", os.path.realpath(root), *splits, *alone]])
    home = folder / f"{digest(kind.encode())}.arrow"
    began = time.time_ns()
    known, stamps = _kept(home), {name: _stamp(os.path.join(root, name)) for name in names}
    found = {name: kept for name, (stamp, kept) in known.items() if stamp == stamps.get(name)}
    new = [name for name in stamps if name not in found]
    if new:
        chunks = [new[start : start + _CHUNK] for start in range(0, len(new), _CHUNK)]
        with ThreadPoolExecutor(8) as pool:
            read = pool.map(lambda chunk: [digest_of_file(os.path.join(root, name)) for name in chunk], chunks)
            found.update(zip(new, (one for chunk in read for one in chunk), strict=True))
        settled = {name: stamp for name, stamp in stamps.items() if stamp and max(stamp[1:]) < began - SETTLED}
        with contextlib.suppress(OSError):
            _keep(home, settled, found)
    return {name: found[name] for name in names}


def _stamp(path: str) -> Stamp | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _kept(home: Path) -> dict[str, tuple[Stamp, str]]:
    """What the table holds; nothing where it is missing or damaged."""
    try:
        table = pyarrow.feather.read_table(home, memory_map=False)
        names, *stamps, kept = (table[name].to_pylist() for name in ("name", "size", "mtime", "ctime", "digest"))
        with contextlib.suppress(OSError):
            os.utime(home)  # when it was used last
    except (OSError, KeyError, pyarrow.ArrowException):
        return {}
    return dict(zip(map(os.fsdecode, names), zip(zip(*stamps, strict=True), kept, strict=True), strict=True))


def _keep(home: Path, stamps: Mapping[str, Stamp], found: Mapping[str, str]) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    sizes, mtimes, ctimes = zip(*stamps.values(), strict=True) if stamps else ((), (), ())
    columns = {
        "name": pyarrow.array(map(os.fsencode, stamps), pyarrow.binary()),  # names need not be UTF-8
        "size": pyarrow.array(sizes, pyarrow.int64()),
        "mtime": pyarrow.array(mtimes, pyarrow.int64()),
        "ctime": pyarrow.array(ctimes, pyarrow.int64()),
        "digest": pyarrow.array([found[name] for name in stamps], pyarrow.string()),
    }
    with replacing(home) as unfinished:
        pyarrow.feather.write_feather(pyarrow.table(columns), unfinished)
