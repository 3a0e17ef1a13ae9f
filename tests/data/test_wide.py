"""Images of more than 8 bits and of any number of channels: what is read, and how numbers become
0..1.
"""

import pickle
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.data import Batches, open_images
from nearfar.data.decoding import decode
from nearfar.data.readers import look
from nearfar.data.value_range import PixelFormat
from tests.pictures import png16, write_dicom

tifffile = pytest.importorskip("tifffile")


def scan(number, shape=(24, 20), high=4096):
    """A smooth random image of 12 bits."""
    coarse = np.random.default_rng(number).integers(0, high, (4, 4)).astype(np.float32)
    return np.asarray(
        Image.fromarray(coarse).resize(shape[::-1], Image.Resampling.BILINEAR)
    ).astype(np.uint16)


@pytest.fixture
def scans(tmp_path):
    """A folder of eight grey PNGs of 12 bits in 16, and their numbers [8, 24, 20]."""
    folder = tmp_path / "scans"
    folder.mkdir()
    numbers = np.stack([scan(i) for i in range(8)])
    for i, plane in enumerate(numbers):
        Image.fromarray(plane).save(folder / f"{i}.png")
    return folder, numbers


def as_read(numbers, low, high):
    """Numbers after a value range, in float64."""
    return ((np.asarray(numbers, np.float64) - low) / (high - low)).clip(0, 1)


def test_sixteen_bit_files_keep_their_bits_within_percentiles(scans):
    folder, numbers = scans
    images = open_images(folder)
    low, high = np.percentile(numbers, [0.5, 99.5])
    assert images.value_range == pytest.approx([low, high])
    assert images.pixels.dtype == torch.uint16 and images.pixels.shape == (8, 1, 20, 20)
    expected = as_read(numbers[:, 2:22], *images.value_range)
    seen = images.gather(torch.arange(8))
    assert seen.dtype == torch.float32
    np.testing.assert_allclose(seen[:, 0], expected, atol=0.51 / 65535)
    np.testing.assert_allclose(
        (images.mean[0], images.std[0]), (expected.mean(), expected.std()), atol=1e-4
    )
    assert len(np.unique(seen.numpy())) > 1000  # 8 bits have 256
    again = open_images(folder)
    assert again.value_range == images.value_range and torch.equal(
        again.gather(torch.tensor([3, 1])), seen[[3, 1]]
    )
    assert set(images.table["bits"].to_pylist()) == {16}


def test_a_range_can_be_given_for_all_or_refused(scans):
    folder, numbers = scans
    for given, ends in (((100, 2100), (100.0, 2100.0)), ("full", (0.0, 65535.0))):
        images = open_images(folder, value_range=given)
        assert images.value_range == list(ends)
        expected = as_read(numbers[:, 2:22], *ends)
        np.testing.assert_allclose(
            images.gather(torch.arange(8))[:, 0], expected, atol=0.51 / 65535
        )
    for wrong in ((5, 5), (1,), (0, np.inf), "wide", (0, 1, 2, 3)):
        with pytest.raises(ValueError, match=r"value_range|pair"):
            open_images(folder, value_range=wrong)


def test_a_pgm_of_sixteen_bits_has_their_full_range(tmp_path):
    numbers = scan(0, (8, 8), high=65536)
    (tmp_path / "a.pgm").write_bytes(b"P5 8 8 65535\n" + numbers.astype(">u2").tobytes())
    images = open_images(tmp_path, value_range="full")
    assert images.value_range == [0, 65535] and (images.pixels[0, 0].numpy() == numbers).all()


def test_numbers_that_become_no_eight_bits_are_listed_with_their_channels(tmp_path):
    numbers = np.zeros((5, 8, 8), np.int16)
    tifffile.imwrite(tmp_path / "a.tif", numbers, photometric="minisblack")
    with pytest.raises(ValueError, match="int16 in 5 channels"):
        open_images(tmp_path, value_range="uint8")


