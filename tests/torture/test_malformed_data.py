"""Broken and odd data of every kind: each is read, listed as skipped or refused by one line, in
bounded memory.
"""

import json
import random
import struct
import subprocess
import sys
import textwrap
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from nearfar.cli import main
from nearfar.data import open_images
from tests.pictures import encoded, noise, tar

GREEN = Image.new("RGB", (16, 16), (0, 200, 0))
OTHER = Image.new("RGB", (16, 16), (90, 90, 0))
NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))


pytestmark = pytest.mark.usefixtures("own_cache")


def chunk(kind, content):
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def png(width, height, depth=8, colour=2, content=b"", extra=b""):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + extra
        + chunk(b"IDAT", zlib.compress(content))
        + chunk(b"IEND", b"")
    )


def resized(form, place, code, width, height):
    """An image whose header claims another size."""
    data = bytearray(encoded(GREEN, form))
    struct.pack_into(code, data, place, width, height)
    return bytes(data)


def turned(form):
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(GREEN, form, exif=exif)


def wide(kind, value):
    return Image.fromarray(np.full((16, 16), value, kind))


WHOLE = {
    form: encoded(NOISE, form)
    for form in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "ICO", "TGA", "PCX")
}

READ = {  # read, with the value of the first pixel in the second of three channels, within 3
    "exif.jpg": (turned("JPEG"), 200),
    "exif.png": (turned("PNG"), 200),
    "broken-exif.png": (encoded(GREEN, "PNG", exif=b"Exif\0\0MM\0broken"), 200),
    "16-bit.png": (encoded(wide(np.uint16, 257 * 90), "PNG"), 90),
    "16-bit.tif": (encoded(wide(np.uint16, 257 * 90), "TIFF"), 90),
    "16-bit.pgm": (b"P5 16 16 65535\n" + b"\x5a\x5a" * 256, 90),
    "16-bit-rgb.png": (png(16, 16, 16, 2, (b"\0" + b"\0\0\x5a\x5a\0\0" * 16) * 16), 90),
    "float.tif": (encoded(wide(np.float32, 0.2), "TIFF"), 51),
    "float255.tif": (encoded(wide(np.float32, 70), "TIFF"), 70),
    "cmyk.jpg": (encoded(GREEN.convert("CMYK"), "JPEG"), 200),
    "lab.tif": (encoded(GREEN.convert("LAB"), "TIFF"), 200),
    "palette.gif": (encoded(GREEN, "GIF"), 200),
    "one-bit.png": (encoded(Image.new("1", (16, 16), 1), "PNG"), 255),
    "clear.png": (encoded(Image.new("RGBA", (16, 16), (0, 0, 0, 0)), "PNG"), 255),
    "gray-clear.png": (encoded(Image.new("LA", (16, 16), (0, 0)), "PNG"), 255),
    "animated.webp": (
        encoded(
            GREEN, "WEBP", lossless=True, save_all=True, append_images=[NOISE.resize((16, 16))]
        ),
        200,
    ),
    "really-a.png.jpg": (encoded(GREEN, "PNG"), 200),
    "trailing.jpg": (encoded(GREEN, "JPEG") + b"<?php trailing ?>" * 100, 200),
    "one-pixel.png": (encoded(Image.new("RGB", (1, 1), (0, 200, 0)), "PNG"), 200),
    "long.png": (encoded(Image.new("RGB", (20_000, 1), (0, 200, 0)), "PNG"), 200),
}

SKIPPED = {
    "empty.png": b"",
    "text.png": b"hello",
    "html.jpg": b"<html><body>404 not found</body></html>",
    "zeros.png": bytes(1000),
    "noise.jpg": random.Random(0).randbytes(5000),
    "only-a-signature.png": b"\x89PNG\r\n\x1a\n",
    "no-size.png": png(0, 0),
    "bomb.png": png(30_000, 30_000),
    "too-short.png": png(64, 64, content=bytes(10)),
    "bits.png": png(8, 8, depth=7),
    "text-bomb.png": png(8, 8, extra=chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(10**8)))),
    "21-digits.ppm": b"P6 " + b"9" * 21 + b" 1 255\n",
    "bomb.bmp": resized("BMP", 18, "<ii", 10**9, 10**9),
    "bomb.gif": b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\x08\0;",
    "bomb.tga": resized("TGA", 12, "<HH", 65535, 65535),
    "bomb.jp2": resized("JPEG2000", 48, ">II", 10**9, 10**9),
    "not-finite.tif": encoded(wide(np.float32, np.nan), "TIFF"),
    "postscript.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n",
    **{
        f"half.{form.lower()}": data[: len(data) // 3]
        for form, data in WHOLE.items()
        if form not in ("ICO", "PCX")
    },
}


