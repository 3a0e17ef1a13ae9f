"""A verb from outside the package: thirty lines, and it works on everything and everywhere."""

import csv
import importlib.util
import json
import shlex

import numpy as np
import pytest
from PIL import Image

import nearfar
from nearfar.cli import main

BRIGHTEST = '''
"""A verb of another package.

nearfar brightest photos/ --n 5
"""
import torch

from nearfar.embeddings import Embeddings
from nearfar.tools import tool
from nearfar.tools.result import Result


@tool(page="brightest", data="images to look through", lists=True)
def brightest(photos: Embeddings, *, n: int = 2) -> Result:
    """Find the brightest images.

    Args:
        n: number of images.
    """
    pixels = photos.images.gather(torch.arange(len(photos))).float()
    brightness = pixels.mean((1, 2, 3))
    rows = brightness.argsort(descending=True)[:n].tolist()
    columns = photos.columns(rows) | {"brightness": brightness[rows].tolist()}
    return Result(photos, columns, rows=rows, title="Brightest images", lines=[f"{n} images"])
'''


@pytest.fixture(scope="module", autouse=True)
def brightest(tmp_path_factory):
    """The verb, in a file that is imported as another package would be."""
    path = tmp_path_factory.mktemp("other") / "brightest_of_others.py"
    path.write_text(BRIGHTEST.lstrip())
    spec = importlib.util.spec_from_file_location("brightest_of_others", path)
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield
    from nearfar.tools import registry

    del registry._TOOLS["brightest"], sys.modules[spec.name]
    vars(nearfar).pop("brightest", None)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Six gray images in two classes, of brightness 0, 20, 40, 60, 80 and 100, sorted by class."""
    monkeypatch.chdir(tmp_path)
    for number in range(6):
        place = tmp_path / "photos" / ("dark" if number < 3 else "light")
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.full((16, 16), 20 * number, np.uint8)
        pixels[:8] += number  # no image is plain
        Image.fromarray(pixels).save(place / f"{number}.png")
    return tmp_path / "photos"


def test_it_has_at_most_thirty_lines():
    assert len(BRIGHTEST.strip().splitlines()) <= 30


def test_it_works_on_a_folder_and_writes_its_page(folder):
    brightest = nearfar.brightest("photos")
    assert brightest["name"] == ["light/5.png", "light/4.png"]
    assert brightest.path.name == "photos-brightest.html"
    page = brightest.path.read_text()
    assert "Brightest images" in page and "light/5.png" in page and "data:image/" in page
    rows = list(csv.DictReader(brightest.path.with_suffix(".csv").open()))
    assert [row["name"] for row in rows] == brightest["name"]


def test_the_command_that_makes_it_again_does_so(folder):
    brightest = nearfar.brightest("photos", n=3, out="a page.html")
    words = shlex.split(brightest.again())
    assert words == ["nearfar", "brightest", "photos", "--n", "3", "--out", "a page-new.html"]
    assert main(words[1:]) == 0 and (folder.parent / "a page-new.csv").is_file()
    assert "--n" not in brightest.again("n") and brightest.again("n").startswith(
        "nearfar brightest"
    )


def test_it_works_on_a_run_and_is_its_method(trained, tmp_path):
    run = nearfar.Run(trained.path)
    brightest = run.brightest(n=3, out=tmp_path / "page.html")
    assert len(brightest["name"]) == 3 and (tmp_path / "page.html").is_file()
    assert "brightest" in dir(run)


def test_it_works_on_vectors_with_images_and_on_embeddings(folder):
    photos = nearfar.embed("photos")
    photos.save("photos.parquet")
    alone = photos.brightest(n=1)
    assert alone["name"] == ["light/5.png"] and alone.path is None
    beside = nearfar.brightest("photos.parquet", "photos", n=1, out="vectors.html")
    assert beside["name"] == ["light/5.png"] and beside.path.is_file()


def test_it_works_on_the_command_line(folder, capsys):
    assert main(["brightest", "--help"]) == 0
    help_page = capsys.readouterr().out
    assert "Find the brightest images" in help_page and "number of images" in help_page
    assert "nearfar brightest photos/ --n 5" in help_page and "--encoder" in help_page
    assert main(["brightest", "photos", "--n", "1", "--out", "page.html", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["name"] == ["light/5.png"] and (folder.parent / "page.html").is_file()
    assert main(["brightest", "photos", "--n", "2", "--out", "other.html"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        str(folder / "light" / f"{number}.png") for number in (5, 4)
    ]
    assert main(["--help"]) == 0 and "brightest" in capsys.readouterr().out


def test_a_mistake_is_one_line(folder, complaint):
    assert "--k" in complaint("brightest", "photos", "--k", "3")
    (folder.parent / "page.html").write_text("mine")
    assert "page.html" in complaint("brightest", "photos", "--out", "page.html")
