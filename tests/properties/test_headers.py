"""Headers of images: orientations, notes of cameras, and the numbers of TIFF and DICOM."""

import io
import itertools
import struct
import zlib
from datetime import datetime

import numpy as np
import pytest
import tifffile
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from PIL.ExifTags import GPS, IFD, Base

from nearfar.data import open_images
from tests.pictures import encoded, png16, write_dicom
from tests.properties.given import FEW, folder_of

TURNED = {  # EXIF 2.3, 4.6.4: where the 0th row and column are
    1: lambda image: image,
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.swapaxes(0, 1),
    6: lambda image: np.rot90(image),
    7: lambda image: image[::-1, ::-1].swapaxes(0, 1),
    8: lambda image: np.rot90(image, -1),
}
BYTES = arrays.arrays(
    np.uint8, st.tuples(st.integers(1, 12), st.integers(1, 12), st.sampled_from([1, 3]))
)
LOSSLESS = st.sampled_from(["PNG", "TIFF", "WEBP"])


def read(files, **options):
    with folder_of(files) as folder:
        images = open_images(folder, **options)
        return images, images.pixels.numpy().copy()


def square(image):
    """The square in the middle, as `open_images` cuts it."""
    height, width = image.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return image[top : top + side, left : left + side]


@given(BYTES, st.sampled_from(sorted(TURNED)), LOSSLESS)
def test_an_image_is_upright_by_its_orientation(image, orientation, form):
    exif = Image.Exif()
    exif[Base.Orientation] = orientation
    stored = np.ascontiguousarray(TURNED[orientation](image))
    stored = stored[..., 0] if stored.shape[-1] == 1 else stored
    options = {"lossless": True, "exact": True} if form == "WEBP" else {}
    content = encoded(stored, form, exif=exif, **options)
    side = min(image.shape[:2])
    _, pixels = read({f"a.{form.lower()}": content}, image_size=side, channels=image.shape[-1])
    assert np.array_equal(pixels[0].transpose(1, 2, 0), square(image))


def png_with_exif(stored, orientation, behind):
    """A PNG of 16 bits with its orientation, before its pixels or behind them."""
    exif = Image.Exif()
    exif[Base.Orientation] = orientation
    notes = exif.tobytes().removeprefix(b"Exif\0\0")
    chunk = struct.pack(">I", len(notes)) + b"eXIf" + notes
    chunk += struct.pack(">I", zlib.crc32(b"eXIf" + notes))
    content = png16(stored[..., 0] if stored.shape[-1] == 1 else stored)
    place = len(content) - 12 if behind else 33
    return content[:place] + chunk + content[place:]


def tiff_with_tag(stored, orientation, planar):
    file = io.BytesIO()
    gray = stored.shape[-1] == 1
    tifffile.imwrite(
        file,
        stored[..., 0] if gray else stored.transpose(2, 0, 1) if planar else stored,
        photometric="minisblack",
        planarconfig=None if gray else "separate" if planar else "contig",
        extratags=[(Base.Orientation, 3, 1, orientation, True)],
        metadata=None,
    )
    return file.getvalue()


@given(
    st.sampled_from([("PNG", n) for n in (1, 2, 3, 4)] + [("TIFF", n) for n in (1, 2, 3, 5)]),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.sampled_from(sorted(TURNED)),
    st.booleans(),
    st.integers(0, 99),
)
def test_an_image_of_sixteen_bits_is_upright_by_its_orientation(kind, sides, orientation, other, n):
    (form, samples), side = kind, min(sides)
    image = np.random.default_rng(n).integers(0, 65536, (*sides, samples), dtype=np.uint16)
    channels = samples
    if form == "PNG" and samples in (2, 4):
        image[..., -1] = 65535  # alpha
        channels = samples - 1
    stored = np.ascontiguousarray(TURNED[orientation](image))
    made = png_with_exif if form == "PNG" else tiff_with_tag
    files = {f"a.{form.lower()}": made(stored, orientation, other)}
    images, pixels = read(files, image_size=side, channels=channels, value_range=(0, 65535))
    assert (images.table["height"][0].as_py(), images.table["width"][0].as_py()) == sides
    assert np.array_equal(pixels[0].transpose(1, 2, 0), square(image)[..., :channels])


ENTRIES = {  # bits of a palette's entries, and the type in which they are stored
    "8 bits": (8, np.uint8),
    "8 bits in 16": (8, np.uint16),
    "16 bits": (16, np.uint16),
}


