"""The page of views, read back: its pictures are the pixels that training sees."""

import base64
import io
import re
import time

import numpy as np
import pytest
import yaml
from PIL import Image

import nearfar
from nearfar.pages.template import section
from nearfar.training import job as training_job
from nearfar.training.prepare import prepare
from nearfar.training.settings import Settings
from nearfar.views import View, ViewPlan, plan

pytestmark = pytest.mark.usefixtures("known_speed")

WHOLE = View(scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0)


def pictures_in(page):
    """Alternative text to pixels of every picture in a page."""
    pictures = re.findall(r'<img[^>]*alt="([^"]*)" src="data:image/\w+;base64,([^"]*)"', page)
    return {
        words: np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
        for words, data in pictures
    }


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(20):
        tiles = np.kron(
            rng.integers(0, 256, (7, 9, 3), dtype=np.uint8), np.ones((40, 40, 1), dtype=np.uint8)
        )
        Image.fromarray(tiles).save(tmp_path / "photos" / f"<{number:02d}>.png")
    return tmp_path / "photos"


def test_the_title_says_what_the_page_shows(photos, tmp_path):
    short = dict(epochs=1, batch_size=8, held_out=0, encoder="tiny", image_size=32)
    run = nearfar.pretrain(photos, out=tmp_path / "run", method="byol", **short)
    for out, options, title in (
        (run.path / "views.html", {}, "Views of photos by byol"),
        (tmp_path / "a.html", {"data": photos, "method": "moco-v2"}, "Views of photos by moco-v2"),
        (tmp_path / "b.html", {"data": photos}, "Views of photos by simclr"),
        (tmp_path / "c.html", {"data": run}, "Views of photos by byol"),
    ):
        if options:
            nearfar.show_views(**options, out=out, images=2, samples=1)
        page = out.read_text(encoding="utf-8")
        assert f"<title>{title}</title>" in page and f"<h1>{title}</h1>" in page, options


