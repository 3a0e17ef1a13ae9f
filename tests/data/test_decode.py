"""Every image mode against values worked out by hand or by Pillow's own tools."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps, UnidentifiedImageError

from nearfar.data.decoding import decode, header
from nearfar.data.pictures import as_picture, suffixes
from nearfar.data.readers import look
from nearfar.data.value_range import PixelFormat
from tests.pictures import encoded


def corner(image, form="PNG", channels=3, **options):
    """The pixel [0, 0] after decoding at the image's own size."""
    return decode(encoded(image, form, **options), PixelFormat(image.size[0], channels))[
        :, 0, 0
    ].tolist()


@pytest.mark.parametrize(
    ("image", "form", "expected"),
    [
        (Image.new("RGB", (4, 4), (10, 20, 30)), "PNG", [10, 20, 30]),
        (Image.new("L", (4, 4), 77), "PNG", [77, 77, 77]),
        (Image.new("1", (4, 4), 1), "PNG", [255, 255, 255]),
        (Image.new("LA", (4, 4), (0, 0)), "PNG", [255, 255, 255]),
        (Image.new("LA", (4, 4), (100, 255)), "PNG", [100, 100, 100]),
        (Image.new("RGBA", (4, 4), (255, 0, 0, 0)), "PNG", [255, 255, 255]),
        (
            Image.new("RGBA", (4, 4), (255, 0, 0, 51)),
            "PNG",
            [255, 204, 204],
        ),  # a fifth of red over white
        (Image.new("CMYK", (4, 4), (0, 0, 0, 255)), "TIFF", [0, 0, 0]),
        (Image.new("CMYK", (4, 4), (255, 0, 0, 0)), "TIFF", [0, 255, 255]),
        (Image.new("CMYK", (8, 8), (255, 0, 0, 0)), "JPEG", [0, 255, 255]),
    ],
)
def test_modes_become_rgb(image, form, expected):
    assert corner(image, form) == expected


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_clipped(form):
    values = (np.arange(256, dtype=np.uint16) * 257).reshape(16, 16)
    image = decode(encoded(Image.fromarray(values), form), PixelFormat(16, 1))
    assert image.reshape(-1).tolist() == list(range(256))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0.0, 1.0], [0.2, 0.6]], np.float32), [0, 255, 51, 153]),
        (np.array([[0.0, 200.0], [3.0, 100.0]], np.float32), [0, 200, 3, 100]),
        (np.array([[-1.0, 4.0], [0.0, 1.0]], np.float32), [0, 255, 51, 102]),
        (np.array([[0, 255], [7, 9]], np.int32), [0, 255, 7, 9]),
        (np.array([[0, 65535], [257, 514]], np.int32), [0, 255, 1, 2]),
        (np.array([[0, 510_000], [2_000, 4_000]], np.int32), [0, 255, 1, 2]),
        (np.array([[2**30, 2**30 + 255], [2**30 + 1, 2**30 + 7]], np.int32), [0, 255, 1, 7]),
    ],
)
def test_wide_greys_follow_the_documented_ranges(values, expected):
    assert (
        decode(encoded(Image.fromarray(values), "TIFF"), PixelFormat(2, 1)).reshape(-1).tolist()
        == expected
    )


def test_grey_palette_counts_as_grey_and_colours_do_not():
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 90, 90, 90])
    assert header(encoded(image)).bands == 1
    image.putpalette([0, 0, 0, 90, 91, 90])
    assert header(encoded(image)).bands == 3


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP", "TIFF"])
def test_animations_give_their_first_frame(form):
    frames = [Image.new("RGB", (8, 8), (value, value, value)) for value in (40, 200)]
    options = {"lossless": True} if form == "WEBP" else {}
    assert corner(frames[0], form, save_all=True, append_images=frames[1:], **options) == [
        40,
        40,
        40,
    ]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_exif_orientation_is_applied_once(orientation, form):
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:16, :16], pixels[:16, 16:], pixels[16:, :16] = 250, 170, 90
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(pixels), form, exif=exif)
    upright = np.asarray(
        ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    ).transpose(2, 0, 1)
    np.testing.assert_allclose(
        decode(data, PixelFormat(32, 3)).astype(int), upright.astype(int), atol=1
    )


def test_resize_is_shorter_side_and_centre():
    pixels = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    square = image.crop((15, 0, 75, 60))
    expected = np.asarray(ImageOps.fit(square, (24, 24), Image.Resampling.BICUBIC)).transpose(
        2, 0, 1
    )
    decoded = decode(encoded(image), PixelFormat(24, 3))
    assert header(encoded(image))[:2] == (60, 90)
    np.testing.assert_allclose(decoded.astype(int), expected.astype(int), atol=1)


def test_large_jpegs_are_decoded_small_with_the_same_result():
    waves = 127 + 120 * np.sin(np.arange(1600) / 60)
    image = Image.fromarray(
        np.add.outer(waves, waves).astype(np.int64).clip(0, 255).astype(np.uint8)
    )
    data = encoded(image, "JPEG", quality=95)
    with as_picture(data, 128) as picture:
        assert picture.size == (200, 200)
    whole = np.asarray(image.resize((64, 64), Image.Resampling.BICUBIC)).astype(int)
    assert abs(decode(data, PixelFormat(64, 1))[0].astype(int) - whole).mean() < 1.5


def test_colour_to_grey_uses_the_luma_weights():
    assert corner(Image.new("RGB", (4, 4), (100, 200, 50)), channels=1) == [
        round(0.299 * 100 + 0.587 * 200 + 5.7)
    ]


def test_postscript_is_never_handed_to_ghostscript():
    with pytest.raises(UnidentifiedImageError):
        decode(
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n",
            PixelFormat(8, 3),
        )
    assert not suffixes() & {".eps", ".ps", ".pdf", ".wmf", ".h5"}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_a_turned_tiff_is_the_same_by_its_path_and_by_its_bytes(tmp_path, kind, orientation):
    """Files of more than 4 MiB are decoded by their path."""
    stored, exif = np.arange(96, dtype=kind).reshape(8, 12), Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "a.tiff"
    Image.fromarray(stored).save(path, exif=exif)
    rows = [stored, stored[:, ::-1], stored[::-1, ::-1], stored[::-1]]
    upright = [*rows, *(rows[turned].T for turned in (0, 3, 2, 1))][orientation - 1]
    for data in (str(path), path.read_bytes()):
        [numbers] = look(data).read()
        assert (numbers == upright).all() and numbers.shape == upright.shape
