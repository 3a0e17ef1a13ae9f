"""Nothing is left out in silence: what is found is read, or counted with its reason."""

import errno
import io
import os
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

import nearfar
from nearfar.data import cache as pixel_cache
from nearfar.data import list_splits, open_images, scan
from nearfar.data.decoding import decode, raise_pixel_limit
from nearfar.data.left_out import PackageMissing
from nearfar.data.readers import look
from nearfar.data.sources import encoded as headers
from nearfar.data.table import as_arrays
from nearfar.data.value_range import PixelFormat
from tests.pictures import png, tar, write_dicom


@pytest.mark.parametrize("name", ["__drawn_by_x__.png", "__background__/0.png", "__init__.png"])
def test_names_that_begin_with_underscores_are_read(tmp_path, paint, name):
    paint(tmp_path / "in" / name, 0)
    paint(tmp_path / "in" / "__MACOSX" / "b.png", 1)
    assert open_images(tmp_path / "in").names == [name]
    tar(tmp_path / "a.tar", [(name, png(0)), ("__MACOSX/._b.png", b"x"), ("x/._c.png", b"x")])
    images = open_images(tmp_path / "a.tar")
    assert images.names == [f"a/{name[:-4]}"] and images.skipped == []


@pytest.mark.parametrize(
    "names",
    [
        [f"scan.{i:04d}.png" for i in range(12)],
        [f"1.2.840.{i}.7.png" for i in range(12)],
        [f"{20 + i % 3}.{i:02d}.png" for i in range(12)],
        [f"{i // 2}{ending}" for i in range(12) for ending in [[".png", ".copy.png"][i % 2]]],
        ["a.png"] * 12,
        [f"{i % 6}.png" for i in range(12)],
        [f"{i}" for i in range(12)],  # without an ending
        [f"{i}.png_large" for i in range(12)],
    ],
)
def test_every_image_of_a_tar_is_an_image(tmp_path, names):
    tar(tmp_path / "a.tar", [(name, png(i)) for i, name in enumerate(names)])
    images = open_images(tmp_path / "a.tar")
    assert len(images) == len(set(images.names)) == 12 and images.skipped == []
    expected = [np.asarray(Image.open(io.BytesIO(png(i)))).transpose(2, 0, 1) for i in range(12)]
    assert (images.pixels.numpy() == np.stack(expected)).all()


@pytest.mark.parametrize("ending", ["cls", "CLS", "Cls"])
@pytest.mark.parametrize("order", ["beside", "behind", "first", "reversed"])
def test_labels_are_found_wherever_they_lie(tmp_path, ending, order):
    pictures = [(f"{i}.png", png(i)) for i in range(6)]
    labels = [(f"{i}.{ending}", str(i % 2).encode()) for i in range(6)]
    members = {
        "beside": [part for pair in zip(pictures, labels, strict=True) for part in pair],
        "behind": pictures + labels,
        "first": labels + pictures,
        "reversed": pictures + labels[::-1],
    }
    tar(tmp_path / "a.tar", members[order])
    images = open_images(tmp_path / "a.tar")
    assert images.labels.tolist() == [0, 1] * 3 and images.skipped == []


def test_labels_of_several_images_and_of_joined_tars(tmp_path):
    members = [("s.1.png", png(0)), ("s.1.cls", b"3"), ("s.2.png", png(1)), ("s.cls", b"4")]
    tar(tmp_path / "a.tar", [*members, ("alone.cls", b"5")])
    images = open_images(tmp_path / "a.tar")
    assert images.names == ["a/s.1.png", "a/s.2.png"] and images.labels.tolist() == [3, 4]
    assert images.skipped == [("a/alone.cls", "a label without an image")]
    shards = [[("0.png", png(i)), ("0.cls", str(i).encode()), ("1.png", png(9))] for i in (0, 1)]
    tar(tmp_path / "b.tar", shards[0] + shards[1])
    assert open_images(tmp_path / "b.tar").labels.tolist() == [0, -1, 1, -1]


