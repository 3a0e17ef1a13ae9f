"""Targets of fuzzing: each gives bytes to nearfar's own reader of such bytes."""

from __future__ import annotations

import atexit
import functools
import json
import logging
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
from PIL import Image

import nearfar
from fuzz import seeds
from nearfar.data.decoding import decode, reason, whole_planes
from nearfar.data.labels import labels_of, numbered
from nearfar.data.pictures import is_lossless
from nearfar.data.sources import encoded, find_source
from nearfar.data.sources.encoded import ROWS, EncodedImage, EncodedSource, scan_image
from nearfar.data.table import load_table
from nearfar.data.text import lines_of, text_of
from nearfar.data.value_range import PixelFormat
from nearfar.evaluation import find_vectors
from nearfar.maps.columns import as_arrays
from nearfar.maps.columns import read_table as read_columns
from nearfar.maps.layouts import load_map
from nearfar.mcp import words_of
from nearfar.messages import did_you_mean
from nearfar.networks.pretrained import find_weights, read_tensors
from nearfar.run import RESULTS, Run
from nearfar.training.run_folder import load_checkpoint, read_metrics
from nearfar.training.settings import Settings, read_yaml
from nearfar_papers.annotations import open_annotated
from nearfar_papers.paper import read_paper

LARGEST_IMAGE = 2**21  # pixels; the default limit is higher, and a decoder takes seconds up to it
SIDE = 8


class Target(NamedTuple):
    """A reader of foreign bytes.

    use: reads bytes, by a scratch folder; returns messages that nearfar keeps about them, each of
    one line. Errors of its are one line too. seeds: what fuzzing starts from. name: of the file or
    folder that its errors must name; "" for bytes without one. repaired: puts checksums right.
    """

    use: Callable[[bytes, Path], Iterable[str] | None]
    seeds: Callable[[], list[bytes]]
    name: str = ""
    largest: int = 4096
    words: tuple[bytes, ...] = ()
    repaired: Callable[[bytes], bytes] | None = None


def image(data: bytes, scratch: Path) -> list[str]:
    """Look at an encoded image and decode it in several ways, as scans and caches do."""
    row = scan_image(EncodedImage(data))
    pyarrow.Table.from_pylist([row._asdict()], ROWS)  # numbers and texts that a table holds
    problems = [] if row.problem is None else [row.problem]
    if row.problem is None:
        assert min(row.height, row.width, row.bands, row.pages) > 0 and row.bits in (8, 16), row
    is_lossless(data)
    forms = [PixelFormat(SIDE, 3), PixelFormat(SIDE, 1, [0.0, 65535.0])]
    if row.bands not in (None, 1, 3) and row.bands <= 16:
        forms.append(PixelFormat(SIDE, row.bands, [0.0, 255.0] * row.bands))
    for form in forms:
        try:
            pixels = decode(data, form)
        except Exception as error:  # all callers take any error of a decoder for a reason
            problems.append(reason(error))
            continue
        assert pixels.shape == (form.channels, SIDE, SIDE) and pixels.dtype == form.dtype
    try:
        planes = whole_planes(data, 3, None)
    except Exception as error:
        problems.append(reason(error))
    else:
        assert planes.ndim == 3 and len(planes) == 3
    return problems


def exif(data: bytes, scratch: Path) -> list[str]:
    """Read the notes of a camera in a JPEG."""
    head, rest = b"\xff\xd8", _gray_jpeg()[2:]
    block = b"Exif\0\0" + data[: 2**16 - 9]
    part = b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block
    whole = head + part + rest
    if whole[128:132] == b"DICM":  # it is a DICOM file as well
        return []
    row = scan_image(EncodedImage(whole))
    pyarrow.Table.from_pylist([row._asdict()], ROWS)
    assert row.problem is None, row.problem  # damaged notes lose no image
    assert row.latitude is None or (abs(row.latitude) <= 90 and abs(row.longitude) <= 180)
    return [] if row.camera is None else [row.camera]


@functools.cache
def _gray_jpeg() -> bytes:
    return seeds.encoded("JPEG", "L")


def text(data: bytes, scratch: Path) -> None:
    """Read a text in whatever encoding, and its lines."""
    lines_of(text_of(data)).sort()


