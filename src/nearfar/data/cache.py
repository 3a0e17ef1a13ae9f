"""The pixel cache: decoded images as a memory-mapped file of uint8 or uint16, written once,
complete or not at all.

A data set lies in a folder named by a hash of the digests of its images, their size, channels and
value range; labels and names are no part of it. All data sets together have a limit, beyond which
those used longest ago are removed.

A data set that was not finished has no entry.json and is not read. That of an earlier format, or
whose pixel file has another size or time of modification than when it was finished, is decoded
again. Not detected: bytes that the disk itself damages, or that are changed while the time is put
back.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow
import torch
from jaxtyping import Shaped
from torch import Tensor

from nearfar.atomic import replacing
from nearfar.data.decoding import decode, reason
from nearfar.data.left_out import is_passing
from nearfar.data.readers import quietly
from nearfar.data.resources import in_order, usable_cores
from nearfar.data.table import digest, read_feather, read_small, write_feather
from nearfar.data.value_range import PixelFormat
from nearfar.engine import each, engine
from nearfar.progress import progress

ELSEWHERE = "set XDG_CACHE_HOME to another folder (in Python also cache_dir)"
# bytes that all data sets may take: eight of the largest that `open_images` keeps by default
LIMIT = 64 * 2**30
VARIABLE = "NEARFAR_CACHE_BYTES"
FORMAT = 7  # raise it when decoding or this layout changes: older caches are then not found
ENTRY, DIGESTS = "entry.json", "digests.arrow"
_CHUNK = 2**22  # bytes of encoded data or pixels that one thread takes on at a time
_NAME = re.compile(
    r"[.]?([0-9a-f]{32})([.](?:[0-9a-f]{8}-)?\d+[.]partial|[.]arrow|[.]range)?"
)  # partial: of killed builds
used: set[Path] = set()  # the data sets that this process has opened


class Store(NamedTuple):
    """Storage of pixels: the folder, whether they are stored, and the most bytes of one data set.

    workers: None: one per core. later: nothing is decoded before it is asked for.
    """

    folder: Path
    limit: int
    cache: bool = True
    workers: int | None = None
    later: bool = False


@dataclass
class Entry:
    """Facts that the cache holds about a data set besides its pixels.

    `count`: images with pixels; `problems`: of those that could not be decoded, by their position
    among those tried; `passing`: those of them whose problem comes from the machine, which are
    tried again the next time; `mean`, `std`: per channel in 0..1; `stored`: whether pixels are
    stored; `lineage`: the same for all states of one data set; `state`: size and time of
    modification of the file of pixels.
    """

    form: PixelFormat
    count: int
    problems: dict[int, str]
    mean: list[float]
    std: list[float]
    stored: bool
    lineage: str
    state: list[int] | None = None
    passing: list[int] = field(default_factory=list)
    format: int = field(default=FORMAT)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.count, self.form.channels, self.form.size, self.form.size


def key(parts: Any) -> str:
    """A file name made from everything that something depends on (JSON values)."""
    return digest(json.dumps([FORMAT, parts], sort_keys=True).encode())


def read(home: Path) -> tuple[Entry, Shaped[Tensor, "images channels size size"] | None] | None:
    """A finished data set: its entry and its memory-mapped pixels (None where not stored). None if
    absent or damaged.

    No pixels are read; see the head of this file for what is noticed.
    """
    loaded = _loaded(home)
    if loaded is not None:
        used.add(home)
        with contextlib.suppress(OSError):
            os.utime(home / ENTRY)  # when it was used last
    return loaded


def _loaded(home: Path) -> tuple[Entry, Tensor | None] | None:
    try:
        values = json.loads((home / ENTRY).read_text(encoding="utf-8"))
        values["form"] = PixelFormat(*values["form"])
        values["problems"] = {int(row): why for row, why in values["problems"].items()}
        entry = Entry(**values)
        if entry.format != FORMAT:
            return None
        pixels = None
        if entry.stored:
            if entry.state != _state(_pixels_file(home, entry.form)):
                return None
            pixels = mapped(home, entry.shape, entry.form)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError):
        return None
    return entry, pixels


def mapped(
    home: Path, shape: tuple[int, ...], form: PixelFormat
) -> Shaped[Tensor, "images channels size size"]:
    """The pixels of a finished data set, memory-mapped; writing to them changes this process's copy
    alone.
    """
    size = int(np.prod(shape)) * form.dtype.itemsize
    pixels = torch.from_file(
        str(_pixels_file(home, form)), shared=False, size=size, dtype=torch.uint8
    )
    return (pixels if form.dtype == np.uint8 else pixels.view(torch.uint16)).view(shape)


def _pixels_file(home: Path, form: PixelFormat) -> Path:
    return home / f"pixels.u{8 * form.dtype.itemsize}"


def _state(pixels: Path) -> list[int]:
    status = pixels.stat()
    return [status.st_size, status.st_mtime_ns]


def decoded(
    images: Callable[[], Iterable[Any]],
    digests: list[str | None],
    form: PixelFormat,
    lineage: str,
    store: Store,
) -> tuple[Path, Entry, Shaped[Tensor, "images channels size size"] | None]:
    """The data set of images with these digests: its folder, entry and pixels, decoded now if the
    cache lacks it.

    images: encoded, in order. lineage: the same for all states of one data set. Beyond the limit of
    the store only statistics and problems are stored. Images that could not be read for a reason
    that may pass are tried again; if one of them can be read now, the data set is made anew.
    """
    home = store.folder / key([digests, form])
    wanted = store.cache and form.bytes_of(len(digests)) <= store.limit

    def read_entry() -> tuple[Path, Entry, Tensor | None] | None:
        entry = read(home)
        if entry is None or (wanted and entry[0].count and entry[1] is None):
            return None
        return home, entry[0], entry[1] if wanted else None

    def finished() -> tuple[Path, Entry, Tensor | None] | None:
        entry = read_entry()
        return None if entry is None or _again(images, entry[1]) else entry

    entry = finished()
    if entry is None:
        from filelock import FileLock  # comes with torch

        try:
            home.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(
                home.with_suffix(".lock")
            ):  # of several processes that want it, one builds
                for leftover in home.parent.glob(f".{home.name}.*"):  # of builds that were killed
                    shutil.rmtree(leftover, ignore_errors=True)
                entry = finished()  # another process may have built it while we waited
                if entry is None:
                    _build(home, images(), digests, form, lineage, wanted, store)
                    entry = read_entry()
        except OSError as error:
            raise ValueError(
                f"cannot write the cache in '{store.folder}' ({error}); {ELSEWHERE}"
            ) from error
    if entry is None:
        raise ValueError(f"the cache in '{home}' cannot be read back; remove it, or {ELSEWHERE}")
    return entry


def _again(images: Callable[[], Iterable[bytes | str]], entry: Entry) -> bool:
    """Return whether trying again leads to more: an image that could not be read for a reason that
    may pass is read now.
    """
    rows = set(entry.passing)
    with quietly():
        for row, data in enumerate(images()) if rows else ():
            if row > max(rows):
                break
            if row in rows:
                try:
                    decode(read_small(data), entry.form)
                    return True
                except Exception as error:  # decoders raise anything on damaged data
                    if not is_passing(error):  # then this is known from now on
                        return True
    return False


def _build(
    home: Path,
    images: Iterable[bytes | str],
    digests: list[str | None],
    form: PixelFormat,
    lineage: str,
    wanted: bool,
    store: Store,
) -> None:
    """Decode images, in parallel and in order, into a data set whose lock is held.

    Those whose digests an earlier state of the data set holds are taken from there. Unreadable
    images have no pixels.
    """
    known = _decoded_before(home.parent, lineage)
    most = min(32, max(1, _CHUNK // (form.channels * form.size**2)))
    items = (known.get(mark or "", data) for data, mark in zip(images, digests, strict=True))
    blocks = _blocks(_chunks(items, most), form, wanted, store.workers or usable_cores())
    with replacing(home) as part:
        part.mkdir()
        file = _pixels_file(part, form)
        with contextlib.closing(blocks), open(file, "wb") as pixels:
            written = _write_pixels(blocks, len(digests), form, pixels)
            pixels.flush()
            os.fsync(pixels.fileno())
        mean, std = statistics(written.moments, written.images * form.size**2, form.white)
        entry = Entry(
            form,
            written.images,
            written.problems,
            mean,
            std,
            wanted,
            lineage,
            _state(file),
            written.passing,
        )
        if not wanted:
            file.unlink()
        marks = [mark for row, mark in enumerate(digests) if row not in written.problems]
        write_feather(
            pyarrow.table({"digest": pyarrow.array(marks, pyarrow.string())}), part / DIGESTS
        )
        (part / ENTRY).write_text(json.dumps(asdict(entry)), encoding="utf-8")
    _tidy(home, lineage)


class _Written(NamedTuple):
    """Number and moments of decoded images, and the problems of the others by position; passing:
    those whose problem comes from the machine.
    """

    images: int
    moments: np.ndarray
    problems: dict[int, str]
    passing: list[int]


class _Block(NamedTuple):
    """Images of a chunk: the pixels of those that could be decoded, where they are wanted, and how
    many they are; their moments; and the problems of the others, as in `_Written`.
    """

    pixels: np.ndarray | None
    images: int
    moments: np.ndarray
    problems: dict[int, str]
    passing: list[int]


def _blocks(
    chunks: Iterable[list[Any]], form: PixelFormat, wanted: bool, threads: int
) -> Generator[_Block, None, None]:
    """Yield the blocks of chunks, decoded in threads; an engine sends back no pixels that are not
    wanted.
    """
    if engine() is not None:
        yield from each(partial(_decoded_block, form, wanted), chunks)
        return
    with contextlib.closing(in_order(chunks, partial(_decoded, form), threads)) as made:
        for images in made:
            yield _block(form, wanted, images)


def _decoded(form: PixelFormat, data: bytes | str | np.ndarray) -> np.ndarray | Exception:
    """Return an image, or why it cannot be decoded; an array is decoded already."""
    try:
        return data if isinstance(data, np.ndarray) else decode(read_small(data), form)
    except Exception as error:  # decoders raise anything on damaged data
        return error


def _block(form: PixelFormat, wanted: bool, images: list[np.ndarray | Exception]) -> _Block:
    """Put the images of a chunk together."""
    whole = [image for image in images if not isinstance(image, Exception)]
    wrong = {i: error for i, error in enumerate(images) if isinstance(error, Exception)}
    shape = (0, form.channels, form.size, form.size)
    pixels = np.ascontiguousarray(np.stack(whole)) if whole else np.zeros(shape, form.dtype)
    return _Block(
        pixels if wanted else None,
        len(whole),
        moments_of(pixels),
        {place: reason(error) for place, error in wrong.items()},
        [place for place, error in wrong.items() if is_passing(error)],
    )


def _decoded_block(
    form: PixelFormat, wanted: bool, chunk: list[bytes | str | np.ndarray]
) -> _Block:
    """Decode the images of a chunk."""
    return _block(form, wanted, [_decoded(form, data) for data in chunk])


def _write_pixels(
    blocks: Iterable[_Block], total: int, form: PixelFormat, pixels: BinaryIO
) -> _Written:
    """Write decoded images one after the other."""
    moments: np.ndarray = np.zeros((2, form.channels), dtype=np.int64)
    problems: dict[int, str] = {}
    passing: list[int] = []
    count = 0
    with quietly(), progress("reading images", total) as bar:
        for block in blocks:
            problems |= {bar.done + place: why for place, why in block.problems.items()}
            passing += [bar.done + place for place in block.passing]
            moments = moments + block.moments
            count += block.images
            if block.pixels is not None:
                pixels.write(block.pixels.data)
            bar.advance(block.images + len(block.problems))
    return _Written(count, moments, problems, passing)


def _chunks(
    items: Iterable[bytes | str | np.ndarray], most: int
) -> Iterator[list[bytes | str | np.ndarray]]:
    """Items in lists of at most `most` and about 4 MB of encoded data."""
    chunk: list[bytes | str | np.ndarray] = []
    size = 0
    for item in items:
        chunk.append(item)
        size += len(item) if isinstance(item, bytes) else 0
        if len(chunk) == most or size > _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def moments_of(block: np.ndarray) -> np.ndarray:
    """Sums [2, channels] of the values and squares of images: exact for uint8, float64 for
    uint16.
    """
    values = block.astype(np.int64 if block.dtype == np.uint8 else np.float64)
    return np.stack([values.sum((0, 2, 3)), (values * values).sum((0, 2, 3))])


def statistics(
    moments: np.ndarray, count: int, largest: int = 255
) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel in 0..1 from sums [2, channels] of values and squares
    in 0..largest.
    """
    if count == 0:
        return [0.0] * moments.shape[1], [0.0] * moments.shape[1]
    mean, square = (moments / count).astype(np.float64)
    std = np.sqrt(np.maximum(square - mean**2, 0))
    return (mean / largest).tolist(), (std / largest).tolist()


