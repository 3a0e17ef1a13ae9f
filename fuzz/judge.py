"""Judgement of how a reader took an input.

It fails by an error that is not one clear line, much memory, much time, a file outside its folder,
and anything started, unpickled or asked of the network.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from fuzz.targets import Target
from nearfar import messages
from nearfar.messages import lacking

SECONDS = 10  # that an input may take
MOST_MEMORY = 2**30  # bytes of address space that an input may take
LONGEST = 2000  # characters of a line
KEPT = 1000  # inputs after which the lines that nearfar has said are forgotten
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.mkdir": 1, "os.remove": 1, "os.rmdir": 1, "os.truncate": 1, "os.chmod": 1}
_CHANGES |= {"os.rename": 2, "os.link": 2, "os.symlink": 2, "shutil.rmtree": 1}
_NEVER = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork")
_NEVER += ("socket.connect", "socket.getaddrinfo", "pickle.find_class", "urllib.Request")


class Failure(NamedTuple):
    """A failure: a key that is the same for all inputs with it, and what to read about it."""

    key: str
    text: str


class Judge:
    """Uses a target and says what is wrong with how it took an input.

    scratch: the only folder in which files may be written; it must exist. The working directory
    becomes an empty folder in it.
    """

    def __init__(self, target: Target, scratch: Path) -> None:
        self.target, self.scratch = target, Path(os.path.realpath(scratch))
        self.inside = self.scratch / "in"
        for folder in ("in", "cwd", "cache", "tmp"):
            (self.scratch / folder).mkdir(exist_ok=True)
        self.seen = list[str]()  # of events that must not be
        self.watching = False
        self.count = 0
        self._status = os.open("/proc/self/status", os.O_RDONLY) if sys.platform == "linux" else -1
        with self.at_work():
            for seed in target.seeds():  # libraries are imported, and their threads started
                with suppress(Exception):
                    target.use(seed, self.inside)
        sys.addaudithook(self._event)
        self._peak, self._now = self._memory()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Have everything that follows folders of the user's find those in the scratch folder."""
        names = {"XDG_CACHE_HOME": "cache", "HF_HOME": "cache", "TMPDIR": "tmp"}
        before = {name: os.environ.get(name) for name in names}
        home, temporary = os.getcwd(), tempfile.tempdir
        os.environ.update({name: str(self.scratch / folder) for name, folder in names.items()})
        tempfile.tempdir = str(self.scratch / "tmp")
        os.chdir(self.scratch / "cwd")
        try:
            yield
        finally:
            self.watching = False
            os.chdir(home)
            tempfile.tempdir = temporary
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def failure(self, data: bytes) -> Failure | None:
        """Use the target on an input; returns what is wrong, None where nothing is."""
        self.count += 1
        if self.count % KEPT == 0:
            messages._told.clear()
        self.seen.clear()
        self.watching = True
        try:
            lines = self.target.use(data, self.inside) or ()
            failure = next(filter(None, map(self._of_line, lines)), None)
        except (ValueError, OSError) as error:
            failure = self._of_error(error)
        except Exception as error:
            failure = _failed(error)
        finally:
            self.watching = False
        if failure is None and (self.seen or any(os.scandir("."))):
            listed = self.seen or os.listdir(".")
            failure = Failure(f"outside: {listed[0].split(' ')[0]}", "\n".join(listed))
        peak, now = self._memory()
        if peak > max(self._peak, self._now + MOST_MEMORY):
            gib = (peak - self._now) / 2**30
            failure = failure or Failure("memory", f"{gib:.1f} GiB of memory were taken")
        self._peak, self._now = peak, now
        return failure

    def _of_error(self, error: Exception) -> Failure | None:
        message = str(error)
        if lacking(error):
            return _failed(error)
        named = not self.target.name or self.target.name in message
        if not message.strip() or len(message.splitlines()) > 1 or len(message) > LONGEST:
            return _failed(error, "not one line: ")
        return None if named else _failed(error, "names no file: ")

    def _of_line(self, line: str) -> Failure | None:
        if lacking(Exception(line)):
            return Failure("memory: " + _shortened(line), line)
        if not line.strip() or len(line.splitlines()) > 1 or len(line) > LONGEST:
            return Failure("not one line: " + _shortened(line), line)
        return None

    def _memory(self) -> tuple[int, int]:
        """Bytes of address space: the most so far, and now."""
        if self._status < 0:
            return 0, 0
        status = os.pread(self._status, 1024, 0)
        peak, now = (
            int(status[(start := status.index(name) + 7) : status.index(b"kB", start)])
            for name in (b"VmPeak:", b"VmSize:")
        )
        return peak * 1024, now * 1024

    def _event(self, event: str, details: tuple[Any, ...]) -> None:
        if not self.watching:
            return
        if event == "open":
            path, _, flags = details
            changed = (path,) if isinstance(flags, int) and flags & _WRITES else ()
        elif event in _CHANGES:
            changed = details[: _CHANGES[event]]
        else:
            if event in _NEVER:
                self.seen.append(f"{event} {details!r:.200}")
            return
        for path in changed:
            if isinstance(path, (str, bytes, os.PathLike)):
                where = os.path.realpath(os.fsdecode(path))
                if not where.startswith(f"{self.scratch}/") and where != "/dev/null":
                    self.seen.append(f"{event} {where}")


def _failed(error: Exception, kind: str = "") -> Failure:
    """The failure of an error, by its class and the last line of nearfar's that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/nearfar" in frame.filename]
    last = (ours or frames)[-1]
    place = f"{Path(last.filename).name}:{last.name}"
    words = _shortened(str(error)) if isinstance(error, AssertionError) else ""
    key = f"{kind}{type(error).__name__} in {place} {words}".strip()
    return Failure(key, "".join(traceback.format_exception(error)))


def _shortened(text: str) -> str:
    """The beginning of a message, with numbers and what it quotes left out."""
    return re.sub(r"\d+|'[^']*'|0x\w+", "#", " ".join(text.split()))[:60]


def name_of(data: bytes) -> str:
    """The name under which an input is kept."""
    return blake2b(data, digest_size=8).hexdigest()