@FEW
@given(st.integers(1, 256), st.sampled_from(sorted(ENTRIES)), st.integers(0, 9), st.integers(0, 99))
@example(3, "8 bits", 0, 0)
@example(4, "8 bits in 16", 0, 0)
def test_a_dicom_in_a_palette_has_the_colours_of_its_palette(count, kind, start, seed):
    """Numbers below the first that is mapped, and above the last, have the colours of those."""
    (bits, stored), drawn = ENTRIES[kind], np.random.default_rng(seed)
    numbers = drawn.integers(0, 256, (6, 6), dtype=np.uint8)
    colours = drawn.integers(0, 2**bits, (count, 3)).astype(stored)
    tables = {}
    for channel, name in enumerate(("Red", "Green", "Blue")):
        tables[f"{name}PaletteColorLookupTableDescriptor"] = [count, start, bits]
        content = colours[:, channel].tobytes()
        tables[f"{name}PaletteColorLookupTableData"] = content + b"\0" * (len(content) % 2)
    header = dict(BitsAllocated=8, BitsStored=8, HighBit=7)
    with folder_of({}) as folder:
        path = folder / "a.dcm"
        write_dicom(path, numbers, PhotometricInterpretation="PALETTE COLOR", **header, **tables)
        wide = {} if bits == 8 else {"value_range": (0, 65535)}
        images = open_images(folder, image_size=6, **wide)
        pixels = images.pixels[0].numpy().transpose(1, 2, 0)
    assert images.channels == 3
    mapped = np.clip(numbers.astype(int) - start, 0, count - 1)
    assert np.array_equal(pixels, colours[mapped])


@given(
    st.text(max_size=200),
    st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)),
    st.floats(-90, 90),
    st.floats(-180, 180),
)
@example("a" * 60000, datetime(2020, 1, 1), 0.0, 0.0)
def test_notes_of_a_camera_come_back(camera, time, latitude, longitude):
    exif = Image.Exif()
    exif[Base.Model] = camera
    exif.get_ifd(IFD.Exif)[Base.DateTimeOriginal] = time.strftime("%Y:%m:%d %H:%M:%S")
    place = exif.get_ifd(IFD.GPSInfo)
    place[GPS.GPSLatitudeRef], place[GPS.GPSLatitude] = "NS"[latitude < 0], degrees(latitude)
    place[GPS.GPSLongitudeRef], place[GPS.GPSLongitude] = "EW"[longitude < 0], degrees(longitude)
    content = encoded(np.zeros((8, 8, 3), np.uint8), "JPEG", exif=exif)
    images, _ = read({"a.jpg": content})
    (row,) = images.columns.to_pylist()
    assert row["taken"] == time.replace(microsecond=0)
    assert abs(row["latitude"] - latitude) < 1e-4 and abs(row["longitude"] - longitude) < 1e-4
    shown = row.get("camera") or ""
    assert len(shown) <= 100 and len(shown.splitlines()) <= 1
    if camera.isascii() and camera.isprintable() and len(camera) <= 100:
        assert shown == " ".join(camera.split())


def degrees(value):
    value = abs(value)
    minutes = value % 1 * 60
    return int(value), int(minutes), round(minutes % 1 * 60, 4)


@given(st.binary(max_size=200), st.sampled_from(["PNG", "JPEG", "WEBP", "TIFF"]))
def test_damaged_notes_lose_no_image(notes, form):
    image = np.full((8, 8, 3), 90, np.uint8)
    if form == "TIFF":
        content = encoded(image, form) + notes
    else:
        content = encoded(image, form, exif=b"Exif\0\0" + notes)
    images, pixels = read({f"a.{form.lower()}": content})
    assert len(images) == 1 and abs(pixels.astype(int) - 90).max() <= 3


WIDE = st.sampled_from([np.uint8, np.uint16, np.int16, np.uint32, np.float32])


@st.composite
def tiffs(draw):
    """Numbers [channels, side, side] of some type, and a TIFF of them in one of its many forms."""
    kind, side = draw(WIDE), draw(st.sampled_from([1, 5, 16]))
    channels = draw(st.sampled_from([1, 2, 3, 5]))
    numbers = np.random.default_rng(draw(st.integers(0, 99))).integers(
        0, 200, (channels, side, side)
    )
    numbers = numbers.astype(kind)
    planar = draw(st.sampled_from(["contig", "separate"])) if channels > 1 else None
    stored = numbers if planar != "contig" else numbers.transpose(1, 2, 0)
    file = io.BytesIO()
    tifffile.imwrite(
        file,
        stored if channels > 1 else stored[0],
        photometric="minisblack",
        planarconfig=planar,
        byteorder=draw(st.sampled_from("<>")),
        bigtiff=draw(st.booleans()),
        tile=(16, 16) if draw(st.booleans()) else None,
        compression=draw(st.sampled_from([None, "zlib", "packbits"])),
        metadata=None,
    )
    return numbers, file.getvalue()