@pytest.mark.parametrize("options", [{"views": "microscope"}, {"out": "v.html"}, {"channels": 1}])
def test_options_without_images_are_refused(options, tmp_path, monkeypatch):
    """They were ignored, and the presets listed."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="name the images"):
        nearfar.show_views(**options)
    assert "microscope" in nearfar.show_views() and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_every_page_names_the_splits(photos, tmp_path):
    for number, image in enumerate(sorted(photos.iterdir())):
        place = photos / ("test" if number < 6 else "train")
        place.mkdir(exist_ok=True)
        image.rename(place / f"{number}.png")
    training_split, out = f"{photos}, the split train of train, test", tmp_path / "page.html"
    whole = f"{photos}, the splits train, test"
    image = photos / "train" / "8.png"
    nearfar.map(photos, out=out)
    assert training_split in out.read_text(encoding="utf-8")
    out.unlink()
    for verb, given, words in (
        (nearfar.search, [image], f"among 14 images of {training_split}"),
        (nearfar.select, [], f"14 images of {training_split}"),
        (nearfar.cluster, [], f"{training_split}: 14 images in"),
        (nearfar.duplicates, [], f"among 20 images of {whole}"),
        (nearfar.check, [], f"20 images of {whole}"),
        (nearfar.show_views, [], "the split train of train, test"),
    ):
        page = tmp_path / f"{verb.__name__}.html"
        verb(photos, *given, out=page)
        assert words in page.read_text(encoding="utf-8"), verb.__name__


def test_a_page_of_photographs(photos, tmp_path):
    page = nearfar.show_views(photos, out=tmp_path / "page.html", views="photographs")
    text = page.read_text(encoding="utf-8")
    pictures = pictures_in(text)
    assert len(pictures) == 12 * (1 + 2 * 4)
    assert {picture.shape for picture in pictures.values()} == {
        (128, 128, 3)
    }  # views of 149 px: two thirds of 224
    assert text.count("<h1>Views of photos by simclr</h1>") == 1 and "149 px" in text
    assert "20\u2013100 % of the area" in text and "hue ±36°" in text
    assert not re.search(r"https?://|<link|@import|<script|src=\"(?!data:)|<\d\d>", text)
    assert "default-src 'none'" in text
    assert page.stat().st_size < 3e6
    with pytest.raises(ValueError, match="exists already"):
        nearfar.show_views(photos, out=page)


def test_the_pictures_are_the_views(tmp_path):
    """Views that change nothing, and views that are turned, of small images: exact, whatever the
    page does to them.
    """
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    turning = ViewPlan("turning", (WHOLE, View(**{**vars(WHOLE), "rot90": 1.0})))
    page = nearfar.show_views(
        images, out=tmp_path / "page.html", views=turning, samples=2, images=3
    )
    pictures = pictures_in(page.read_text(encoding="utf-8"))
    for number in (0, 2, 5):
        name, image = f"{number:06d}", images[number]
        if number == 2:  # of 6 images, 0, 2 and 5 are the nearest to even steps
            assert f"{name}, as it is" in pictures
        np.testing.assert_array_equal(pictures[f"{name}, as it is"], image)
        for sample in (1, 2):
            np.testing.assert_array_equal(pictures[f"{name}, view 1, sample {sample}"], image)
            turned = pictures[f"{name}, view 2, sample {sample}"]
            assert any(np.array_equal(turned, np.rot90(image, quarters)) for quarters in (1, 2, 3))


def test_small_crops_are_shown_small(photos, tmp_path):
    options = dict(method="lorac", views="microscope", images=1, samples=1)
    text = nearfar.show_views(photos, out=tmp_path / "page.html", **options).read_text(
        encoding="utf-8"
    )
    assert (
        re.findall(r'width="(\d+)"', text) == ["96"] * 4 + ["41"] * 2
    )  # original, 3 large, 2 small: 64 of 149 px
    assert (
        "microscope<small>views 1, 2, 3</small>" in text
        and "microscope-small<small>views 4, 5</small>" in text
    )


def test_a_function_of_ones_own_is_shown(tmp_path):
    def inverted(pixels):
        return [pixels, 255 - pixels]

    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8), dtype=np.uint8)
    page = nearfar.show_views(images, out=tmp_path / "page.html", views=inverted)
    pictures = pictures_in(page.read_text(encoding="utf-8"))
    np.testing.assert_array_equal(pictures["000003, view 2, sample 4"][..., 0], 255 - images[3])


@pytest.mark.slow
def test_a_run_has_a_page_and_a_report_before_training(images_file, tmp_path, monkeypatch):
    seen = {}

    def launch(job, *given, **named):
        seen.update(
            {
                path.name: path.read_text(encoding="utf-8")
                for path in (tmp_path / "run").glob("*.html")
            }
        )
        real(job, *given, **named)

    real = training_job.launch
    monkeypatch.setattr(training_job, "launch", launch)
    options = dict(
        epochs=1,
        batch_size=16,
        held_out=16,
        encoder="small",
        method="lorac",
        views="grayscale",
    )
    run = nearfar.pretrain(images_file, out=tmp_path / "run", **options)
    assert run.settings.views == "grayscale+grayscale+grayscale+grayscale-small+grayscale-small"
    pictures = pictures_in(seen["views.html"])
    own, in_report = (
        re.search(r'<section class="views".*?</section>', seen[f"{page}.html"], re.DOTALL)
        for page in ("views", "report")
    )
    assert own[0] == in_report[0]
    assert len(pictures) == 5 * (1 + 5)
    stored = np.load(images_file)["images"]
    np.testing.assert_array_equal(pictures["000079, as it is"][..., 0], stored[79])
    assert (
        pictures_in(seen["report.html"]).keys() == pictures.keys()
        and "No verdict" in seen["report.html"]
    )
    assert (
        pictures_in((run.path / "report.html").read_text(encoding="utf-8")).keys()
        == pictures.keys()
    )

    text = nearfar.show_views(run.path, out=tmp_path / "a.html").read_text(encoding="utf-8")
    assert "grayscale-small<small>views 4, 5</small>" in text and len(pictures_in(text)) == 12 * (
        1 + 5 * 4
    )
    text = nearfar.show_views(run, out=tmp_path / "b.html", views="scans").read_text(
        encoding="utf-8"
    )
    assert "scans-small<small>views 4, 5</small>" in text
    text = nearfar.show_views(run, out=tmp_path / "c.html", method="simclr").read_text(
        encoding="utf-8"
    )
    assert "grayscale<small>views 1, 2</small>" in text


@pytest.mark.slow
def test_a_preset_is_saved_by_the_names_of_its_views(images_file, tmp_path):
    options = dict(epochs=1, batch_size=16, held_out=16, encoder="small", method="sce")
    run = nearfar.pretrain(images_file, out=tmp_path / "run", views="documents", **options)
    assert (
        yaml.safe_load((run.path / "config.yaml").read_text())["views"]
        == "documents+documents-weak"
    )
    again = nearfar.pretrain(
        images_file, out=tmp_path / "again", views=run.settings.views, **options
    )
    assert [line.get("loss") for line in again.metrics] == [
        line.get("loss") for line in run.metrics
    ]


def in_words(view, size, channels):
    """The words of the page on a view, by operation."""
    shown = section(
        "operations",
        view={**vars(view), "name": "a", "numbers": [1], "size": size},
        channels=channels,
    )
    return {
        name: words for name, words in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", shown, re.DOTALL)
    }


def test_numbers_in_words():
    words = in_words(plan("grayscale", 8, 1).views[0], 8, 1)
    assert words["Crop"] == "55\u2013100 % of the area" and words["Size"] == "8 px"
    assert words["Moved"].startswith("80\u00a0%: turned by up to 10°,<br>shifted by up to ")
    assert "zoomed 0.85\u20131.15 times" in words["Moved"]
    assert words["Light"] == "80\u00a0%: brightness ±30\u00a0%,<br>contrast ±40\u00a0%"
    assert words["Noise"] == "30\u00a0%: 0\u20138 % of the full range"
    assert not {"Flipped left to right", "Without colour", "Blurred"} & set(words)
    words = in_words(plan("textures", 100, 3).views[0], 100, 3)
    assert (
        words["Crop"] == "33 % of the area" and words["Turned by 90°, 180° or 270°"] == "75\u00a0%"
    )
    assert set(in_words(WHOLE, 8, 3)) == {"Size"}


@pytest.mark.parametrize(
    ("side", "crop_size", "name"), [(100, 64, "photographs"), (32, 24, "tiny")]
)
def test_the_page_shows_the_views_that_training_takes(side, crop_size, name, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (300, side, side, 3), dtype=np.uint8)
    page = nearfar.show_views(images, images=2, samples=1, out=tmp_path / "views.html")
    job, _ = prepare(Settings(images, epochs=1), time.perf_counter())
    assert job.settings.views == f"{name}+{name}" and job.settings.crop_size == crop_size
    assert f"<h3>{name}<small>" in page.read_text()
