"""A folder changes between commands; each command finds what it would find with an empty cache."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import nearfar
from tests.properties.given import numbered_png

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
        with pytest.MonkeyPatch.context() as patch:
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
