"""A folder changes between commands; each command finds what it would find with an empty cache."""

import contextlib
import io
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import nearfar
from nearfar.data import open_images
from tests.pictures import encoded
from tests.properties.given import FEW, numbered_png
from tests.properties.test_tars import tar

HOUR = 3600 * 10**9
NAMES = st.sampled_from(["a.png", "b.png", "c.png", "cat/a.png", "cat/b.png", "dog/a.png"])
PICTURES = st.integers(0, 5)
BROKEN = st.sampled_from([b"", b"no image", numbered_png(1)[:40]])


def answers(folder):
    """The answers of commands on a folder, in plain values."""
    images = nearfar.embed(folder)
    copies = nearfar.duplicates(folder)
    return {
        "names": images.images.names,
        "labels": None if images.images.labels is None else images.images.labels.tolist(),
        "left out": sorted(images.images.skipped),
        "features": images.features,
        "pairs": (list(copies["name"]), list(copies["group"]), list(copies["kind"])),
    }


@contextlib.contextmanager
def an_hour_later():
    """As if files had been written an hour ago: those of the last two seconds are read anew."""
    now = time.time_ns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: now() + HOUR)
        yield


class Folder(RuleBasedStateMachine):
    """Images are added, replaced, damaged, renamed and removed, while a cache lasts."""

    @initialize()
    def begin(self):
        self.top = Path(tempfile.mkdtemp())
        self.photos = self.top / "photos"
        self.photos.mkdir()
        for number in range(3):
            (self.photos / f"first{number}.png").write_bytes(numbered_png(10 + number, 16))

    @rule(name=NAMES, picture=PICTURES)
    def write(self, name, picture):
        path = self.photos / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(numbered_png(picture, 16))

    @rule(name=NAMES, content=BROKEN)
    def damage(self, name, content):
        if (self.photos / name).exists():
            (self.photos / name).write_bytes(content)

    @rule(name=NAMES)
    def remove(self, name):
        (self.photos / name).unlink(missing_ok=True)

    @rule(name=NAMES, other=NAMES)
    def rename(self, name, other):
        if (self.photos / name).exists():
            (self.photos / other).parent.mkdir(exist_ok=True)
            (self.photos / name).replace(self.photos / other)

    @rule(name=NAMES, picture=PICTURES)
    def write_with_the_time_of_before(self, name, picture):
        """As a restored backup has it."""
        path = self.photos / name
        if path.exists():
            times = path.stat()
            path.write_bytes(numbered_png(picture, 16))
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    @invariant()
    def commands_find_what_they_would_with_an_empty_cache(self):
        with pytest.MonkeyPatch.context() as patch, an_hour_later():
            patch.chdir(self.top)  # where pages are written
            patch.setenv("XDG_CACHE_HOME", str(self.top / "lasting"))
            now = answers(self.photos)
            fresh = tempfile.mkdtemp(dir=self.top)
            patch.setenv("XDG_CACHE_HOME", fresh)
            anew = answers(self.photos)
            shutil.rmtree(fresh)
        assert torch.allclose(now.pop("features"), anew.pop("features"), atol=1e-5)
        assert now == anew

    def teardown(self):
        shutil.rmtree(self.top)


TestFolder = Folder.TestCase
if settings.default.derandomize:  # few in the suite: each step runs four commands
    TestFolder.settings = settings(max_examples=3)


def bmps(pictures):
    return {f"{n:04d}.bmp": encoded(picture, "BMP") for n, picture in enumerate(pictures)}


def in_parquet(pictures):
    file = io.BytesIO()
    cells = [{"bytes": content, "path": None} for content in bmps(pictures).values()]
    pq.write_table(pa.table({"image": cells}), file, compression="none", use_dictionary=False)
    return {"all.parquet": file.getvalue()}


def in_array(pictures, name):
    file = io.BytesIO()
    np.save(file, pictures) if name.endswith("y") else np.savez(file, images=pictures)
    return {name: file.getvalue()}


STORED = {  # pictures in files of one size, whatever they show
    "folder of BMP": bmps,
    "folder of TIFF": lambda pictures: {
        f"{n:04d}.tif": encoded(picture, "TIFF") for n, picture in enumerate(pictures)
    },
    "tar": lambda pictures: {"all.tar": tar(bmps(pictures).items())},
    "Parquet": in_parquet,
    ".npy": lambda pictures: in_array(pictures, "all.npy"),
    ".npz": lambda pictures: in_array(pictures, "all.npz"),
}
SIDE = 160  # a picture takes more than the 64 KiB that are hashed at first


def write(folder, files):
    """Write files over those of before, and give them the times of before."""
    for name, content in files.items():
        path = folder / name
        times = path.stat() if path.exists() else None
        if times is not None and path.read_bytes() == content:
            continue
        with path.open("r+b" if times else "wb") as file:
            file.write(content)
        if times is not None:
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@FEW
@given(
    st.sampled_from(sorted(STORED)),
    st.integers(0, 2),
    st.tuples(st.integers(0, SIDE - 1), st.integers(0, SIDE - 1), st.integers(0, 2)),
    st.integers(1, 255),
)
def test_a_change_anywhere_in_a_file_is_seen(form, number, where, by):
    """Of one byte, and the file has its size and times of before."""
    drawn = np.random.default_rng(0)
    pictures = drawn.integers(0, 256, (3, SIDE, SIDE, 3), dtype=np.uint8)
    changed = pictures.copy()
    changed[number][where] ^= np.uint8(by)
    with tempfile.TemporaryDirectory() as made, an_hour_later():
        folder = Path(made)
        for each in (pictures, changed):
            write(folder, STORED[form](each))
            [*arrays] = folder.glob("all.np?")
            images = open_images(arrays[0] if arrays else folder, image_size=SIDE)
            assert np.array_equal(images.pixels.numpy(), each.transpose(0, 3, 1, 2))


@FEW
@given(st.permutations(range(4)), st.integers(1, 3))
def test_class_folders_that_change_places_are_seen(order, in_each):
    """Their files have equal sizes and times, and were made within a step of the clock."""
    with tempfile.TemporaryDirectory() as made, an_hour_later():
        folder = Path(made)
        for n in range(4):
            (folder / f"class {n}").mkdir()
            for k in range(in_each):
                picture = np.full((8, 8, 3), 10 * n + k, np.uint8)
                (folder / f"class {n}" / f"{k}.bmp").write_bytes(encoded(picture, "BMP"))
        for path in folder.glob("*/*"):
            os.utime(path, ns=(HOUR, HOUR))
        assert len(open_images(folder)) == 4 * in_each
        for n in range(4):
            (folder / f"class {n}").rename(folder / f"was {n}")
        for n, place in enumerate(order):
            (folder / f"was {n}").rename(folder / f"class {place}")
        images = open_images(folder)
        expected = [10 * order.index(place) + k for place in range(4) for k in range(in_each)]
        assert images.pixels[:, 0, 0, 0].tolist() == expected
        assert images.label_names == [f"class {n}" for n in range(4) for _ in range(in_each)]
