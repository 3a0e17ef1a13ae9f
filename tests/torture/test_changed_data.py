"""Ways in which data changes between the stop of a run and its going on: each is refused in one
line.

And those that change nothing that is trained on, which are not.
"""

import os
import shutil

import numpy as np
import pytest
from datasets import Dataset as Table
from PIL import Image

import nearfar
from nearfar.training import loop
from tests.pictures import encoded, noise, tar
from tests.steps import at_step

COUNT = 24
SETTINGS = dict(
    epochs=2,
    batch_size=8,
    held_out=4,
    encoder="small",
    log_every=1,
    precision="32-true",
    image_size=8,
)


def save(path, number, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(number, 12)).save(path, **options)


def swap(first, second):
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def as_folder(place):
    for number in range(COUNT):
        save(place / ("ab"[number % 2]) / f"{number:02d}.bmp", number)


def as_tar(place, numbers=range(COUNT)):
    place.mkdir(exist_ok=True)
    members = [
        (f"{name:04d}.bmp", encoded(noise(number, 12), "bmp"))
        for name, number in enumerate(numbers)
    ]
    tar(place / "train-0.tar", members)


def as_parquet(place, numbers=range(COUNT)):
    place.mkdir(exist_ok=True)
    table = Table.from_dict(
        {
            "image": [
                {"bytes": encoded(noise(number, 12), "bmp"), "path": None} for number in numbers
            ]
        }
    )
    table.to_parquet(place / "train-0.parquet")


def black(path, start, count):
    """Paint bytes of a file black."""
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(count))


def as_tiff(place):
    for number in range(COUNT):
        place.mkdir(exist_ok=True)
        large = np.random.default_rng(number).integers(0, 256, (90, 90, 3), dtype=np.uint8)
        Image.fromarray(large).save(place / f"{number:02d}.tif")


def as_npz(place, numbers=range(COUNT), labels=range(COUNT)):
    place.mkdir(exist_ok=True)
    np.savez(
        place / "all.npz",
        images=np.stack([noise(number, 12) for number in numbers]),
        labels=np.array(labels),
    )


def as_npy(place, numbers=range(COUNT)):
    place.mkdir(exist_ok=True)
    np.save(place / "all.npy", np.stack([noise(number, 12) for number in numbers]))


def one_other(number=17):
    return [99 if n == number else n for n in range(COUNT)]


def swapped():
    return [1, 0, *range(2, COUNT)]


FOLDER = {  # what happens, and what the line says of it
    "a file added": (lambda f: save(f / "a/99.bmp", 99), "1 image added: first a/99.bmp"),
    "a file removed": (lambda f: (f / "b/01.bmp").unlink(), "1 image removed: first b/01.bmp"),
    "a file renamed": (
        lambda f: (f / "a/00.bmp").rename(f / "a/zz.bmp"),
        "1 image added, 1 removed: first a/00.bmp",
    ),
    "two files swapped": (
        lambda f: swap(f / "a/00.bmp", f / "b/01.bmp"),
        "2 images changed: first a/00.bmp",
    ),
    "the same size and time": (
        lambda f: (
            before := (f / "a/04.bmp").stat(),
            save(f / "a/04.bmp", 99),
            os.utime(f / "a/04.bmp", ns=(before.st_atime_ns, before.st_mtime_ns)),
        ),
        "1 image changed: first a/04.bmp",
    ),
    "a file cut off": (
        lambda f: os.truncate(f / "a/00.bmp", 100),
        "1 image changed: first a/00.bmp",
    ),
}
OTHERS = {
    "a member of a tar changed": (
        as_tar,
        lambda f: as_tar(f, one_other()),
        "1 image changed: first train/train-0/0017",
    ),
    "rows of a table swapped": (
        as_parquet,
        lambda f: as_parquet(f, swapped()),
        "2 images changed: first train/000000",
    ),
    "an array's image changed": (
        as_npy,
        lambda f: as_npy(f, one_other()),
        "1 image changed: first 000017",
    ),
    "the middle of an image": (
        as_tiff,
        lambda f: black(f / "07.tif", 9000, 9000),
        "1 image changed: first 07.tif",
    ),
    "an image of an .npz": (
        as_npz,
        lambda f: as_npz(f, one_other()),
        "1 image changed: first 000017",
    ),
    "an array cut": (as_npy, lambda f: as_npy(f, range(20)), "4 images removed: first 000020"),
}
CHANGES = {name: (as_folder, *change) for name, change in FOLDER.items()} | OTHERS
SAME = {
    "touched": lambda f: [path.touch() for path in f.glob("*/*")],
    "copied": lambda f: (
        shutil.copytree(f, f.parent / "c"),
        shutil.rmtree(f),
        (f.parent / "c").rename(f),
    ),
    "a text and a hidden image": lambda f: (
        (f / "a/notes.txt").write_text("mine"),
        save(f / ".trash/1.bmp", 9),
    ),
    "linked": lambda f: (f.rename(f.parent / "there"), f.symlink_to(f.parent / "there")),
}


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """Begin a run on data that is written by a function, and return the data's folder and the
    run's.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def die():
        raise MemoryError

    def begin(write, **options):
        write(tmp_path / "data")
        [*arrays] = (tmp_path / "data").glob("all.np?")
        data = arrays[0] if arrays else tmp_path / "data"
        with monkeypatch.context() as patch:
            patch.setattr(loop, "SAVE_SECONDS", 0.0)
            with at_step(3, do=die), pytest.raises(MemoryError):
                nearfar.pretrain(data, out=tmp_path / "run", **SETTINGS, **options)
        return tmp_path / "data", tmp_path / "run"

    return begin


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_refused_and_may_be_let_through(name, stopped):
    write, change, says = CHANGES[name]
    folder, run = stopped(write, method="simclr")
    change(folder)
    with pytest.raises(ValueError, match="data of this run has") as caught:
        nearfar.resume(run)
    assert f"({says}" in str(caught.value) and "\n" not in str(caught.value)
    assert not (run / "encoder.safetensors").exists()
    assert (nearfar.resume(run, data_changed=True).path / "encoder.safetensors").is_file()


@pytest.mark.parametrize("name", ["a file added", "the middle of an image"])
def test_numbers_of_images_are_never_mixed_up(name, stopped):
    write, change, _ = CHANGES[name]
    folder, run = stopped(write, method="sogclr")
    change(folder)
    for changed in (False, True):
        with pytest.raises(ValueError, match="keeps numbers for each image"):
            nearfar.resume(run, data_changed=changed)


@pytest.mark.parametrize("name", SAME)
def test_what_is_the_same_data_goes_on(name, stopped):
    folder, run = stopped(as_folder, method="sogclr")
    SAME[name](folder)
    assert (nearfar.resume(run).path / "encoder.safetensors").is_file()


def test_a_run_that_has_lost_its_table_says_that_nothing_is_compared(stopped, log):
    _, run = stopped(as_folder, method="simclr")
    (run / "data.arrow").unlink()
    resumed = nearfar.resume(run)
    line = f"there is no {run / 'data.arrow'}"
    assert line in log.text
    assert (resumed.path / "data.arrow").is_file()  # for the next time


def test_other_labels_are_the_same_data(stopped):
    folder, run = stopped(as_npz, method="sogclr")
    as_npz(folder, labels=range(COUNT, 0, -1))
    assert (nearfar.resume(run).path / "encoder.safetensors").is_file()
