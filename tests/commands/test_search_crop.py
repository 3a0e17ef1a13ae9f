"""`nearfar search --crop`: the image that a query was cut from, the place in it, and the edit in words."""

import base64
import csv
import io
import re
import shutil
import sys

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageOps
from sklearn.datasets import load_sample_images

import nearfar
from nearfar.cli import main

pytestmark = pytest.mark.usefixtures("known_speed")
PHOTOS = [Image.fromarray(image) for image in load_sample_images().images]  # 640 x 427


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Files are written into the folder of the test."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eight parts of two photographs, 300 x 200, and a crop of the first."""
    pytest.importorskip("cv2", reason="crops need OpenCV: pip install 'nearfar[edits]'")
    place = tmp_path_factory.mktemp("photos")
    for number in range(8):
        x, y = 320 * (number % 2), 213 * (number // 2 % 2)
        part = PHOTOS[number // 4].crop((x, y, x + 300, y + 200))
        part.save(place / f"{number}.jpg", quality=95)
    Image.open(place / "0.jpg").crop((10, 10, 250, 180)).save(place / "crop-of-0.jpg", quality=95)
    return place


def found(folder, *queries):
    result = nearfar.search(folder, list(queries), crop=True)
    names = ("query", "name", "edit", "left", "top", "width", "height")
    return {row[0]: row[1:] for row in zip(*(result[name] for name in names), strict=True)}


def test_the_place_of_a_crop_is_that_of_its_pixels(folder):
    image = Image.open(folder / "3.jpg")
    image.crop((70, 40, 220, 160)).save("part.jpg", quality=85)
    image.crop((70, 40, 220, 160)).transpose(Image.Transpose.ROTATE_90).save("turned.png")
    ImageOps.mirror(image.crop((0, 20, 180, 200))).resize((135, 135)).save("mirrored.jpg")
    rows = found(folder, "part.jpg", "turned.png", "mirrored.jpg")
    assert rows["part.jpg"] == ("3.jpg", "cropped to 30 %", 70, 40, 150, 120)
    assert rows["turned.png"] == (
        "3.jpg",
        "turned by 90 degrees left, cropped to 30 %",
        *(70, 40, 150, 120),
    )
    name, words, *box = rows["mirrored.jpg"]
    assert name == "3.jpg" and words == "mirrored, cropped to 54 %"
    assert np.abs(np.subtract(box, (0, 20, 180, 180))).max() <= 2


def test_an_image_on_a_page_is_found_and_the_whole_of_it_is_the_place(folder):
    page = Image.new("RGB", (600, 500), "white")
    page.paste(Image.open(folder / "6.jpg"), (150, 200))  # 300 x 200 of 600 x 500 is 20 %
    page.save("page.png")
    assert found(folder, "page.png")["page.png"] == (
        "6.jpg",
        "with a border of 80 %",
        *(0, 0, 300, 200),
    )


def test_the_whole_image_comes_before_another_crop_of_it(folder):
    Image.open(folder / "0.jpg").crop((40, 40, 200, 160)).save("inner.jpg", quality=85)
    assert found(folder, "inner.jpg")["inner.jpg"] == (
        *("0.jpg", "cropped to 32 %"),
        *(40, 40, 160, 120),
    )


def test_a_copy_is_found_without_an_edit_and_an_image_of_the_data_is_not_its_own_origin(folder):
    Image.open(folder / "3.jpg").resize((200, 133)).save("small.jpg", quality=80)
    rows = found(folder, "small.jpg", "crop-of-0.jpg", "3.jpg")
    assert rows["small.jpg"][:2] == ("3.jpg", "resized or encoded again")
    assert rows["crop-of-0.jpg"][0] == "0.jpg"
    assert "3.jpg" not in rows


def test_the_same_pixels_come_before_a_copy_of_them_and_are_called_so(folder, tmp_path):
    """Also as another file; of two copies of an image in the data, the one with equal pixels."""
    place = tmp_path / "photos"
    shutil.copytree(folder, place)
    Image.open(place / "3.jpg").save(place / "03.jpg", quality=60)
    shutil.copy(place / "3.jpg", "own.jpg")
    Image.open(place / "3.jpg").save("own.png")
    rows = found(place, "own.jpg", "own.png")
    for query in ("own.jpg", "own.png"):
        assert rows[query] == ("3.jpg", "the same pixels", 0, 0, 300, 200)


def test_what_is_of_no_image_is_said_and_the_page_frames_what_is(folder, capsys):
    Image.open(folder / "7.jpg").crop((20, 20, 200, 180)).save("part.png")
    Image.fromarray(np.full((90, 90, 3), 200, np.uint8)).save("plain.png")
    words = ["search", str(folder), "plain.png", "part.png", "--crop", "--out", "where.html"]
    assert main(words) == 0
    assert "pixels of plain.png" in capsys.readouterr().err
    with open("where.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["query"] for row in rows] == ["part.png"]
    with open("where.html", encoding="utf-8") as file:
        page = file.read()
    assert "has its pixels" in page and "cropped to 48 %" in page
    framed = base64.b64decode(re.findall(r'base64,([^"]*)"', page)[-1])
    with Image.open(io.BytesIO(framed)) as drawn:
        red, green, blue = np.asarray(drawn, int).transpose(2, 0, 1)
        assert drawn.size == (256, 171)  # of 300 x 200
    y, x = np.nonzero((red > 180) & (green < 90) & (blue > 90))
    ends = np.array([x.min(), x.max(), y.min(), y.max()]) * 300 / 256
    assert np.abs(ends - (20, 200, 20, 180)).max() <= 4


def test_an_image_with_other_pixels_is_named_and_not_confirmed(folder, capsys):
    """A text on a crop: the likely image is told, with its place, for a person to look."""
    part = Image.open(folder / "3.jpg").crop((20, 20, 260, 190))
    part.paste("white", (60, 120, 190, 150))
    ImageDraw.Draw(part).text((70, 130), "sold", "black")
    part.save("sold.jpg", quality=90)
    assert main(["search", str(folder), "sold.jpg", "--crop", "--out", "where.html"]) == 0
    assert "local features like it" in capsys.readouterr().err
    with open("where.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["name"], row["confirmed"]) == ("3.jpg", "False")
    box = [int(row[name]) for name in ("left", "top", "width", "height")]
    assert np.abs(np.subtract(box, (20, 20, 240, 170))).max() <= 3
    Image.open(folder / "3.jpg").crop((20, 20, 260, 190)).save("part.jpg", quality=90)
    assert nearfar.search(folder, "part.jpg", crop=True)["confirmed"] == [True]


def test_what_has_more_than_eight_bits_is_named(folder, tmp_path, capsys):
    """A query among others, and an image of the data, which was never compared, without a word."""
    deep = np.asarray(Image.open(folder / "3.jpg").convert("L"), np.uint16) * 257
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("0.jpg", "4.jpg", "7.jpg"):
        (photos / name).write_bytes((folder / name).read_bytes())
    Image.fromarray(deep).save(photos / "deep.png")
    Image.fromarray(deep[20:180, 20:200]).save("part.png")
    Image.open(folder / "0.jpg").crop((20, 20, 200, 180)).save("colour.png")
    with pytest.raises(ValueError, match=r"8 bits, not part\.png"):
        nearfar.search(photos, ["colour.png", "part.png"], crop=True)
    assert main(["search", str(photos), "colour.png", "--crop"]) == 0
    assert "1 of 4 have more" in capsys.readouterr().err


def test_an_image_of_the_data_is_compared_with_the_others(folder, capsys):
    assert main(["search", str(folder), "7.jpg", "--crop", "--out", "where.html"]) == 0
    assert "no other image has the" in capsys.readouterr().err
    with open("where.html", encoding="utf-8") as file:
        assert "no other image has its" in file.read()


def test_options_that_do_not_go_together_and_opencv(folder, tmp_path, monkeypatch, capsys):
    with pytest.raises(ValueError, match="leave `k` out"):
        nearfar.search(folder, "0.jpg", k=3, crop=True)
    np.save(tmp_path / "v.npy", np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32))
    deep = np.random.default_rng(0).integers(0, 4096, (4, 64, 64), dtype=np.uint16)
    with pytest.raises(ValueError, match="8 bits"):
        nearfar.search(deep, str(folder / "0.jpg"), crop=True)
    with pytest.raises(ValueError, match="compares pixels"):
        nearfar.search(tmp_path / "v.npy", "000000", crop=True)
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert main(["search", str(folder), "0.jpg", "--crop"]) != 0
    assert "pip install 'nearfar[edits]'" in capsys.readouterr().err