def test_trains_and_gardens_are_no_splits(tmp_path, paint):
    for number, folder in enumerate(["Train", "Test", "Garden", "Holiday"]):
        for i in range(3):
            paint(tmp_path / folder / f"{i}.png", 10 * number + i)
    assert list_splits(tmp_path) == []
    images = open_images(tmp_path)
    assert len(images) == 12 and images.skipped == []
    assert images.class_names == ["Garden", "Holiday", "Test", "Train"]


def test_what_is_in_no_split_is_counted_and_read_with_all(tmp_path, paint):
    for number, name in enumerate(["train/0.png", "test/1.png", "extra/2.png", "stray.png"]):
        paint(tmp_path / name, number)
    images = open_images(tmp_path)
    assert images.line.endswith(
        "the split train of train, test: 1 image read, 2 left out: 2 in none of the splits"
    )
    whole = open_images(tmp_path, split="all")
    assert len(whole) == 4 and whole.skipped == [] and "the splits train, test" in whole.line
    assert whole.table["split"].to_pylist() == ["train", "test", "", ""]
    assert list_splits(tmp_path) == ["train", "test"]


def mixed(folder):
    """A folder of three images, two of them under odd names, and what is no image."""
    folder.mkdir()
    (folder / "a.png").write_bytes(png(0))
    (folder / "IM0001").write_bytes(png(1))
    (folder / "b.jpg_large").write_bytes(png(2))
    for i in range(20):
        (folder / f"{i}.dng").write_bytes(b"II*\0" + bytes(100))
    for i in range(9):
        (folder / f"{i}.CR2").write_bytes(b"II*\0" + bytes(100))
    (folder / "cut.png").write_bytes(png(3)[:60])
    (folder / "empty.png").write_bytes(b"")
    (folder / "page.jpg_large").write_text("<html>")
    (folder / "blob").write_bytes(bytes(range(256)))
    with zipfile.ZipFile(folder / "more.zip", "w") as archive:
        archive.writestr("x", "x")
    for beside in ("notes.txt", "README", "Thumbs.db", ".DS_Store", "labels.json", "_SUCCESS"):
        (folder / beside).write_bytes(b"")
    return folder


def test_what_is_left_out_is_counted_by_kinds_and_endings(tmp_path):
    images = open_images(mixed(tmp_path / "in"))
    assert images.names == ["IM0001", "a.png", "b.jpg_large"]
    assert "3 images read, 34 left out: " in images.line
    for words in (
        "20 .dng and 9 .cr2 (raw photographs are not read)",
        "1 cut off",
        "1 empty",
        "1 not images",
        "1 .zip (archives are not unpacked)",
        "1 without an ending (unknown files)",
    ):
        assert words in images.line
    assert sum(images.left_out.values()) == 34 == len(images.skipped)


def test_every_verb_says_what_was_left_out(tmp_path, monkeypatch, capsys):
    from nearfar.cli import main

    monkeypatch.chdir(tmp_path)
    folder = mixed(tmp_path / "in")
    for i in range(4, 12):
        (folder / f"{i}.png").write_bytes(png(i))
    for words in (
        ["duplicates", "in"],
        ["check", "in"],
        ["map", "in"],
        ["cluster", "in", "--clusters", "2"],
        ["select", "in", "--n", "2"],
        ["search", "in", "a.png", "--k", "1"],
    ):
        assert main(words) == 0
        out, err = capsys.readouterr()
        assert (out + err).count("in: 11 images read, 34 left out: 20 .dng and 9 .cr2") == 1, words
    rows = nearfar.check("in", out="again.html")
    assert rows["problem"].count("unreadable") == 3 and rows["problem"].count("left out") == 31


