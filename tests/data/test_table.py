"""The table of a data set: what headers say, kept until a file changes, and compared with an
earlier one.
"""

import os
import shutil
from contextlib import suppress

import numpy as np
import pyarrow.feather
import pytest
from datasets import Dataset as Table
from PIL import Image

from nearfar.data import difference, open_images, scan
from nearfar.data.exif import TYPES
from nearfar.data.readers import look
from nearfar.data.sources import encoded as headers
from nearfar.data.table import cache_folder, digest, load_table, save_table
from tests.pictures import encoded, tar


def picture(number, size=10):
    return Image.fromarray(
        np.random.default_rng(number).integers(0, 256, (size, size, 3), dtype=np.uint8)
    )


@pytest.fixture
def folder(tmp_path):
    for number in range(6):
        place = tmp_path / "data" / ("cats" if number < 3 else "dogs")
        place.mkdir(parents=True, exist_ok=True)
        picture(number).save(place / f"{number}.bmp")  # all of one size in bytes
    return tmp_path / "data"


@pytest.fixture
def looked(monkeypatch):
    """The files that were opened for their headers; files count as old as soon as they are
    written.
    """
    monkeypatch.setattr(headers, "SETTLED", -(10**12))
    seen, real = [], headers.scan_image
    monkeypatch.setattr(
        headers, "scan_image", lambda file: seen.append(os.path.basename(file.data)) or real(file)
    )
    return seen


def test_a_row_holds_what_the_header_says(tmp_path, decodes):
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "train" / "b").mkdir()
    (tmp_path / "test").mkdir()
    Image.new("L", (30, 20)).save(tmp_path / "train" / "a" / "0.png")
    Image.fromarray(np.zeros((8, 9), np.uint16)).save(tmp_path / "train" / "b" / "1.png")
    (tmp_path / "train" / "b" / "2.png").write_text("broken")
    picture(0).save(tmp_path / "test" / "3.png")
    table = scan(tmp_path)
    content = (tmp_path / "train" / "a" / "0.png").read_bytes()
    first, second, third = table.drop_columns(["mtime", "ctime", "inode", *TYPES]).to_pylist()
    assert first == {
        "ref": b"train/a/0.png",
        "place": -1,
        "name": "train/a/0.png",
        "split": "train",
        "label": 0,
        "height": 20,
        "width": 30,
        "bands": 1,
        "bits": 8,
        "pages": 1,
        "size": len(content),
        "passing": False,
        "bytes": len(content),
        "digest": digest(content),
        "problem": None,
    }
    assert (
        second["height"],
        second["width"],
        second["bands"],
        second["bits"],
        second["label"],
    ) == (8, 9, 1, 16, 1)
    assert third["problem"] == "not an image of a known format" and third["height"] is None
    assert len(scan(tmp_path, "all")) == 4 and not decodes
    assert scan([Image.new("L", (8, 8))]) is None


def test_arrays_have_a_table_without_digests(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=np.zeros((3, 8, 9), np.uint8), x_test=np.ones((2, 8, 9)))
    table = scan(tmp_path / "a.npz", "all").drop_columns(["digest", "problem", "place"])
    sizes = {"height": 8, "width": 9, "bands": 1, "pages": 1, "label": None}
    assert table.to_pylist() == [
        {"name": f"{split}/{number:06d}", "split": split, "bits": bits, **sizes}
        for split, count, bits in (("train", 3, 8), ("test", 2, 16))
        for number in range(count)
    ]
    assert scan("digits").num_rows == 1797 and set(scan("digits", "test")["split"].to_pylist()) == {
        "test"
    }
    assert scan(np.zeros((3, 8, 9), np.uint8))["name"].to_pylist() == ["000000", "000001", "000002"]


def test_large_files_are_hashed_where_a_digest_is_asked_for(tmp_path, looked, monkeypatch, bars):
    hashed, real = [], headers.digest_of_file
    monkeypatch.setattr(
        headers, "digest_of_file", lambda path: hashed.append(os.path.basename(path)) or real(path)
    )
    for number in range(3):
        picture(number, size=200 if number else 20).save(tmp_path / f"{number}.bmp")
    table = scan(tmp_path, digests=False)
    assert table["height"].to_pylist() == [20, 200, 200] and not hashed
    assert table["digest"].is_null().to_pylist() == [False, True, True]
    expected = [digest((tmp_path / f"{number}.bmp").read_bytes()) for number in range(3)]
    assert scan(tmp_path)["digest"].to_pylist() == expected
    assert hashed == ["1.bmp", "2.bmp"] and ("hashing images", 2, 2) in bars
    images = open_images(tmp_path)  # they are saved, as what headers say is
    assert images.digests == expected and len(hashed) == 2 and len(looked) == 3
    assert len(open_images(tmp_path, few=2)) == 2 and len(hashed) == 2