def labels(data: bytes, scratch: Path) -> None:
    """Number labels: those of a list in JSON, else lines."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        values = text_of(data).split("\n")
    values = values if isinstance(values, list) else [values]
    numbers, names = numbered(labels_of(values, "it"))
    assert len(numbers) == len(values)
    assert names is None or all(n is None or 0 <= n < len(names) for n in numbers.to_pylist())


def _written(scratch: Path, name: str, data: bytes) -> Path:
    path = scratch / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def source(data: bytes, scratch: Path, name: str, decoded: bool = False) -> list[str]:
    """Open a file as a source of images, and read its table and the images."""
    path = _written(scratch, name, data)
    opened = find_source(path)
    table = opened.table
    problems = [why for why in table["problem"].to_pylist() if why is not None]
    problems += [why for _, why in opened.left_out(opened.split_names())]
    good = table.filter(table["problem"].is_null())
    for picture in opened.read(good):
        if decoded:
            assert picture.ndim in (2, 3) or len(picture.shape) in (2, 3)
    if isinstance(opened, EncodedSource) and len(good):
        for original in opened.originals(good, scratch / "datasets"):
            assert isinstance(original, (bytes, str))
    return problems


def vectors(data: bytes, scratch: Path, name: str) -> None:
    """Read a file as vectors."""
    opened = find_vectors(str(_written(scratch, name, data)))
    if opened is not None:
        assert opened.features.ndim == 2 and bool(opened.features.isfinite().all())


def arrays(data: bytes, scratch: Path, name: str) -> list[str]:
    """Read arrays as images and as vectors."""
    return _all(
        lambda: vectors(data, scratch, name), lambda: source(data, scratch, name, decoded=True)
    )


def table(data: bytes, scratch: Path) -> list[str]:
    """Read a table of paths with labels: as a source, as columns of a map and as vectors."""
    name = "foreign" + seeds.TABLES[data[0] % 3] if data else "foreign.csv"
    path = _written(scratch, name, data[1:])
    return _all(
        lambda: source(data[1:], scratch, name),
        lambda: columns(path),
        lambda: vectors(data[1:], scratch, name),
    )


def parquet(data: bytes, scratch: Path) -> list[str]:
    """Read a Parquet file: as a source, as columns of a map and as vectors."""
    name = "foreign.parquet"
    path = _written(scratch, name, data)
    return _all(
        lambda: source(data, scratch, name),
        lambda: columns(path),
        lambda: vectors(data, scratch, name),
    )


def columns(path: Path) -> None:
    """Read a table as columns of a map."""
    assert all(isinstance(values, np.ndarray) for values in as_arrays(read_columns(path)).values())


def _all(*uses: Callable[[], Any]) -> list[str]:
    """Do all; an error of one does not keep the others from being done. The errors are messages."""
    lines = []
    for use in uses:
        try:
            lines += use() or []
        except (ValueError, OSError) as error:
            lines.append(must_name("foreign", error))
    return lines


def must_name(name: str, error: Exception) -> str:
    """Return the message of an error; raise where it names neither a file nor a run."""
    named = name in str(error) or "the data of this run" in str(error)
    if not named or str(error).startswith("[Errno"):
        raise AssertionError(f"the message names no file: {error!r:.300}") from error
    return str(error)


def settings(data: bytes, scratch: Path) -> None:
    """Read the settings of a run."""
    path = _written(scratch, "foreign.yaml", data)
    values = read_yaml(path)
    assert all(isinstance(name, str) for name in values)
    loaded = Settings.load(path)
    loaded.save(scratch / "again.yaml")
    assert Settings.load(scratch / "again.yaml") == loaded or _has_nan(loaded)


def _has_nan(loaded: Settings) -> bool:
    return "nan" in repr(loaded)


def paper(data: bytes, scratch: Path) -> None:
    """Read a paper's tables."""
    read_paper(_written(scratch, "foreign.yaml", data))


def annotations(data: bytes, scratch: Path) -> None:
    """Read boxes in COCO's JSON or VOC's XML."""
    folder = scratch / "foreign"
    shutil.rmtree(folder, ignore_errors=True)
    _written(folder, "a.png", _small_png())
    _written(folder, "b.png", _small_png())
    name = "Annotations/a.xml" if data[:1] == b"\1" else "all.json"
    _written(folder, name, data[1:])
    open_annotated(folder)


@functools.cache
def _small_png() -> bytes:
    return seeds.encoded("PNG", "L")


def weights(data: bytes, scratch: Path) -> None:
    """Read starting weights."""
    name = "foreign" + (".pt", ".pth", ".safetensors")[data[0] % 3] if data else "foreign.pt"
    path = _written(scratch, name, data[1:])
    assert find_weights(str(path)).file == path
    read_tensors(path)