def test_eight_bits_in_sixteen_are_the_same_picture(tmp_path):
    """Pixels times 257 with the full range give the floats of the 8-bit file; resized, within its
    two roundings.
    """
    (tmp_path / "narrow").mkdir()
    (tmp_path / "wide").mkdir()
    for i in range(4):
        pixels = np.stack([40 + scan(3 * i + c, (30, 30)) // 24 for c in range(3)], 2).astype(
            np.uint8
        )
        Image.fromarray(pixels).save(tmp_path / "narrow" / f"{i}.png")
        (tmp_path / "wide" / f"{i}.png").write_bytes(png16(pixels.astype(np.uint16) * 257))
    for size, gap in ((30, 0), (17, 1.2 / 255)):
        narrow = open_images(tmp_path / "narrow", image_size=size).gather(torch.arange(4))
        wide = open_images(tmp_path / "wide", image_size=size, value_range=(0, 65535)).gather(
            torch.arange(4)
        )
        assert (narrow.float() / 255 - wide).abs().max() <= gap


def test_alpha_of_sixteen_bits_lies_on_white(tmp_path):
    for i, alpha in enumerate((0, 65535, 13107)):
        pixels = np.full((4, 4, 4), (40000, 20000, 10000, alpha), np.uint16)
        (tmp_path / f"{i}.png").write_bytes(png16(pixels))
    seen = open_images(tmp_path, value_range="full").gather(torch.arange(3))[..., 0, 0] * 65535
    assert seen.round().int().tolist() == [
        [65535] * 3,
        [40000, 20000, 10000],
        [60428, 56428, 54428],
    ]


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int16, np.float32])
@pytest.mark.parametrize("layout", ["pages", "contig", "separate"])
def test_a_tiff_has_a_channel_for_each_page_or_sample(tmp_path, kind, layout):
    planes = np.random.default_rng(0).integers(0, 250, (3, 5, 16, 16)).astype(kind)
    for i, plane in enumerate(planes):
        if layout == "pages":
            tifffile.imwrite(tmp_path / f"{i}.tif", plane, photometric="minisblack")
        else:
            plane = plane.transpose(1, 2, 0) if layout == "contig" else plane
            tifffile.imwrite(
                tmp_path / f"{i}.tif", plane, photometric="minisblack", planarconfig=layout
            )
    images = open_images(tmp_path, value_range=None if kind == np.uint8 else (0, 250))
    assert images.channels == 5 and images.shown == [0, 1, 2]
    if kind == np.uint8:
        assert images.value_range is None and (images.pixels.numpy() == planes).all()
    else:
        np.testing.assert_allclose(images.gather(torch.arange(3)), planes / 250, atol=0.51 / 65535)


def test_eight_bits_keep_their_range_beside_images_of_more(tmp_path):
    (tmp_path / "wide").mkdir()
    (tmp_path / "wide/0.png").write_bytes(png16(np.full((8, 8, 3), 2000, np.uint16)))
    dark_and_light = np.stack([np.zeros((8, 8, 3), np.uint8), np.full((8, 8, 3), 255, np.uint8)])
    encoded = tmp_path / "eight"
    encoded.mkdir()
    for i, pixels in enumerate(dark_and_light):
        Image.fromarray(pixels).save(encoded / f"{i}.png")
    others = [str(encoded)]
    for name, kind in (("bytes", np.uint8), ("truths", bool)):
        np.savez(tmp_path / f"{name}.npz", images=dark_and_light.astype(kind))
        others.append(str(tmp_path / f"{name}.npz"))
    for other in others:
        images = open_images([str(tmp_path / "wide"), other], value_range=(0, 4000), image_size=8)
        seen = images.gather(torch.arange(3)).mean((1, 2, 3))
        torch.testing.assert_close(seen, torch.tensor([0.5, 0.0, 1.0]), rtol=0, atol=2e-5)


def test_every_channel_has_a_range_of_its_own(tmp_path):
    scale = np.array([1, 10, 100, 2, 5], np.uint16)[:, None, None]
    planes = np.stack(
        [np.stack([scan(5 * i + c, high=200) for c in range(5)]) * scale for i in range(4)]
    )
    for i, plane in enumerate(planes):
        tifffile.imwrite(tmp_path / f"{i}.tif", plane, photometric="minisblack")
    images = open_images(tmp_path)
    expected = np.percentile(planes.transpose(1, 0, 2, 3).reshape(5, -1), [0.5, 99.5], axis=1).T
    np.testing.assert_allclose(images.value_range, expected.reshape(-1))
    assert max(images.mean) - min(images.mean) < 0.2  # and not 100 times each other
    chosen = open_images(tmp_path, show_channels=[3, 2, 1])
    shown = chosen.pictures(torch.tensor([2]))
    assert torch.equal(
        shown, (chosen.gather(torch.tensor([2]))[:, [2, 1, 0]] * 255).round().to(torch.uint8)
    )
    with pytest.raises(ValueError, match="from 1 to 5"):
        open_images(tmp_path, show_channels=[0, 1, 2])


