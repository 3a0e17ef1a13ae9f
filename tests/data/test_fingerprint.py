"""A fingerprint tells data that has changed from a copy of the same data, without decoding any."""

import io
import shutil
import tarfile

import numpy as np
import pytest
from datasets import Dataset as Table
from PIL import Image

from nearfar.data import Fingerprint, fingerprint_of, fingerprint_of_images, list_splits, open_images
from nearfar.data.fingerprint import CHUNK

RNG = np.random.default_rng(0)


def picture(number):
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (10, 10, 3), dtype=np.uint8))


def encoded(image):
    file = io.BytesIO()
    image.save(file, "bmp")
    return file.getvalue()


@pytest.fixture
def folder(tmp_path):
    for number in range(6):
        place = tmp_path / "data" / ("cats" if number < 3 else "dogs")
        place.mkdir(parents=True, exist_ok=True)
        picture(number).save(place / f"{number}.bmp")  # all of one size in bytes
    return tmp_path / "data"


def changed_by(folder, change):
    before = fingerprint_of(str(folder))
    change(folder)
    return before.difference(fingerprint_of(str(folder)))


def swap(folder):
    one, two = folder / "cats/0.bmp", folder / "cats/1.bmp"
    bytes_of_one = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(bytes_of_one)


CHANGES = {
    "1 file added: first cats/9.bmp": lambda f: picture(9).save(f / "cats/9.bmp"),
    "1 file removed: first cats/1.bmp": lambda f: (f / "cats/1.bmp").unlink(),
    "1 file changed: first dogs/4.bmp": lambda f: picture(9).save(f / "dogs/4.bmp"),
    "2 files changed: first cats/0.bmp": swap,
}


@pytest.mark.parametrize("says", CHANGES)
def test_a_change_is_told_in_one_line(says, folder):
    assert changed_by(folder, CHANGES[says]) == says


def black(path, start, count):
    """Paint bytes of a file black, where they are far from both ends."""
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(count))