def checkpoint(data: bytes, scratch: Path) -> None:
    """Read a checkpoint."""
    load_checkpoint(_written(scratch, "foreign.ckpt", data))


def metrics(data: bytes, scratch: Path) -> list[str]:
    """Read the metrics of a run, and its verdict."""
    folder = _written(scratch, "foreign/metrics.jsonl", data).parent
    for line in read_metrics(folder):
        assert type(line["step"]) is int
    verdict = Run(folder).verdict
    return [] if verdict is None else [verdict.words]


def results(data: bytes, scratch: Path) -> list[str]:
    """Read the results of a run."""
    folder = _written(scratch, f"foreign/{RESULTS}", data).parent
    return [measured.summary()["sentence"] for measured in Run(folder).results]


def map_file(data: bytes, scratch: Path) -> None:
    """Read a saved map."""
    path = _written(scratch, "foreign.safetensors", data)
    drawn = load_map(path)
    assert drawn.coordinates.shape == (len(drawn.coordinates), 2)


def data_table(data: bytes, scratch: Path) -> None:
    """Read the table of a data set in a run folder."""
    path = _written(scratch, "foreign.arrow", data)
    assert load_table(path)["name"].null_count == 0


RUN_FILES = ("config.json", "encoder.safetensors", "config.yaml", "metrics.jsonl", "results.json")
RUN_FILES += ("environment.json", "data.arrow", "checkpoints/last.ckpt", "features.safetensors")


def run(data: bytes, scratch: Path) -> list[str]:
    """Read a run folder of which one file is changed, in all ways that train nothing."""
    folder = scratch / "foreign"
    _changed(folder, data)
    opened = Run(folder)
    return _all(
        lambda: nearfar.load(folder) and None,
        lambda: [opened.summary()["path"]],
        lambda: opened.settings and None,
        lambda: opened.model() and None,
        lambda: load_table(folder / "data.arrow") and None,
    )


def _changed(folder: Path, data: bytes) -> None:
    """Make a folder that of `run_folder` with one file changed.

    data: a byte for the file, one for what happens to it, four for the place, and new bytes.
    """
    original = run_folder()
    if not folder.exists():
        shutil.copytree(original, folder)
    note = folder / ".changed"
    if note.exists():
        shutil.copy(original / note.read_text(), folder / note.read_text())
    number, kind, place, new = data[:1], data[1:2], data[2:6], data[6:]
    name = RUN_FILES[(number or b"\0")[0] % len(RUN_FILES)]
    content = (original / name).read_bytes()
    start = int.from_bytes(place, "little") % (len(content) + 1)
    ends = (content[start + len(new) :], content[start:], b"")
    kinds = (kind or b"\0")[0] % 4
    whole = new if kinds == 3 else content[:start] + new + ends[kinds]
    note.write_text(name)
    (folder / name).write_bytes(whole)


def run_seeds() -> list[bytes]:
    """Changes of each file of a run, and each small file as a whole."""
    made = []
    for number, name in enumerate(RUN_FILES):
        content = (run_folder() / name).read_bytes()
        made += [bytes([number, kind, 40, 0, 0, 0, 1]) for kind in range(3)]
        if len(content) <= 4000:
            made.append(bytes([number, 3, 0, 0, 0, 0]) + content)
    return made