@given(tiffs())
def test_a_tiff_has_its_numbers_in_every_form(given_tiff):
    numbers, content = given_tiff
    channels, side = numbers.shape[:2]
    images, pixels = read(
        {"a.tif": content}, image_size=side, channels=channels, value_range=(0, 255)
    )
    low, high = (0, 255)
    if images.value_range is None:
        assert numbers.dtype == np.uint8
        assert np.array_equal(pixels[0], numbers)
    else:
        expected = (numbers.astype(float) - low) / (high - low) * 65535
        assert np.abs(pixels[0] - expected).max() <= 1


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1, 3])), min_size=1, max_size=4))
def test_documents_of_any_number_of_pages_are_read_by_their_first(documents):
    """Several gray pages are no channels of one picture, and no document is left out."""
    files, first = {}, []
    for n, (pages, bands) in enumerate(documents):
        generator = np.random.default_rng(n)
        drawn = generator.integers(0, 256, (pages, 8, 8, bands), dtype=np.uint8)
        file = io.BytesIO()
        made = [Image.fromarray(page[..., 0] if bands == 1 else page) for page in drawn]
        made[0].save(file, "TIFF", save_all=True, append_images=made[1:])
        files[f"{n}.tif"] = file.getvalue()
        first.append(drawn[0])
    images, pixels = read(files, image_size=8)
    assert images.skipped == [] and len(images) == len(documents)
    assert images.channels == max(page.shape[-1] for page in first)
    for page, seen in zip(first, pixels, strict=True):
        assert np.array_equal(*np.broadcast_arrays(page.transpose(2, 0, 1), seen))


@given(
    arrays.arrays(np.uint16, (6, 6), elements=st.integers(0, 4095)),
    st.sampled_from(["MONOCHROME1", "MONOCHROME2"]),
    st.sampled_from([1, 2]),
    st.integers(-1000, 1000),
)
def test_a_dicom_has_its_numbers(numbers, photometric, slope, intercept):
    with folder_of({}) as folder:
        write_dicom(
            folder / "a.dcm",
            numbers,
            BitsStored=12,
            HighBit=11,
            PhotometricInterpretation=photometric,
            RescaleSlope=slope,
            RescaleIntercept=intercept,
        )
        images = open_images(folder, value_range=(-1000, 10000), image_size=6)
        pixels = images.pixels[0, 0].numpy()
    values = numbers.astype(float) * slope + intercept
    expected = (values + 1000) / 11000 * 65535
    if photometric == "MONOCHROME1":
        order = np.argsort(expected, axis=None)
        assert (np.diff(pixels.flatten()[order].astype(int)) <= 1).all()  # bright is low
    else:
        assert np.abs(pixels - expected).max() <= 1


@pytest.mark.parametrize("kind", ["int8", "uint16", "int16", "uint32", "int32", "float32"])
def test_compressed_numbers_keep_their_bytes_in_order(kind):
    numbers = np.arange(64).reshape(8, 8).astype(kind)
    files = {}
    for order, compression in itertools.product("<>", [None, "zlib", "packbits", "lzw"]):
        file = io.BytesIO()
        tifffile.imwrite(file, numbers, byteorder=order, compression=compression, metadata=None)
        files[f"{order}{compression}.tif"] = file.getvalue()
    _, pixels = read(files, value_range=(0, 255))
    assert (np.abs(pixels[:, 0] - numbers.astype(float) * 257) <= 1).all()


@pytest.mark.parametrize("colours", [1, 3])
@pytest.mark.parametrize(("extra", "channels"), [(0, 1), (2, 0)])
@pytest.mark.parametrize("planar", ["contig", "separate"])
def test_an_extra_sample_is_a_channel_unless_it_is_alpha(colours, extra, channels, planar):
    numbers = np.random.default_rng(0).integers(0, 256, (colours + 1, 8, 8), dtype=np.uint8)
    file = io.BytesIO()
    tifffile.imwrite(
        file,
        numbers if planar == "separate" else numbers.transpose(1, 2, 0),
        photometric="minisblack" if colours == 1 else "rgb",
        planarconfig=planar,
        extrasamples=[extra],
        metadata=None,
    )
    if (colours, extra, planar) == (1, 2, "separate"):  # which Pillow does not read
        with pytest.raises(ValueError, match=r"a\.tif: unknown raw mode"):
            read({"a.tif": file.getvalue()})
        return
    images, pixels = read({"a.tif": file.getvalue()})
    assert images.channels == colours + channels
    assert channels == 0 or np.array_equal(pixels[0], numbers)
