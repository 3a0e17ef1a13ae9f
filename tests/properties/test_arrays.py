"""Arrays, with their channels first or last and however they lie in memory, have the pixels of the
same pictures as files.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nearfar.data import open_images
from tests.pictures import encoded
from tests.properties.given import folder_of

SIDES = st.integers(5, 20)
PICTURES = st.tuples(st.integers(1, 3), SIDES, SIDES, st.sampled_from([1, 3])).flatmap(
    lambda shape: arrays.arrays(np.uint8, shape)
)
LAYOUTS = {
    "last": lambda pictures: pictures,
    "first": lambda pictures: np.ascontiguousarray(pictures.transpose(0, 3, 1, 2)),
    "first, as a view": lambda pictures: pictures.transpose(0, 3, 1, 2),
    "last, in the order of Fortran": np.asfortranarray,
    "last, turned around": lambda pictures: pictures[..., ::-1, :].copy()[..., ::-1, :],
    "whole numbers": lambda pictures: pictures.astype(">i8"),
}


def saved(folder, array, form):
    """The array in a form in which people give it."""
    if form == "tensor":
        native = array.astype(array.dtype.newbyteorder("="))
        return torch.from_numpy(np.ascontiguousarray(native))
    if form == "array":
        return array
    path = Path(folder, f"a.{form}")
    np.save(path, array) if form == "npy" else np.savez(path, images=array)
    return path


@given(
    PICTURES,
    st.sampled_from(sorted(LAYOUTS)),
    st.sampled_from(["array", "tensor", "npy", "npz"]),
    st.booleans(),
)
def test_arrays_have_the_pixels_of_the_same_pictures_as_files(pictures, layout, form, without_axis):
    array = LAYOUTS[layout](pictures)
    if pictures.shape[-1] == 1 and without_axis:
        array = array[:, 0] if "first" in layout else array[..., 0]
    channels, side = pictures.shape[-1], min(pictures.shape[1:3])
    gray = channels == 1
    files = {
        f"{n}.png": encoded(picture[..., 0] if gray else picture)
        for n, picture in enumerate(pictures)
    }
    with folder_of(files) as folder, tempfile.TemporaryDirectory() as other:
        of_files = open_images(folder, image_size=side)
        of_array = open_images(saved(other, array, form), image_size=side)
        assert of_array.channels == of_files.channels == channels
        assert np.array_equal(of_array.pixels.numpy(), of_files.pixels.numpy())