def test_other_numbers_of_channels_are_left_out_by_name(tmp_path):
    for i in range(4):
        shape, high, kind = (
            ((7, 16, 16), 256, np.uint8) if i == 1 else ((5, 16, 16), 999, np.uint16)
        )
        planes = np.random.default_rng(i).integers(0, high, shape, dtype=kind)
        tifffile.imwrite(tmp_path / f"{i}.tif", planes, photometric="minisblack")
    Image.new("RGB", (16, 16)).save(tmp_path / "preview.png")
    images = open_images(tmp_path, value_range=(0, 999))
    assert images.names == ["0.tif", "2.tif", "3.tif"]
    assert [name for name, _ in images.skipped] == ["1.tif", "preview.png"]
    assert "7 channels, and 5 are read" in images.skipped[0][1] and "8 bits" in images.skipped[1][1]
    assert (
        open_images(tmp_path).pixels.dtype == torch.uint16
    )  # they do not decide how many bits are kept
    assert open_images(tmp_path, channels=7).names == ["1.tif"]


def test_dicom_is_rescaled_and_black_is_low(tmp_path):
    pytest.importorskip("pydicom")
    stored = scan(0, (16, 16))
    twelve, scaled = (
        dict(BitsStored=12, HighBit=11),
        dict(RescaleSlope="2", RescaleIntercept="-1000"),
    )
    write_dicom(tmp_path / "a.dcm", stored, **twelve, **scaled)
    write_dicom(
        tmp_path / "b.dcm",
        4095 - stored,
        PhotometricInterpretation="MONOCHROME1",
        **twelve,
        **scaled,
    )
    images = open_images(tmp_path, value_range=(-1000, 7192))
    assert images.names == ["a.dcm", "b.dcm"] and images.channels == 1
    for seen in images.gather(torch.arange(2))[:, 0]:
        np.testing.assert_allclose(seen, stored / 4096, atol=1e-5)
    write_dicom(
        tmp_path / "plain.dcm", 4095 - stored, PhotometricInterpretation="MONOCHROME1", **twelve
    )
    assert (look(str(tmp_path / "plain.dcm")).read()[0] == stored).all()


def test_wide_images_are_cut_shown_sent_and_sampled_like_others(scans):
    folder, numbers = scans
    images = open_images(folder, value_range=(0, 4096))
    sent = pickle.loads(pickle.dumps(images.subset([5, 2, 7])))
    np.testing.assert_allclose(
        sent.gather(torch.tensor([1]))[0, 0], numbers[2, 2:22] / 4096, atol=1e-5
    )
    assert sent.pixels.shape == (3, 1, 20, 20) and sent.value_range == [0, 4096]
    [(pixels, index), *_] = Batches(images, 4, seed=0).epoch(0)
    assert torch.equal(pixels, images.gather(index))
    few = open_images(folder, few=3)
    assert (
        few.names == ["0.png", "4.png", "7.png"]
        and few.gather(torch.arange(3)).dtype == torch.float32
    )
    bare = open_images(folder, value_range=(0, 4096), cache=False)
    assert torch.equal(bare.gather(torch.arange(8)), images.gather(torch.arange(8)))
    whole = (20, (1.0, 1.0), (20 / 24, 20 / 24))  # the whole of an image
    [([crops], index)] = Batches(bare, 8, seed=0, crops=[whole], workers=0).epoch(0)
    given = torch.from_numpy(numbers[index].astype(np.float32))[:, None] / 4096
    expected = torch.nn.functional.interpolate(given, (20, 20), mode="bilinear", antialias=True)
    torch.testing.assert_close(crops, expected, atol=1e-5, rtol=0)


