"""Edited copies in `nearfar duplicates` and `nearfar check`: groups, leaks, words, one line without
OpenCV.
"""

import csv
import sys

import numpy as np
import pytest
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_images

import nearfar
from nearfar.cli import main

pytestmark = pytest.mark.usefixtures("known_speed")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Pages are written into the folder of the test."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eight parts of two photographs; three edited copies of the first, an exact copy of one of
    them.
    """
    pytest.importorskip("cv2", reason="edited copies need OpenCV: pip install 'nearfar[edits]'")
    place = tmp_path_factory.mktemp("photos")
    parts = [
        Image.fromarray(image[y : y + 160, x : x + 200])
        for image in load_sample_images().images
        for x, y in ((20, 20), (230, 20), (20, 200), (230, 200))
    ]
    for number, part in enumerate(parts):
        part.save(place / f"{number}.png")
    first = parts[0]
    first.crop((10, 8, 190, 152)).save(place / "crop.png")
    first.transpose(Image.Transpose.FLIP_LEFT_RIGHT).rotate(20, Image.Resampling.BICUBIC).save(
        place / "turned.jpg", quality=92
    )
    first.resize((200, 120), Image.Resampling.BICUBIC).convert("L").save(place / "flat.jpg")
    (place / "flat-again.jpg").write_bytes((place / "flat.jpg").read_bytes())
    return place


@pytest.mark.parametrize("edits", [None, True])
def test_edited_copies_form_a_group_and_say_how(folder, tmp_path, edits):
    page = tmp_path / "found.html"
    result = nearfar.duplicates(folder, edits=edits, out=page)
    columns = [result[name] for name in ("name", "kind", "edit", "kept")]
    rows = {name: row for name, *row in zip(*columns, strict=True)}
    assert rows.keys() == {"0.png", "crop.png", "turned.jpg", "flat.jpg", "flat-again.jpg"}
    assert set(result["group"]) == {1} and rows["0.png"] == ["first", "", True]
    assert rows["crop.png"] == ["edited copy", "cropped to 81 %", True]
    kind, words, _ = rows["turned.jpg"]
    assert kind == "edited copy" and words.startswith(
        "mirrored, turned by 20 degrees left, cropped"
    )
    assert rows["flat.jpg"][1].startswith("squeezed to 75 % of its height")
    assert rows["flat-again.jpg"][0] == "same file"
    assert [name for name, row in rows.items() if not row[2]] == ["flat-again.jpg"]
    assert "4 of 12 images are copies" in result.lines[0] and "3 edited" in result.lines[0]
    with page.with_suffix(".csv").open(newline="") as file:
        assert {row["edit"] for row in csv.DictReader(file)} >= {"cropped to 81 %"}
    assert "cropped to 81 %" in page.read_text(encoding="utf-8")


def test_without_edits_they_are_no_copies(folder):
    result = nearfar.duplicates(folder, edits=False)
    assert "edit" not in result and "edited copy" not in result["kind"]
    assert "edited" not in result.lines[0]


def test_copies_are_the_same_with_edits_and_without(tmp_path):
    """A group of copies stays one group of the same kinds, and its crop and a larger picture that
    shows it join it.
    """
    pytest.importorskip("cv2")
    whole = Image.fromarray(load_sample_images().images[0]).resize((480, 320))
    whole.save(tmp_path / "whole.png")
    for quality in (75, 85, 95):
        whole.save(tmp_path / f"whole-{quality}.jpg", quality=quality)
    whole.resize((360, 240), Image.Resampling.BOX).save(tmp_path / "smaller.png")
    (tmp_path / "again.png").write_bytes((tmp_path / "whole.png").read_bytes())
    for number, corner in enumerate(((0, 0), (0, 200), (300, 200))):
        x, y = corner
        flower = Image.fromarray(load_sample_images().images[1])
        flower.crop((x, y, x + 300, y + 200)).save(tmp_path / f"other-{number}.png")
    before = nearfar.duplicates(tmp_path, edits=False, out="before.html")
    copies = dict(zip(before["name"], before["kind"], strict=True))
    whole.crop((40, 30, 420, 280)).save(tmp_path / "crop.png")
    ImageOps.expand(whole, 60, "white").save(tmp_path / "larger.png")
    after = nearfar.duplicates(tmp_path, out="after.html")
    kinds = dict(zip(after["name"], after["kind"], strict=True))
    assert len(copies) == 6 and set(copies.values()) == {"first", "same file", "copy"}
    assert {kinds.pop("crop.png"), kinds.pop("larger.png")} == {"edited copy"}
    assert kinds == copies
    assert set(after["group"]) == {1}


@pytest.mark.parametrize("form", ["L", "RGBA", "P", "sizes"])
def test_they_are_found_among_images_of_any_form_of_8_bits(folder, tmp_path, form):
    for number in range(8):
        image = Image.open(folder / f"{number}.png")
        if form == "sizes":
            side = 120 + 40 * number
            image = image.resize((side, round(side * 0.8)), Image.Resampling.BICUBIC)
        elif form == "RGBA":
            image.putalpha(Image.new("L", image.size, 255))
            image.paste((0, 0, 0, 0), (0, 0, 30, 30))
        else:
            image = image.convert(form)
        image.save(tmp_path / f"{number}.png")
        if number == 2:
            width, height = image.size
            part = image.crop((width // 10, height // 10, width * 9 // 10, height * 9 // 10))
            part.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "part.png")
    result = nearfar.duplicates(tmp_path, out="found.html")
    rows = dict(zip(result["name"], result["kind"], strict=True))
    assert rows == {"2.png": "first", "part.png": "edited copy"}


def test_images_of_16_bits_have_no_edited_copies_and_a_line_says_so(tmp_path, log):
    pytest.importorskip("cv2")
    for number, image in enumerate(load_sample_images().images):
        gray = np.asarray(Image.fromarray(image).convert("L")).astype(np.uint16) * 257
        Image.fromarray(gray).save(tmp_path / f"{number}.png")
        Image.fromarray(gray[20:380, 30:560]).save(tmp_path / f"{number}-part.png")
    result = nearfar.duplicates(tmp_path, out="found.html")
    assert "edited copy" not in result["kind"]
    assert "colour images of 8 bits alone" in log.text


def test_small_images_are_left_out_and_a_line_says_so(folder, tmp_path, log):
    """Among larger ones, whose edited copies are found, and alone."""
    small = tmp_path / "small"
    small.mkdir()
    for number in range(5):
        part = Image.open(folder / f"{number}.png").crop((40, 30, 72, 62))
        part.save(small / f"part-{number}.png")
        part.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(small / f"mirrored-{number}.png")
    result = nearfar.duplicates([folder, small])
    assert result["kind"].count("edited copy") == 3
    assert "10 of 21 have more bits" in log.text
    assert "edited copy" not in nearfar.duplicates(small)["kind"]
    assert "10 of 10 have more bits" in log.text


def test_images_of_16_bits_among_others_are_counted(folder, tmp_path, log):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    gray = np.arange(100 * 120, dtype=np.uint16).reshape(100, 120) * 5
    Image.fromarray(gray).save(tmp_path / "deep.png")
    assert nearfar.duplicates(tmp_path)["kind"].count("edited copy") == 3
    assert "1 of 12 have more bits" in log.text


def test_photographs_without_copies_stay_alone(tmp_path):
    """Parts of two photographs that hardly overlap, some at another size, and mirrored others."""
    pytest.importorskip("cv2")
    for number, image in enumerate(load_sample_images().images):
        for x in range(0, 540, 100):
            for y in range(0, 300, 100):
                part = Image.fromarray(image[y : y + 100, x : x + 100])
                part.resize((100 + x // 4, 100 + x // 4)).save(tmp_path / f"{number}-{x}-{y}.png")
    result = nearfar.duplicates(tmp_path, out="found.html")
    assert not [kind for kind in result["kind"] if kind != "near-duplicate"]


@pytest.mark.parametrize("edits", [None, True])
def test_an_archive_has_the_edited_copies_of_new_images(folder, tmp_path, edits):
    new = tmp_path / "new"
    new.mkdir()
    (new / "crop.png").write_bytes((folder / "crop.png").read_bytes())
    archive = tmp_path / "archive"
    archive.mkdir()
    for number in range(8):
        (archive / f"{number}.png").write_bytes((folder / f"{number}.png").read_bytes())
    result = nearfar.duplicates(new, against=archive, edits=edits)
    assert result["archive_name"] == ["0.png"] and result["edit"] == ["cropped to 81 %"]
    (new / "crop.png").write_bytes((folder / "0.png").read_bytes())
    result = nearfar.duplicates(new, against=archive, edits=edits)
    assert result["kind"] == ["same file"] and result["edit"] == [""]


def test_without_opencv_there_is_one_line(tmp_path, monkeypatch, capsys):
    Image.new("RGB", (40, 40), "red").save(tmp_path / "a.png")
    Image.new("RGB", (40, 40), "blue").save(tmp_path / "b.png")
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert main(["duplicates", str(tmp_path), "--edits"]) != 0
    assert "pip install 'nearfar[edits]'" in capsys.readouterr().err
    assert main(["duplicates", str(tmp_path)]) == 0
    said_by_default = capsys.readouterr()
    lines = (said_by_default.out + said_by_default.err).splitlines()
    assert len([line for line in lines if "pip install 'nearfar[edits]'" in line]) == 1
    assert main(["duplicates", str(tmp_path), "--no-edits"]) == 0
    assert "nearfar[edits]" not in "".join(capsys.readouterr())


def test_vectors_without_images_cannot_be_compared(tmp_path):
    np.save(tmp_path / "v.npy", np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32))
    with pytest.raises(ValueError, match="edits"):
        nearfar.duplicates(tmp_path / "v.npy", edits=True)
    assert "edit" not in nearfar.duplicates(tmp_path / "v.npy")


@pytest.fixture
def exported(folder, tmp_path):
    """The same images as a data set: the edited copies of a training image are in its test split,
    one under another label, and another training image is turned.
    """
    for number in range(8):
        place = tmp_path / "set" / "train" / ("a" if number < 4 else "b")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.png").write_bytes((folder / f"{number}.png").read_bytes())
    for label, name in (("a", "crop.png"), ("a", "turned.jpg"), ("b", "flat.jpg")):
        place = tmp_path / "set" / "test" / label
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes((folder / name).read_bytes())
    Image.open(folder / "5.png").rotate(90, expand=True).save(
        tmp_path / "set" / "train" / "b" / "upright.png"
    )
    return tmp_path / "set"


@pytest.mark.parametrize("edits", [None, True])
def test_an_edited_copy_in_another_split_is_a_leak_that_says_how(exported, edits):
    checked = nearfar.check(exported, edits=edits, out="check.html")
    columns = [checked[name] for name in ("problem", "name", "words")]
    leaks = {
        name: words for problem, name, words in zip(*columns, strict=True) if problem == "leak"
    }
    assert leaks["test/a/crop.png"] == "cropped to 81 %: edited copy of train/a/0.png"
    assert leaks["test/b/flat.jpg"].startswith("squeezed to 75 % of its height")
    assert leaks["test/a/turned.jpg"].endswith("edited copy of train/a/0.png")
    assert len(leaks) == 3 and "copies disagree" not in checked["problem"]
    assert sorted(checked.files) == sorted(str(exported / name) for name in leaks)
    assert "cropped to 81 %" in checked.page()


def test_edited_copies_are_no_leaks_without_them_or_without_splits(exported, monkeypatch, log):
    assert "leak" not in nearfar.check(exported, edits=False, out="without.html")["problem"]
    of_train = nearfar.check(exported, edits=True, split="train", out="train.html")
    assert "leak" not in of_train["problem"] and "across splits alone" in log.text
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert "leak" not in nearfar.check(exported, out="default.html")["problem"]
    assert "pip install 'nearfar[edits]'" in log.text
    with pytest.raises(ValueError, match=r"nearfar\[edits\]"):
        nearfar.check(exported, edits=True, out="asked.html")
