"""`nearfar duplicates --edits` on a folder with edited copies: groups, words, files and one line without OpenCV."""

import csv
import sys

import pytest
from PIL import Image
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


def test_edited_copies_form_a_group_and_say_how(folder, tmp_path):
    page = tmp_path / "found.html"
    result = nearfar.duplicates(folder, edits=True, out=page)
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


def test_without_the_option_they_are_no_copies(folder):
    result = nearfar.duplicates(folder)
    assert "edit" not in result and "edited copy" not in result["kind"]
    assert "edited" not in result.lines[0]


def test_an_archive_has_the_edited_copies_of_new_images(folder, tmp_path):
    new = tmp_path / "new"
    new.mkdir()
    (new / "crop.png").write_bytes((folder / "crop.png").read_bytes())
    archive = tmp_path / "archive"
    archive.mkdir()
    for number in range(8):
        (archive / f"{number}.png").write_bytes((folder / f"{number}.png").read_bytes())
    result = nearfar.duplicates(new, against=archive, edits=True)
    assert result["archive_name"] == ["0.png"] and result["edit"] == ["cropped to 81 %"]


def test_without_opencv_there_is_one_line(tmp_path, monkeypatch, capsys):
    Image.new("RGB", (40, 40), "red").save(tmp_path / "a.png")
    Image.new("RGB", (40, 40), "blue").save(tmp_path / "b.png")
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert main(["duplicates", str(tmp_path), "--edits"]) != 0
    assert "pip install 'nearfar[edits]'" in capsys.readouterr().err


def test_vectors_without_images_cannot_be_compared(tmp_path):
    import numpy as np

    np.save(tmp_path / "v.npy", np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32))
    with pytest.raises(ValueError, match="edits"):
        nearfar.duplicates(tmp_path / "v.npy", edits=True)