def _decoded_before(folder: Path, lineage: str) -> Mapping[str, np.ndarray]:
    """The images of an earlier state of a data set, the one used last, by the digests of what they
    came from.
    """
    for home in _states(folder, lineage)[::-1]:
        _, pixels = _loaded(home) or (None, None)
        with contextlib.suppress(OSError, KeyError, ValueError, pyarrow.ArrowException):
            marks = read_feather(home / DIGESTS)["digest"].to_pylist()
            if pixels is not None:
                return {
                    mark: image for mark, image in zip(marks, pixels.numpy(), strict=True) if mark
                }
    return {}


def _states(folder: Path, lineage: str) -> list[Path]:
    """The states of a data set that a cache folder holds, those used last at the end."""
    states = []
    for entry in folder.glob(f"*/{ENTRY}"):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if json.loads(entry.read_text(encoding="utf-8")).get("lineage") == lineage:
                states.append((entry.stat().st_mtime_ns, entry.parent))
    return [home for _, home in sorted(states)]


def limit() -> int:
    """Bytes that a cache folder may hold: $NEARFAR_CACHE_BYTES, or 64 GiB; ValueError for what is
    no such number.
    """
    given = os.environ.get(VARIABLE, str(LIMIT))
    if not given.isdecimal():
        raise ValueError(f"{VARIABLE} must be a number of bytes, such as {LIMIT}, got '{given}'")
    return int(given)


