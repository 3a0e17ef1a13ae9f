"""Errors of the machine: an image that could not be read once is read the next time."""

import builtins
import errno
import tempfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile

from nearfar.data import open_images
from tests.pictures import encoded
from tests.properties.given import FEW, folder_of
from tests.properties.test_changing_folder import an_hour_later

NUMBERS = ("EMFILE", "ENFILE", "EIO", "ENOMEM", "ESTALE", "ETIMEDOUT", "EACCES", "EINTR")
ERRORS = st.one_of(
    st.sampled_from(NUMBERS).map(lambda name: OSError(getattr(errno, name), name)),
    st.just(MemoryError()),
    st.just(ImportError("No module named 'pillow_heif'")),
    st.just(OSError("out of memory error when reading image file")),  # as Pillow has it
)
PLACES = {  # of Python and Pillow, through which every picture comes
    "open": (builtins, "open"),
    "header": (Image, "open"),
    "pixels": (ImageFile.ImageFile, "load"),
}


class Failing:
    """A function that raises an error for one picture, by its path or its content."""

    def __init__(self, real, error, path, content):
        self.real, self.error, self.path, self.content = real, error, str(path), content

    def concerns(self, given):
        if isinstance(given, ImageFile.ImageFile):
            return given.size == (9, 9)  # as no other
        if hasattr(given, "getbuffer"):
            return bytes(given.getbuffer()) == self.content
        return str(given) == self.path

    def __call__(self, given, *args, **options):
        if self.concerns(given):
            raise self.error
        return self.real(given, *args, **options)


@FEW
@given(ERRORS, st.sampled_from(sorted(PLACES)), st.sampled_from(["PNG", "BMP"]), st.integers(1, 3))
def test_an_error_of_the_machine_is_never_stored_as_damage(error, place, form, times):
    drawn = np.random.default_rng(0)
    pictures = [drawn.integers(0, 256, (side, side, 3), dtype=np.uint8) for side in (8, 9, 8, 8)]
    files = {f"{n}.{form.lower()}": encoded(picture, form) for n, picture in enumerate(pictures)}
    bad = list(files)[1]
    owner, name = PLACES[place]
    with (
        folder_of(files) as folder,
        tempfile.TemporaryDirectory() as cache,
        an_hour_later(),
    ):
        failing = Failing(getattr(owner, name), error, folder / bad, files[bad])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, lambda *args, **options: failing(*args, **options))
            for _ in range(times):
                images = open_images(folder, image_size=8, cache_dir=cache)
                assert len(images) == 3 and [file for file, _ in images.skipped] == [bad]
        images = open_images(folder, image_size=8, cache_dir=cache)
        assert len(images) == 4 and images.skipped == []
        fresh = open_images(folder, image_size=8, cache_dir=f"{cache}/fresh")
        assert torch.equal(images.pixels, fresh.pixels)
