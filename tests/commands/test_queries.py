"""The images that words mean: through links, in lists of any encoding, of several folders, and how
many are listed.
"""

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import nearfar
from nearfar.cli import main

DIGITS = (load_digits().images * 255 / 16).astype(np.uint8)


def paint(path, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(DIGITS[number]).resize((32, 32)).save(path)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Seven images: four in a folder, three behind a link to another one."""
    monkeypatch.chdir(tmp_path)
    for number in range(7):
        paint(tmp_path / ("photos/own" if number < 4 else "elsewhere") / f"{number}.png", number)
    (tmp_path / "photos/linked").symlink_to(tmp_path / "elsewhere")
    return tmp_path / "photos"


@pytest.mark.parametrize(
    "word",
    [
        *("photos/linked/5.png", "elsewhere/5.png", "linked/5.png", "door/linked/5.png"),
        *("hard.png", "/old/place/linked/5.png", "linked\\5.png", "soft.png"),
    ],
)
def test_a_query_is_itself_by_whatever_path_it_comes(word, photos):
    (photos.parent / "door").symlink_to(photos)
    (photos.parent / "hard.png").hardlink_to(photos.parent / "elsewhere/5.png")
    (photos.parent / "soft.png").symlink_to(photos.parent / "elsewhere/5.png")
    nearest = nearfar.search("photos", word, k=6)
    assert set(nearest["query"]) == {"linked/5.png"} and "linked/5.png" not in nearest["name"]
    chosen = nearfar.select("photos", n=6, labelled=word)
    assert sorted(chosen["name"]) == sorted(set(nearest["name"]))


def test_another_file_of_the_same_name_is_another_image(photos):
    paint(photos.parent / "other/linked/5.png", 100)
    nearest = nearfar.search("photos", "other/linked/5.png", k=6)
    assert set(nearest["query"]) == {"other/linked/5.png"} and min(nearest["distance"]) > 1e-4
    with pytest.raises(ValueError, match=r"'other/linked/5\.png' is not an image"):
        nearfar.select("photos", n=1, labelled="other/linked/5.png")


def test_an_array_of_one_colour_image_is_not_taken_for_three_gray_ones(photos):
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"colour-{number}.png")
    pixels_of_one = np.asarray(Image.open(photos / "colour-1.png")).transpose(2, 0, 1).copy()
    for image in (pixels_of_one, torch.from_numpy(pixels_of_one)):
        with pytest.raises(ValueError, match="one image of 3 channels"):
            nearfar.search("photos", image, k=1)
    assert nearfar.search("photos", pixels_of_one[None], k=1)["name"] == ["colour-1.png"]


@pytest.mark.parametrize("kind", [list, iter])
def test_a_number_is_no_name_of_an_image(kind, photos):
    with pytest.raises(ValueError, match="not by 3"):
        nearfar.select(photos, n=1, labelled=kind(["own/1.png", 3]))


def test_a_number_in_the_place_of_images_to_select_is_named(photos):
    with pytest.raises(ValueError, match="3 is no image"):
        nearfar.select(photos, 3)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_lists_in_any_encoding(encoding, ending, photos):
    names = ["own/M\u00fcller.png", "own/caf\u00e9.png"]
    for number, name in enumerate(names):
        paint(photos / name, 10 + number)
    (photos.parent / "l.txt").write_bytes("".join(n + ending for n in names).encode(encoding))
    nearest = nearfar.search("photos", "l.txt", k=1)
    assert nearest["query"] == names


@pytest.mark.slow
def test_defaults_take_as_many_as_there_are(photos):
    assert len(nearfar.search("photos", "own/1.png")["name"]) == 6
    for by in ("diverse", "typical", "outlier"):
        assert len(nearfar.select("photos", by=by)["name"]) == 7
    near = nearfar.select("photos", "own/1.png", by="near")
    assert len(near["name"]) == 6 and "own/1.png" not in near["name"]
    done = ["own/0.png", "linked/4.png"]
    assert len(nearfar.select("photos", labelled=done)["name"]) == 5
    assert set(nearfar.cluster("photos")["cluster"]) >= {1}
    with pytest.raises(ValueError, match=r"`k` must .* 6, not 10"):
        nearfar.search("photos", "own/1.png", k=10)
    with pytest.raises(ValueError, match=r"`n` must .* 7, not 100"):
        nearfar.select("photos", n=100)


def test_several_folders_are_one_target(photos, capsys):
    for number in range(3):
        paint(photos.parent / "more" / f"{number}.png", number + 20)
    paint(photos.parent / "more" / "copy.png", 1)
    assert main(["duplicates", "photos", "more"]) == 0
    assert "1 of 11 images are copies" in " ".join(capsys.readouterr().err.split())
    assert main(["search", "photos", "more", "own/1.png", "--k", "1"]) == 0
    assert capsys.readouterr().out == f"{photos.parent / 'more/copy.png'}\n"
    for words in ("cluster photos more", "check photos more", "select photos --data more --n 3"):
        assert main(words.split()) == 0, words
    nearest = nearfar.search(["photos", "more"], "own/1.png", k=1)
    assert nearest["name"] == ["copy.png"]