def sizes(folder: Path) -> dict[Path, int]:
    """Return what a cache folder holds, what is left of builds that were killed too, with the sizes
    in bytes.

    Data sets are folders; beside them lie tables of headers and digests. Only names that nearfar
    gives count.
    """
    size_of = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if _NAME.fullmatch(path.name) and not path.is_symlink():
            with contextlib.suppress(OSError):  # removed meanwhile
                size_of[path] = sum(
                    file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path])
                )
    return size_of


def empty(folder: Path) -> int:
    """Remove all that a cache folder holds; returns the bytes that this frees.

    What another process is building stays. So do the locks, empty files that others may wait for.
    """
    return sum(size for path, size in sizes(folder).items() if _removed(path))


def _tidy(built: Path, lineage: str) -> None:
    """Remove the earlier states of a data set that was just built, and what was used longest ago
    beyond the limit.

    What this process has opened stays, and what others are building. What others have opened they
    keep until they end, but on Windows, where it cannot be removed.
    """
    stay = {built, *used}
    for path in _states(built.parent, lineage):
        if path not in stay:
            _removed(path)
    size_of = sizes(built.parent)
    excess = sum(size_of.values()) - limit()
    for path in sorted(size_of, key=_last_used):
        if excess > 0 and path not in stay and _removed(path):
            excess -= size_of[path]


def _last_used(path: Path) -> float:
    try:
        return (path / ENTRY if path.is_dir() else path).stat().st_mtime
    except OSError:  # left by a build that was killed
        return 0.0


def _removed(path: Path) -> bool:
    """Remove a data set or a table unless another process is building it; whether it is gone."""
    from filelock import FileLock, Timeout  # comes with torch

    try:
        key = _NAME.fullmatch(path.name)
        with FileLock(path.parent / f"{key[1] if key else path.name}.lock").acquire(timeout=0):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    except (Timeout, OSError):
        return False
    return True