@pytest.mark.parametrize("orientation", range(1, 9))
def test_width_and_height_are_those_of_the_image_as_it_is_shown(tmp_path, orientation):
    image, exif = picture(0).resize((12, 8)), Image.Exif()
    exif[0x0112] = orientation
    wide = Image.fromarray(np.arange(96, dtype=np.uint16).reshape(8, 12))
    wide.save(tmp_path / "wide.tiff", exif=exif.tobytes())
    wide.save(tmp_path / "wide.png", exif=exif.tobytes())
    for ending in ("jpg", "png", "webp", "tiff", "avif"):
        if f".{ending}" in Image.registered_extensions():
            image.save(tmp_path / f"a.{ending}", exif=exif.tobytes())
    notes = b"\0" * 6 + bytes(range(9))  # damaged ones
    image.save(tmp_path / "damaged.jpg", exif=b"Exif\0\0" + notes)
    images = open_images(tmp_path)
    table = images.table.to_pylist()
    assert len(table) >= 7 and not images.skipped
    for row in table:
        turned = orientation > 4 and row["name"] != "damaged.jpg"
        assert (row["width"], row["height"]) == ((8, 12) if turned else (12, 8)), row["name"]
        size = look(str(tmp_path / row["name"])).read().shape[:0:-1]
        assert size == (row["width"], row["height"]), row["name"]


def test_a_file_is_looked_at_once_until_it_changes(folder, looked):
    before = scan(folder)
    assert len(looked) == 6 and scan(folder) == before and len(looked) == 6
    path = folder / "cats" / "1.bmp"
    times = os.stat(path)
    with path.open("r+b") as file:  # in the middle, of the same size
        file.seek(200)
        file.write(b"changed")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = scan(folder)
    assert (
        looked[6:] == ["1.bmp"] and difference(before, after) == "1 image changed: first cats/1.bmp"
    )
    (folder / "cats" / "0.bmp").touch()
    (folder / "dogs" / "3.bmp").unlink()
    picture(9).save(folder / "dogs" / "9.bmp")
    table = scan(folder)
    assert sorted(looked[7:]) == ["0.bmp", "9.bmp"] and len(table) == 6
    assert table.filter(pyarrow.compute.not_equal(table["name"], "dogs/9.bmp"))[
        "digest"
    ].to_pylist() == [
        digest
        for digest, name in zip(after["digest"].to_pylist(), after["name"].to_pylist(), strict=True)
        if "3" not in name
    ]


def test_what_has_just_changed_is_looked_at_the_next_time_too(folder, looked, monkeypatch):
    monkeypatch.setattr(headers, "SETTLED", 2 * 10**9)
    scan(folder)
    scan(folder)
    assert len(looked) == 12


@pytest.mark.parametrize("wrong", ["damaged", "of other columns", "a folder", "unwritable"])
def test_without_a_kept_table_all_files_are_looked_at(wrong, folder, looked):
    first = scan(folder)
    [kept] = cache_folder().glob("*.arrow")
    if wrong == "damaged":
        kept.write_bytes(kept.read_bytes()[:100])
    elif wrong == "of other columns":
        pyarrow.feather.write_feather(pyarrow.table({"name": ["x"]}), kept)
    else:
        shutil.rmtree(kept.parent)
        kept.parent.write_text("in the way") if wrong == "unwritable" else kept.mkdir(parents=True)
    assert scan(folder) == first and len(looked) == 12


def swap(folder):
    first, second = folder / "cats/0.bmp", folder / "cats/1.bmp"
    bytes_of_one = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(bytes_of_one)


def several(folder):
    shutil.move(folder / "cats/1.bmp", folder / "dogs/x.bmp")
    picture(9).save(folder / "cats/0.bmp")


CHANGES = {
    "1 image added: first cats/9.bmp": lambda f: picture(9).save(f / "cats/9.bmp"),
    "1 image removed: first cats/1.bmp": lambda f: (f / "cats/1.bmp").unlink(),
    "1 image changed: first dogs/4.bmp": lambda f: picture(9).save(f / "dogs/4.bmp"),
    "2 images changed: first cats/0.bmp": swap,
    "1 image added, 1 removed, 1 changed: first cats/0.bmp": several,
}


@pytest.mark.parametrize("says", CHANGES)
def test_a_change_is_one_line(says, folder):
    before = scan(folder)
    CHANGES[says](folder)
    assert difference(before, scan(folder)) == says