def put(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def held(images):
    """Names of the images that are kept, and skipped images, each checked to be well formed."""
    lines = [*images.names, *(line for entry in images.skipped for line in entry)]
    assert all(line and len(line.splitlines()) == 1 and line.encode() for line in lines)
    return set(images.names), dict(images.skipped)


def refused(ask, *words):
    """The message of a ValueError or OSError of one line."""
    with pytest.raises((ValueError, OSError)) as error:
        ask()
    message = str(error.value)
    assert len(message.splitlines()) == 1 and all(word in message for word in words), message
    return message


def test_odd_images_are_read_right_and_broken_ones_listed(tmp_path):
    files = {name: data for name, (data, _) in READ.items()}
    images = open_images(put(tmp_path / "in", files | SKIPPED), image_size=16, channels=3)
    kept, skipped = held(images)
    assert kept == set(READ) and set(skipped) == set(SKIPPED)
    for place, name in enumerate(images.names):
        assert abs(int(images.pixels[place, 1, 0, 0]) - READ[name][1]) <= 3, name


@pytest.mark.parametrize("form", WHOLE)
def test_damaged_images_never_stop_the_others(tmp_path, form, capfd):
    chance, files = random.Random(form), {"good.png": WHOLE["PNG"]}
    for number in range(60):
        data = bytearray(WHOLE[form])
        for _ in range(chance.choice((1, 3, 30))):
            data[chance.randrange(min(len(data), chance.choice((60, 10**6))))] = chance.randrange(
                256
            )
        files[f"{number}.{form.lower()}"] = bytes(
            data[: chance.choice((10**6, chance.randrange(len(data))))]
        )
    kept, skipped = held(open_images(put(tmp_path / "in", files), image_size=16, channels=3))
    assert "good.png" in kept and kept | set(skipped) == set(files)
    assert capfd.readouterr().err == ""


IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
CELLS = [{"bytes": encoded(GREEN, "PNG"), "path": None}] * 4
NOTES = {"info": {"features": {"img": {"_type": "Image"}}}}


def noted(notes):
    return pa.table({"img": pa.array(CELLS, IMAGE)}).replace_schema_metadata(
        {"huggingface": json.dumps(notes)}
    )


TABLES = {  # a table, and how many images it holds; None: it is refused
    "good": (pa.table({"img": pa.array(CELLS, IMAGE)}), 4),
    "nulls": (
        pa.table({"img": pa.array([None, *CELLS[:2], {"bytes": None, "path": None}], IMAGE)}),
        2,
    ),
    "paths": (
        pa.table(
            {
                "img": pa.array(
                    [*CELLS, *({"path": p} for p in ("", "\0", "/", "..", "x" * 9999))], IMAGE
                )
            }
        ),
        4,
    ),
    "all null": (pa.table({"img": pa.array([None] * 4, IMAGE)}), None),
    "no rows": (pa.table({"img": pa.array([], IMAGE)}), None),
    "no columns": (pa.table({}), None),
    "no images": (pa.table({"a": [1, 2]}), None),
    "binary": (pa.table({"img": pa.array([c["bytes"] for c in CELLS], pa.binary())}), 4),
    "float labels": (
        pa.table({"img": pa.array(CELLS, IMAGE), "label": [0.0, float("nan"), float("inf"), 1.0]}),
        4,
    ),
    "notes": (noted(NOTES), 4),
    "notes of no type": (noted({"info": {"features": {"img": {"_type": "Nonsense"}}}}), None),
}


@pytest.mark.parametrize(("table", "count"), TABLES.values(), ids=TABLES)
def test_odd_tables(tmp_path, table, count):
    pq.write_table(table, tmp_path / "a.parquet")
    if count is None:
        refused(lambda: open_images(tmp_path / "a.parquet"))
    else:
        assert len(held(open_images(tmp_path / "a.parquet"))[0]) == count


def test_damaged_tables_are_refused_by_the_name_of_the_file(tmp_path):
    pq.write_table(pa.table({"img": pa.array(CELLS * 20, IMAGE)}), tmp_path / "a.parquet")
    whole, chance = (tmp_path / "a.parquet").read_bytes(), random.Random(0)
    refusals = 0
    for number in range(60):
        data = bytearray(whole)
        for _ in range(1 + number % 5):
            data[chance.randrange(len(data))] = chance.randrange(256)
        (tmp_path / "b.parquet").write_bytes(
            data if number % 3 else data[: chance.randrange(len(data))]
        )
        try:
            held(open_images(tmp_path))
        except ValueError as error:
            refusals += 1
            assert len(str(error).splitlines()) == 1
            assert "b.parquet'" in str(error) or "has no column of images" in str(error), error
    assert refusals > 20


def test_damaged_tars_give_what_is_whole(tmp_path):
    fields = {"png": lambda i: CELLS[0]["bytes"], "cls": lambda i: b"%d" % i}
    tar(
        tmp_path / "whole.tar",
        [(f"{i:02d}.{end}", made(i)) for i in range(30) for end, made in fields.items()],
    )
    whole, chance = (tmp_path / "whole.tar").read_bytes(), random.Random(0)
    (tmp_path / "whole.tar").unlink()
    for number in range(60):
        data = bytearray(whole)
        for _ in range(1 + number % 4):  # in headers: two of three blocks of 512 bytes are one
            place = chance.randrange(len(data) // 512 - 20) * 512 + chance.randrange(512)
            data[place] = chance.randrange(256)
        cut = chance.randrange(2048, len(data)) if number % 3 == 0 else len(data)
        (tmp_path / "a.tar").write_bytes(data[:cut])
        images = open_images(tmp_path / "a.tar")
        kept, skipped = held(images)
        assert len(kept) >= (30 - 4 if cut == len(data) else cut // 2048 - 4)
        assert cut == len(data) or "a.tar" in skipped or cut >= 60 * 1024


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.parquet", "a.tar", "a.txt", "folder"])
@pytest.mark.parametrize(
    "content", [b"", b"no data", random.Random(1).randbytes(20_000)], ids=["empty", "text", "noise"]
)
def test_the_command_line_ends_in_one_line_and_leaves_no_run_folder(
    tmp_path, complaint, name, content
):
    source = put(tmp_path / "in", {name: content}) / name
    if name == "folder":
        source = put(tmp_path / "folder", {"a.png": content})
    assert str(source) in complaint("pretrain", source, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


MEASURED = """
    import resource, sys
    from nearfar.data import open_images
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    images = open_images(sys.argv[1], image_size=1024, workers=4)
    print(len(images), len(images.skipped), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize(
    ("depth", "colour"), [(16, 0), (16, 6), (8, 3)], ids=["grayscale", "clear", "palette"]
)
def test_large_images_of_few_bytes_share_the_memory(tmp_path, depth, colour):
    """Four threads, each with 36 million pixels from 100 kB: grayscale of 16 bits alone took 1 GB
    in each thread.
    """
    side, values = 6000, {0: 1, 3: 1, 6: 4}[colour]
    palette = chunk(b"PLTE", bytes(range(48))) if colour == 3 else b""
    data = png(
        side, side, depth, colour, (b"\0" + b"\1" * (side * values * depth // 8)) * side, palette
    )
    assert len(data) < 2_000_000
    folder = put(tmp_path / "in", {f"{number}.png": data for number in range(4)})
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEASURED), str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    count, skipped, megabytes = map(int, done.stdout.split())
    assert (count, skipped) == (4, 0) and megabytes < 800, done.stdout


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are UTF-8")
def test_a_folder_whose_name_is_not_utf8_is_trained_on_and_drawn(tmp_path, capsys):
    folder = tmp_path / "ph\udcff"
    folder.mkdir()
    for number in range(24):
        (folder / f"{number}.png").write_bytes(encoded(noise(number)))
    run = str(tmp_path / "run")
    words = [
        "--encoder",
        "tiny",
        "--epochs",
        "1",
        "--batch-size",
        "8",
        "--precision",
        "32-true",
        "--out",
        run,
    ]
    assert main(["pretrain", str(folder), *words]) == 0, capsys.readouterr().err
    assert main(["map", run]) == 0, capsys.readouterr().err
    assert "ph\\udcff" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.torture
@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([2**63, 1], r"labels must lie below 2\*\*63"),
        ([float("inf"), 1.0], r"labels must be .*holds inf"),
        ([[1, 1], [0, 1]], "labels must be"),
        ([[0, 1], [1, 0, 0]], "holds lists of several kinds"),
        ([{"a": 1}, {"a": 2}], "labels must be"),
        ([b"\xff\xfe", b"\x00"], None),
        (["x" * 10**6, "\n\x1b[31m"], None),
        ([-(2**62), 2**62], None),
    ],
)
def test_odd_labels_are_classes_or_one_line(labels, says):
    pixels = np.zeros((2, 8, 8), np.uint8)
    if says is None:
        images = open_images((pixels, labels))
        assert images.labels.tolist() in ([0, 1], [1, 0])
        assert all(name.isprintable() for name in images.class_names)
    else:
        with pytest.raises(ValueError, match=says) as error:
            open_images((pixels, labels))
        assert len(str(error.value)) < 400 and "\n" not in str(error.value)
    items = [(image, label) for image, label in zip(pixels, labels, strict=True)]
    assert len(open_images(items)) == 2  # without labels, where they are none


def test_texts_of_files_are_cut(tmp_path):
    """A camera name of 60 kB in one of many images, and a chunk of EXIF data of 5 MB."""
    tags = Image.Exif()
    tags[0x0110] = "\x1b[2J" + "x" * 60_000
    (tmp_path / "0.jpg").write_bytes(encoded(GREEN, "JPEG", exif=tags))
    tags[0x0110] = "y" * 5_000_000
    (tmp_path / "1.png").write_bytes(
        png(1, 1, content=bytes(4), extra=chunk(b"eXIf", tags.tobytes()))
    )
    for number in range(2, 200):
        (tmp_path / f"{number}.png").write_bytes(png(1, 1, content=bytes(4)))
    columns = open_images(tmp_path, image_size=4).columns
    assert all(
        text is None or (len(text) <= 100 and text.isprintable())
        for text in columns["camera"].to_pylist()
    )


@pytest.mark.parametrize("seed", range(20))
def test_every_member_of_a_tar_is_read_or_listed(tmp_path, seed):
    """Names of any form: every image is one, however keys, dots and cases fall, and no label
    vanishes.
    """
    draw = random.Random(seed)
    members = []
    for number in range(30):
        parts = [
            draw.choice(["a", "b", "20", "x.y", "", "__c__", "é"])
            for _ in range(draw.randint(1, 3))
        ]
        name = ".".join(parts) + draw.choice([".png", ".PNG", "", ".png_large", ".seg.png"])
        if not name.startswith(".") and name:
            members.append((name, png(1, 1, content=bytes([0, number, 0, 0]))))
    labels = [(f"{draw.choice('ab')}.{draw.choice(['cls', 'CLS'])}", b"1") for _ in range(4)]
    everything = [*members, *labels]
    draw.shuffle(everything)
    tar(tmp_path / "a.tar", everything)
    images = open_images(tmp_path / "a.tar", image_size=1)
    assert len(images) == len(set(images.names)) == len(members)
    seen = sorted(images.pixels[:, 0, 0, 0].tolist())
    assert seen == sorted(content_value(content) for _, content in members)
    assert {why for _, why in images.skipped} <= {"a label without an image"}


def content_value(content):
    """The red of the only pixel."""
    import io

    return Image.open(io.BytesIO(content)).getpixel((0, 0))[0]


@pytest.mark.parametrize(
    "head", [b"", b"\0", b"\xff\xd8\xff", b"II*\0", b"BM", b"PK\x03\x04", b"\x00" * 128 + b"DICM"]
)
@pytest.mark.parametrize("name", ["x", "x.jpg_large", "x.dng", "x.unknown", "x.png"])
def test_a_broken_file_of_any_name_is_counted_once_or_beside_images(tmp_path, head, name):
    (tmp_path / "good.png").write_bytes(encoded(GREEN, "PNG"))
    (tmp_path / name).write_bytes(head)
    images = open_images(tmp_path)
    assert images.names == ["good.png"] and len(images.skipped) <= 1
    if name not in ("x", "x.unknown"):
        assert [name for name, _ in images.skipped] == [name]
    assert images.line.count("\n") == 0