def test_a_change_far_from_both_ends_is_noticed(tmp_path):
    for ending in ("bmp", "tif"):
        place = tmp_path / ending
        place.mkdir()
        for number in range(2):
            pixels = np.random.default_rng(number).integers(0, 256, (90, 90, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f"{number}.{ending}")
        says = changed_by(place, lambda f, ending=ending: black(f / f"1.{ending}", 9000, 6000))
        assert says == f"1 file changed: first 1.{ending}"


def test_one_image_in_a_large_tar_is_noticed(tmp_path):
    (tmp_path / "data").mkdir()
    with tarfile.open(tmp_path / "data/0.tar", "w") as tar:
        for number in range(15):
            content = np.random.default_rng(number).bytes(2**20)
            member = tarfile.TarInfo(f"{number}.jpg")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    says = changed_by(tmp_path / "data", lambda f: black(f / "0.tar", 7 * 2**20 + 300_000, 100))
    assert says == "1 file changed: first 0.tar"


def test_labels_of_an_array_file_do_not_count(tmp_path):
    path = tmp_path / "all.npz"
    images, labels = RNG.integers(0, 256, (6, 8, 8), dtype=np.uint8), np.arange(6)
    np.savez(path, images=images, labels=labels)
    before = fingerprint_of(str(path))
    np.savez(path, images=images, labels=labels[::-1], notes=labels)
    assert before.difference(fingerprint_of(str(path))) == ""
    images[3, 4, 4] ^= 1
    np.savez_compressed(path, images=images, labels=labels)
    assert before.difference(fingerprint_of(str(path))) == "1 file changed: first all.npz: images"


def test_splits_of_an_array_file_count_alone(tmp_path):
    path, images = tmp_path / "all.npz", RNG.integers(0, 256, (6, 8, 8), dtype=np.uint8)
    np.savez(path, x_train=images, x_test=images)
    before = fingerprint_of(str(path), "train")
    np.savez(path, x_train=images, x_test=images[:5])
    assert before.difference(fingerprint_of(str(path), "train")) == ""
    assert before.difference(fingerprint_of(str(path), "test")) != ""


def test_several_changes_are_counted(folder):
    def change(f):
        shutil.move(f / "cats/1.bmp", f / "dogs/x.bmp")
        picture(9).save(f / "cats/0.bmp")

    assert changed_by(folder, change) == "1 file added, 1 removed, 1 changed: first cats/0.bmp"


def test_what_is_no_image_and_what_is_a_copy_changes_nothing(folder, tmp_path):
    before = fingerprint_of(str(folder))
    (folder / "notes.txt").write_text("mine")
    (folder / "cats/0.bmp").touch()
    copy = shutil.copytree(folder, tmp_path / "elsewhere", copy_function=shutil.copyfile)
    assert before.difference(fingerprint_of(str(folder))) == before.difference(fingerprint_of(str(copy))) == ""
    before.save(tmp_path / "kept.json")
    assert Fingerprint.load(tmp_path / "kept.json") == before


def test_a_damaged_file_is_one_line(tmp_path):
    (tmp_path / "kept.json").write_text('{"kind": "file"')
    with pytest.raises(ValueError, match=r"kept\.json .*remove it"):
        Fingerprint.load(tmp_path / "kept.json")
    (tmp_path / "kept.json").write_text('{"kind": "file", "count": 0, "marks": {}}')
    with pytest.raises(ValueError, match=r"kept\.json is from another version of nearfar; remove it"):
        Fingerprint.load(tmp_path / "kept.json")


def test_every_image_of_an_array_counts(tmp_path):
    array = RNG.integers(0, 256, (CHUNK + 40, 4, 4), dtype=np.uint8)
    before = fingerprint_of(array)
    assert before.difference(fingerprint_of((array.copy(), np.zeros(len(array))))) == ""  # labels are not trained on
    other = array.copy()
    other[CHUNK + 30, 2, 2] ^= 1
    assert before.difference(fingerprint_of(other)) == f"images changed: first among {CHUNK} to {CHUNK + 39}"
    assert before.difference(fingerprint_of(array[::-1])) == "images changed: first among 0 to 255"
    assert before.difference(fingerprint_of(array[:-1])) == f"{CHUNK + 40} images before, {CHUNK + 39} images now"
    assert before.difference(fingerprint_of(array.astype(np.int64))) != ""
    np.save(tmp_path / "a.npy", array)
    saved = fingerprint_of(str(tmp_path / "a.npy"))
    np.save(tmp_path / "a.npy", other)
    assert saved.difference(fingerprint_of(str(tmp_path / "a.npy"))) == "1 file changed: first a.npy"


def test_the_rows_of_a_table_count(tmp_path):
    def table(numbers):
        return Table.from_dict({"image": [picture(number) for number in numbers], "label": [0] * len(numbers)})

    def painted(number):
        image = picture(number)
        image.putpixel((5, 5), (0, 0, 0))
        return image

    before = fingerprint_of(table(range(5)))
    assert before.difference(fingerprint_of(table(range(5)))) == ""
    raw = [{"bytes": encoded(picture(0)), "path": None}], [{"bytes": encoded(painted(0)), "path": None}]
    one, other = (fingerprint_of(Table.from_dict({"image": image})) for image in raw)
    assert one.difference(other) == "rows changed: first among 0 to 0"  # of the same length, with the same end
    assert before.difference(fingerprint_of(table([0, 1, 3, 2, 4]))) == "rows changed: first among 0 to 4"
    assert before.difference(fingerprint_of(table(range(4)))) == "5 rows before, 4 rows now"
    table(range(5)).to_parquet(tmp_path / "train-0.parquet")
    saved = fingerprint_of(str(tmp_path))
    table([0, 1, 3, 2, 4]).to_parquet(tmp_path / "train-0.parquet")
    assert saved.difference(fingerprint_of(str(tmp_path))) == "1 file changed: first train-0.parquet"


def test_rows_that_name_files_count_by_the_files(folder):
    paths = sorted(str(path) for path in folder.rglob("*.bmp"))

    def table():
        from datasets import Features
        from datasets import Image as Column

        return Table.from_dict({"image": paths}, features=Features({"image": Column()}))

    before = fingerprint_of(table())
    assert before.difference(fingerprint_of(table())) == ""
    picture(9).save(paths[3])
    assert before.difference(fingerprint_of(table())) == "rows changed: first among 0 to 5"


def test_objects_that_must_be_read_are_known_by_their_pixels():
    pictures = [picture(number) for number in range(5)]
    assert fingerprint_of(pictures) is None
    before = fingerprint_of_images(open_images(pictures))
    assert before.difference(fingerprint_of_images(open_images(list(pictures)))) == ""
    assert before.difference(fingerprint_of_images(open_images(pictures[::-1]))) == "images changed: first among 0 to 4"


def test_a_split_counts_alone(tmp_path):
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        picture(1).save(tmp_path / split / "1.png")
    assert list_splits(str(tmp_path)) == ["train", "test"]
    before = fingerprint_of(str(tmp_path), "train")
    picture(2).save(tmp_path / "test/2.png")
    assert before.difference(fingerprint_of(str(tmp_path), "train")) == ""


def test_the_folder_of_a_run_is_not_data(folder, caplog):
    inner = folder / "cats" / "run"
    inner.mkdir()
    before = open_images(str(folder)).names
    for name in ("config.yaml", "environment.json"):
        (inner / name).write_text("{}")
    picture(9).save(inner / "map.png")
    with caplog.at_level("INFO", "nearfar"):
        assert open_images(str(folder)).names == before
    assert [record.getMessage() for record in caplog.records] == [
        f"'{inner}' is the folder of a run, not of images: left out"
    ]