def test_what_is_no_image_and_what_is_a_copy_changes_nothing(folder, tmp_path):
    before = scan(folder)
    (folder / "notes.txt").write_text("mine")
    (folder / "cats/0.bmp").touch()
    copy = shutil.copytree(folder, tmp_path / "elsewhere", copy_function=shutil.copyfile)
    assert difference(before, scan(folder)) == difference(before, scan(copy)) == ""
    save_table(before, tmp_path / "data.arrow")
    assert load_table(tmp_path / "data.arrow") == before


def offsets_gone_astray(column):
    """A column of two texts, of which the first ends far outside."""
    buffers = [None, np.array([0, 2**30, 2], np.int32), np.frombuffer(b"ab", np.uint8)]
    wrong = pyarrow.Array.from_buffers(
        pyarrow.string(),
        2,
        [buffer if buffer is None else pyarrow.py_buffer(buffer) for buffer in buffers],
    )
    return pyarrow.table({"name": ["a", "b"], "digest": ["a", "b"], column: wrong})


DAMAGED = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_bytes(b'{"half'),
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "numbers": lambda path: save_table(pyarrow.table({"name": [1], "digest": ["a"]}), path),
    "foreign": lambda path: save_table(pyarrow.table({"a": ["x"]}), path),
    "nameless": lambda path: save_table(
        pyarrow.table({"name": ["a", None], "digest": ["a", "b"]}), path
    ),
    "names astray": lambda path: save_table(offsets_gone_astray("name"), path),
    "digests astray": lambda path: save_table(offsets_gone_astray("digest"), path),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_table_is_one_line(tmp_path, damage):
    path = tmp_path / "data.arrow"
    DAMAGED[damage](path)
    with pytest.raises(ValueError, match=r"data\.arrow .*remove it"):
        load_table(path)


def test_one_image_in_a_tar_or_table_is_noticed(tmp_path):
    for other in ([0, 1, 2, 3, 4], [0, 1, 9, 3, 4]):
        contents = [encoded(picture(number), "bmp") for number in other]
        tar(
            tmp_path / "0.tar",
            [(f"{place}.bmp", content) for place, content in enumerate(contents)],
        )
        cells = [{"bytes": content, "path": None} for content in contents]
        rows = Table.from_dict({"image": cells})
        rows.to_parquet(tmp_path / "a.parquet")
        tables = [scan(tmp_path / "0.tar"), scan(tmp_path / "a.parquet"), scan(rows)]
        if other == [0, 1, 2, 3, 4]:
            before = tables
    assert [difference(*both) for both in zip(before, tables, strict=True)] == [
        "1 image changed: first 0/2",
        "1 image changed: first 000002",
        "1 image changed: first 000002",
    ]
    assert scan(tmp_path / "0.tar")["bytes"].to_pylist() == [len(contents[0])] * 5


def test_arrays_and_objects_are_known_by_their_pixels(tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (40, 4, 4), dtype=np.uint8)
    before = open_images(array).table
    assert (
        difference(before, open_images((array.copy(), np.zeros(40, int))).table) == ""
    )  # labels are not trained on
    other = array.copy()
    other[30, 2, 2] ^= 1
    assert difference(before, open_images(other).table) == "1 image changed: first 000030"
    assert difference(before, open_images(array[:-1]).table) == "1 image removed: first 000039"
    np.savez(tmp_path / "a.npz", images=array, labels=np.arange(40))
    assert difference(before, open_images(tmp_path / "a.npz").table) == ""
    pictures = [picture(number) for number in range(5)]
    saved = open_images(pictures).table
    assert difference(saved, open_images(list(pictures)).table) == ""
    assert difference(saved, open_images(pictures[::-1]).table) == "4 images changed: first 000000"


def test_a_damaged_table_takes_no_memory_that_its_bytes_ask_for(tmp_path):
    """Lengths in the file are 8 bytes anywhere, and none is believed beyond the file itself."""
    path = tmp_path / "data.arrow"
    names = [f"a long name of an image, number {number}" for number in range(40)]
    save_table(pyarrow.table({"name": names, "digest": names}), path)
    whole = path.read_bytes()
    assert whole.count(names[-1].encode()) == 2  # as they are, not compressed
    pyarrow.default_memory_pool().release_unused()
    most = pyarrow.default_memory_pool().max_memory() + 2**24
    for place in range(0, len(whole) - 8, 5):
        path.write_bytes(whole[:place] + b"\xff\xff\xff\x01" + whole[place + 4 :])
        with suppress(ValueError):
            load_table(path)
    assert pyarrow.default_memory_pool().max_memory() <= most