def test_arrays_keep_sixteen_bits_and_eight_where_they_hold_no_more(tmp_path):
    numbers = np.stack([scan(i, (12, 12)) for i in range(6)])
    np.save(tmp_path / "a.npy", numbers)
    images = open_images(tmp_path / "a.npy")
    assert images.value_range == pytest.approx(list(np.percentile(numbers, [0.5, 99.5])))
    expected = as_read(numbers, *images.value_range)
    np.testing.assert_allclose(images.gather(torch.arange(6))[:, 0], expected, atol=0.51 / 65535)
    assert open_images(numbers.astype(np.float32) - 500).value_range == pytest.approx(
        [x - 500 for x in images.value_range]
    )
    unit = numbers / 4096
    np.testing.assert_allclose(
        open_images(unit).gather(torch.arange(6))[:, 0], unit, atol=0.51 / 65535
    )
    assert open_images(numbers // 16, value_range="uint8").value_range is None
    assert open_images((numbers // 16).astype(np.int64)).pixels.dtype == torch.uint8


def test_pages_are_pages_unless_as_many_channels_are_asked_for(tmp_path):
    pages = np.random.default_rng(0).integers(0, 256, (4, 10, 10), dtype=np.uint8)
    first, *others = [Image.fromarray(page) for page in pages]
    first.save(tmp_path / "a.tif", save_all=True, append_images=others)
    assert (open_images(tmp_path, channels=4).pixels[0].numpy() == pages).all()
    assert (open_images(tmp_path).pixels[0].numpy() == pages[:1]).all()
    assert open_images(tmp_path).line.endswith("the first page or frame is read of 1 with several")
    assert (open_images(tmp_path, channels=1).pixels[0].numpy() == pages[:1]).all()
    preview = Image.fromarray(pages[1, :5, :5])
    first.save(tmp_path / "a.tif", save_all=True, append_images=[preview])
    assert (open_images(tmp_path).pixels[0].numpy() == pages[:1]).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_sixteen_bits_are_turned_upright_as_eight_are(tmp_path, orientation):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 9), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(tmp_path / "narrow.png", exif=exif)
    Image.fromarray(pixels.astype(np.uint16) * 257).save(tmp_path / "wide.png", exif=exif)
    wide = look(str(tmp_path / "wide.png"))
    assert (wide.read() // 257 == decode(str(tmp_path / "narrow.png"), PixelFormat(9, 1))).all()


def test_eight_bits_among_more_make_eight_bits_of_all_with_a_word(scans, caplog):
    folder, numbers = scans
    Image.fromarray((numbers[0] // 16).astype(np.uint8)).save(folder / "narrow.png")
    with caplog.at_level("INFO", logger="nearfar"):
        images = open_images(folder)
    assert (
        images.pixels.dtype == torch.uint8
        and (images.pixels[0, 0].numpy() == (numbers[0, 2:22] / 257).round()).all()
    )
    assert "all become 8 bits" in caplog.text


@pytest.mark.parametrize("value_range", [None, "uint8", "full"])
def test_bits_are_lost_with_a_word_whatever_range_is_asked_for(scans, caplog, value_range):
    folder, numbers = scans
    if value_range != "uint8":
        Image.fromarray((numbers[0] // 16).astype(np.uint8)).save(folder / "narrow.png")
    with caplog.at_level("INFO", logger="nearfar"):
        images = open_images(folder, value_range=value_range)
    assert images.pixels.dtype == torch.uint8
    assert "all become 8 bits" in caplog.text


def test_a_range_of_eight_bits_changes_nothing_with_a_word(tmp_path, caplog):
    for number in range(3):
        Image.fromarray((scan(number) // 16).astype(np.uint8)).save(tmp_path / f"{number}.png")
    with caplog.at_level("INFO", logger="nearfar"):
        images = open_images(tmp_path, value_range=[0, 100])
    assert torch.equal(images.pixels, open_images(tmp_path).pixels)
    assert "8 bits alone" in caplog.text


@pytest.mark.parametrize("kind", ["files", "array", "list"])
def test_colours_are_lost_with_a_word_and_gray_in_three_channels_is_none(tmp_path, caplog, kind):
    caplog.set_level("INFO", "nearfar")
    pixels = np.full((4, 12, 12, 3), 90, np.uint8)
    for name, red in (("gray", 90), ("red", 190)):
        pixels[..., 0] = red
        (tmp_path / name).mkdir()
        for number, image in enumerate(pixels):
            Image.fromarray(image).save(tmp_path / name / f"{number}.png")
        source = {"files": str(tmp_path / name), "array": pixels, "list": list(pixels)}[kind]
        images = open_images(source, channels=1)
        assert len(images) == 4 and images.channels == 1
        assert caplog.text.count("in colour") == (name == "red")


def test_items_of_sixteen_bits_lose_them_with_a_word(caplog):
    caplog.set_level("INFO", "nearfar")
    plane = scan(0)
    items = [plane, Image.fromarray(plane), np.zeros(plane.shape, np.uint8)]
    assert open_images(items, image_size=20).pixels.max() == (plane.max() + 128) // 257
    assert "2 of 3 items" in caplog.text


def test_damaged_files_are_listed_with_a_reason(scans):
    folder, _ = scans
    tifffile.imwrite(folder / "x.tif", np.zeros((5, 16, 16), np.uint16), photometric="minisblack")
    (folder / "x.tif").write_bytes((folder / "x.tif").read_bytes()[:300])
    (folder / "y.dcm").write_bytes(b"\0" * 128 + b"DICM" + b"nonsense")
    tifffile.imwrite(folder / "z.tif", np.full((24, 20), np.nan, np.float32))
    images = open_images(folder)
    assert len(images) == 8 and [name for name, _ in images.skipped] == ["x.tif", "y.dcm", "z.tif"]
    assert all(reason and "\n" not in reason for _, reason in images.skipped)
    assert "not finite" in images.skipped[2][1]


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_frames_of_dicom_are_pages_unless_as_many_channels_are_asked_for(tmp_path, kind):
    pytest.importorskip("pydicom")
    frames = np.random.default_rng(0).integers(0, 256, (4, 10, 10)).astype(kind)
    for name in ("a", "b"):
        write_dicom(tmp_path / f"{name}.dcm", frames.reshape(40, 10), Rows=10, NumberOfFrames="4")
    write_dicom(tmp_path / "one.dcm", frames[1])
    full = (0, np.iinfo(kind).max) if kind == np.uint16 else None
    images = open_images(tmp_path, value_range=full)
    assert images.pixels.shape == (3, 1, 10, 10) and images.pixels.dtype.itemsize == kind().itemsize
    assert (images.pixels[:, 0].numpy() == frames[[0, 0, 1]]).all()
    assert images.line.endswith("; the first page or frame is read of 2 with several")
    assert images.table["pages"].to_pylist() == [4, 4, 1]
    four = open_images(tmp_path, value_range=full, channels=4)
    assert (four.pixels[0].numpy() == frames).all() and four.names == ["a.dcm", "b.dcm"]
    assert "several" not in four.line


def test_frames_in_colour_keep_their_colours(tmp_path):
    pytest.importorskip("pydicom")
    frames = np.random.default_rng(0).integers(0, 256, (4, 10, 10, 3), dtype=np.uint8)
    colour = dict(SamplesPerPixel=3, PhotometricInterpretation="RGB", PlanarConfiguration=0)
    flat = frames.reshape(40, 30)
    write_dicom(tmp_path / "a.dcm", flat, Rows=10, Columns=10, NumberOfFrames="4", **colour)
    images = open_images(tmp_path)
    assert images.channels == 3 and (images.pixels[0].numpy() == frames[0].transpose(2, 0, 1)).all()


@pytest.mark.parametrize("pages", [2, 150])
def test_pages_of_a_tiff_that_go_round_in_a_circle_are_left_out(tmp_path, pages):
    path = tmp_path / "circle.tif"
    numbers = np.zeros((pages, 4, 5), np.float32)
    tifffile.imwrite(path, numbers, photometric="minisblack", metadata=None, contiguous=False)
    with tifffile.TiffFile(path) as file:
        first, last = file.pages[0].offset, file.pages[-1]
        end = last.offset + 2 + 12 * len(last.tags)
    whole = path.read_bytes()
    assert struct.unpack("<I", whole[end : end + 4]) == (0,)
    tifffile.imwrite(tmp_path / "whole.tif", numbers[0] + 1)
    path.write_bytes(whole[:end] + struct.pack("<I", first) + whole[end + 4 :])
    images = open_images(tmp_path)
    assert images.names == ["whole.tif"]
    assert images.skipped == [("circle.tif", "its pages go round in a circle")]


@pytest.mark.parametrize("pages", [2, 3])
def test_pages_of_a_tiff_that_are_cut_off_are_left_out(tmp_path, pages):
    """The last page is described at the end of the file, without the number that follows."""
    numbers = np.zeros((pages, 4, 5), np.float32)
    path = tmp_path / "cut.tif"
    tifffile.imwrite(path, numbers, photometric="minisblack", metadata=None, contiguous=False)
    whole = path.read_bytes()
    with tifffile.TiffFile(path) as file:
        ends = [page.offset + 2 + 12 * len(page.tags) for page in file.pages]
        last = whole[file.pages[-1].offset : ends[-1]]
    leads = ends[-2]  # the place of the number that leads to the last page
    path.write_bytes(whole[:leads] + struct.pack("<I", len(whole)) + whole[leads + 4 :] + last)
    tifffile.imwrite(tmp_path / "whole.tif", numbers[0] + 1)
    images = open_images(tmp_path)
    assert images.names == ["whole.tif"]
    [(name, reason)] = images.skipped
    assert name == "cut.tif" and "cut off" in reason