def test_duplicates_reads_every_split_and_says_so(tmp_path, paint, log, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(6):
        paint(tmp_path / "in" / "train" / f"{number}.png", number, 32)
        paint(tmp_path / "in" / "test" / f"{number}.png", 3 + number, 32)
    duplicates = nearfar.duplicates("in")
    assert duplicates["kind"].count("same file") == 3
    assert "train, test: 12 images read" in log.text
    assert "3 of 12 images" in log.text


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.EIO, "Input/output error"),
        PackageMissing("HEIC needs pillow-heif"),
        Image.DecompressionBombError(),
        OSError("out of memory error when reading image file"),
    ],
)
@pytest.mark.parametrize("where", ["header", "decode"])
def test_an_error_that_passes_is_not_remembered(tmp_path, paint, monkeypatch, error, where):
    for number in range(4):
        paint(tmp_path / f"{number}.png", number)
        os.utime(tmp_path / f"{number}.png", (1, 1))
    monkeypatch.setattr(headers, "SETTLED", -(10**12))  # as if written long ago
    room = {"header": headers, "decode": pixel_cache}[where]
    real, bad = getattr(room, where), (tmp_path / "2.png").read_bytes()

    def failing(data, *form):
        if data == bad:
            raise error
        return real(data, *form)

    with monkeypatch.context() as patched:
        patched.setattr(room, where, failing)
        for _ in range(2):
            images = open_images(tmp_path)
            assert len(images) == 3 and [name for name, _ in images.skipped] == ["2.png"]
    whole = open_images(tmp_path)
    assert len(whole) == 4 and whole.skipped == []
    assert torch.equal(whole.pixels[2], torch.from_numpy(decode(bad, PixelFormat(8, 3)).copy()))


def test_damage_is_remembered(tmp_path, paint, monkeypatch, decodes):
    paint(tmp_path / "0.png", 0)
    (tmp_path / "1.png").write_bytes(png(1)[:70])
    monkeypatch.setattr(headers, "SETTLED", -(10**12))
    assert len(open_images(tmp_path)) == 1
    before = len(decodes)
    monkeypatch.setattr(headers, "header", None)
    images = open_images(tmp_path)
    assert len(decodes) == before and [name for name, _ in images.skipped] == ["1.png"]


def test_the_pixel_limit_can_be_raised(tmp_path, paint, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    paint(tmp_path / "small.png", 0, 20)
    paint(tmp_path / "large.png", 1, 60)
    images = open_images(tmp_path, image_size=16)
    assert images.names == ["small.png"] and "1 with too many pixels (`max_pixels`)" in images.line
    assert len(open_images(tmp_path, image_size=16, max_pixels=3600)) == 2
    raise_pixel_limit(10)  # never lowers it
    assert Image.MAX_IMAGE_PIXELS == 1800


def test_class_folders_that_change_places_are_noticed(tmp_path, paint, monkeypatch):
    for number, folder in enumerate(["a", "b"]):
        paint(tmp_path / "in" / folder / "0.png", number)
        os.utime(tmp_path / "in" / folder / "0.png", ns=(10**18, 10**18))
    monkeypatch.setattr(headers, "SETTLED", -(10**12))
    real = headers.EncodedSource.stamp
    # created within one step of the file system's clock
    monkeypatch.setattr(
        headers.EncodedSource, "stamp", lambda self, file: (*[10**18] * 2, *real(self, file)[2:])
    )
    before = open_images(tmp_path / "in").pixels.clone()
    (tmp_path / "in" / "a").rename(tmp_path / "in" / "c")
    (tmp_path / "in" / "b").rename(tmp_path / "in" / "a")
    (tmp_path / "in" / "c").rename(tmp_path / "in" / "b")
    after = open_images(tmp_path / "in").pixels
    assert torch.equal(after, before.flip(0)) and not torch.equal(after, before)


def test_documents_of_several_pages_are_all_read(tmp_path):
    for number in range(10):
        pages = np.random.default_rng(number).integers(0, 256, (1 + number % 3, 20, 14), np.uint8)
        first, *others = map(Image.fromarray, pages)
        first.save(tmp_path / f"{number}.tif", save_all=True, append_images=others)
    images = open_images(tmp_path, image_size=14)
    assert len(images) == 10 and images.channels == 1 and images.skipped == []
    assert "the first page or frame is read of 6 with several" in images.line
    assert len(open_images(tmp_path, image_size=14, channels=2)) == 3


@pytest.mark.parametrize("channels", [2, 3, 4])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_colour_of_sixteen_bits_is_turned_upright_too(tmp_path, channels, orientation):
    from tests.pictures import png16

    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, channels), dtype=np.uint8)
    if channels in (2, 4):
        pixels[..., -1] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    narrow = io.BytesIO()
    Image.fromarray(pixels).save(narrow, "PNG", exif=exif)
    chunk_at = narrow.getvalue().index(b"eXIf") - 4
    size = int.from_bytes(narrow.getvalue()[chunk_at : chunk_at + 4], "big") + 12
    chunk = narrow.getvalue()[chunk_at : chunk_at + size]
    wide = png16(pixels.astype(np.uint16) * 257)
    for place in (33, len(wide) - 12):  # before the pixels, and behind them
        opened = look(wide[:place] + chunk + wide[place:])
        planes = opened.read() // 257
        assert opened.header()[:2] == planes.shape[1:]
        expected = decode(narrow.getvalue(), PixelFormat(6, len(planes)))
        top = (planes.shape[1] - 6) // 2
        left = (planes.shape[2] - 6) // 2
        assert (planes[:, top : top + 6, left : left + 6] == expected).all()