@functools.cache
def run_folder() -> Path:
    """A finished run of few weights with results and features, which lasts as long as the
    process.
    """
    home = Path(tempfile.mkdtemp(prefix="nearfar-fuzz-run-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    arrays, labels = np.stack([seeds.drawn(8, 8, 1)[..., 0] + i for i in range(48)]), np.arange(48)
    np.savez(home / "images.npz", images=arrays, labels=labels % 2)
    finished = nearfar.pretrain(
        str(home / "images.npz"),
        out=home / "run",
        epochs=1,
        batch_size=16,
        held_out=16,
        encoder="tiny",
        precision="32-true",
    )
    nearfar.evaluate(finished)
    nearfar.duplicates(finished)
    return home / "run"


def call(data: bytes, scratch: Path) -> None:
    """Turn the arguments of an agent's call into words of the command line."""
    name, options = _tools()[data[0] % len(_tools())] if data else _tools()[0]
    try:
        arguments = json.loads(data[1:])
    except (ValueError, RecursionError):
        return
    if not isinstance(arguments, dict):  # the protocol's own library refuses it
        return
    try:
        words = words_of(options, arguments, scratch)
    except OSError as error:
        raise AssertionError("an agent is told of errors of value alone") from error
    assert words[0] == "--json" and all(isinstance(word, str) for word in words)
    assert did_you_mean(name, [name])


@functools.cache
def _tools() -> list[tuple[str, list[Any]]]:
    from nearfar.app import command_app, options_of_app

    return [(name, list(options_of_app(command_app(name)))) for name in nearfar.tool_names()]


def png_repaired(data: bytes) -> bytes:
    """A PNG with the checksums of its chunks put right."""
    made, place = bytearray(data[:8]), 8
    while place + 12 <= len(data):
        size = int.from_bytes(data[place : place + 4], "big")
        body = data[place + 4 : place + 8 + size]
        made += data[place : place + 4] + body + zlib.crc32(body).to_bytes(4, "big")
        place += 12 + size
    return bytes(made + data[place:])


def tar_repaired(data: bytes) -> bytes:
    """A tar with the checksums of what may be headers put right."""
    made = bytearray(data)
    for place in range(0, len(made) - 511, 512):
        head = made[place : place + 512]
        if head[257:262] == b"ustar":
            head[148:156] = b" " * 8
            made[place + 148 : place + 156] = b"%06o\0 " % sum(head)
    return bytes(made)


def prepare() -> None:
    """Prepare this process for many inputs.

    The limit on pixels is lowered, so that what takes long or much memory is an error and no size;
    nothing is logged; the table of a scan is not saved, since no file is scanned twice.
    """
    Image.MAX_IMAGE_PIXELS = LARGEST_IMAGE // 2
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    logging.disable(logging.CRITICAL)
    tables: Any = encoded
    tables._saved = lambda home: encoded.SCANNED.empty_table()
    tables._save = lambda *given: None


_COLUMNS = (b"path", b"file_name", b"label", b"split", b"train", b"test", b"nan", b"\r\n", b'"')
_JSON = (b'{"', b'":', b"null", b"true", b"NaN", b"Infinity", b"1e999", b"[[", b"\\ud800")
_YAML = (b": ", b"- ", b"&a ", b"*a", b"!!", b"? ", b"<<: ", b"\n  ", b"{}", b"[]", b".nan")
_METRICS = (b'"step"', b'"epoch"', b'"health"', b'"loss"', b'"images"', *_JSON)

TARGETS: dict[str, Target] = {
    "png": Target(image, seeds.png, repaired=png_repaired, words=(b"eXIf", b"tRNS", b"acTL")),
    "jpeg": Target(image, seeds.jpeg),
    "webp": Target(image, seeds.webp),
    "gif": Target(image, seeds.gif),
    "heif": Target(image, seeds.heif),
    "tiff": Target(image, seeds.tiff),
    "dicom": Target(image, seeds.dicom),
    "pictures": Target(image, seeds.pictures),
    "exif": Target(exif, seeds.notes, largest=512),
    "text": Target(text, lambda: [b"a\nb", "é\n".encode("utf-16")], largest=64),
    "labels": Target(labels, lambda: [b'[1, "2", null, [0, 1], true, 0.5]', b"a\n1"], largest=128),
    "tar": Target(
        functools.partial(source, name="foreign.tar"),
        seeds.tars,
        "foreign",
        8192,
        repaired=tar_repaired,
        words=(b"GNU.sparse.realsize", b"path=", b"size=", b"././@LongLink", b"ustar"),
    ),
    "npy": Target(functools.partial(arrays, name="foreign.npy"), seeds.npy, "foreign"),
    "npz": Target(functools.partial(arrays, name="foreign.npz"), seeds.npz, "foreign"),
    "table": Target(table, seeds.tables, "foreign", 512, (*_COLUMNS, *_JSON)),
    "parquet": Target(parquet, seeds.parquet, "foreign", 8192),
    "arrow": Target(data_table, seeds.arrow, "foreign"),
    "settings": Target(settings, seeds.yaml, "foreign", 512, _YAML),
    "paper": Target(paper, lambda: [seeds.PAPER], "foreign", 1024, _YAML),
    "annotations": Target(annotations, seeds.coco, "foreign", 1024, _JSON),
    "weights": Target(weights, seeds.tensors, "foreign"),
    "checkpoint": Target(checkpoint, seeds.checkpoint, "foreign"),
    "map": Target(map_file, seeds.map_file, "foreign", 8192),
    "metrics": Target(metrics, seeds.metrics, "foreign", 1024, _METRICS),
    "run": Target(run, run_seeds, "foreign", words=_METRICS),
    "call": Target(call, lambda: [b'\0{"target": "photos"}'], "", 256, _JSON),
}