def test_dicom_in_a_palette_is_colour(tmp_path):
    pytest.importorskip("pydicom")
    stored = np.random.default_rng(0).integers(0, 4, (8, 8)).astype(np.uint8)
    colours = np.array([[0, 0, 0], [255, 0, 0], [0, 255, 0], [10, 20, 255]], np.uint8)
    tables = {}
    for channel, name in enumerate(("Red", "Green", "Blue")):
        tables[f"{name}PaletteColorLookupTableDescriptor"] = [4, 0, 8]
        tables[f"{name}PaletteColorLookupTableData"] = colours[:, channel].tobytes()
    write_dicom(
        tmp_path / "a.dcm",
        stored,
        PhotometricInterpretation="PALETTE COLOR",
        BitsAllocated=8,
        BitsStored=8,
        HighBit=7,
        **tables,
    )
    images = open_images(tmp_path)
    assert images.channels == 3
    assert (images.pixels[0].numpy() == colours[stored].transpose(2, 0, 1)).all()


def test_a_long_text_in_a_file_widens_no_other(tmp_path):
    for number in range(3):
        tags = Image.Exif()
        tags[0x0110] = "Box\n" + "x" * (50_000 if number == 1 else 3)
        Image.fromarray(np.full((20, 20, 3), number, np.uint8)).save(
            tmp_path / f"{number}.jpg", exif=tags
        )
    columns = open_images(tmp_path).columns
    longest = columns["camera"].to_pylist()[1]
    assert len(longest) == 100 and longest.isprintable() and longest.startswith("Box xxx")
    assert as_arrays(columns)["camera"].dtype == object


def test_a_scan_shows_how_far_it_is_from_the_start(tmp_path, paint, bars):
    for number in range(5):
        paint(tmp_path / f"{number}.png", number)
    scan(tmp_path)
    assert {title for title, *_ in bars} == {"looking at images"}
    assert bars[0][1:] == (0, None) and bars[-1][1:] == (5, 5)
    assert [done for _, done, total in bars if total == 5] == [0, 0, 1, 2, 3, 4, 5]


def test_what_maps_and_runs_wrote_among_the_images_is_left_out(tmp_path, paint, log):
    """Figures and sheets of thumbnails are no images of the user; a class that has the name of a
    map, and a picture beside numbers of its own, are.
    """
    for number in range(20):
        paint(tmp_path / "in" / ["cats", "dogs"][number % 2] / f"{number}.png", number)
    paint(tmp_path / "in" / "cats" / "own.png", 20)
    (tmp_path / "in" / "cats" / "own.json").write_text("{}")
    root = str(tmp_path / "in")
    before = open_images(root)
    nearfar.map(root, out=f"{root}/cats.html")
    nearfar.map(root, out=f"{root}/plane")
    nearfar.pretrain(root, out=f"{root}/runs/dogs", epochs=1, encoder="tiny")
    assert list((tmp_path / "in" / "plane" / "pictures").rglob("*.png"))
    after = open_images(root)
    assert after.names == before.names and after.class_names == ["cats", "dogs"]
    assert after.skipped == []
    for words in (
        "cats' is a map",
        "plane' is a map",
        "folder of a run",
    ):
        assert words in log.text
