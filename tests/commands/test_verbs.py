"""The verbs on a tiny run: what they return, what they write."""

import html
import io
import json
import re
import shutil

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from torch.nn.functional import normalize

import nearfar
from nearfar.data import open_images
from nearfar.embeddings.saving import write_embeddings
from nearfar.evaluation import extract
from nearfar.evaluation.results import sentence
from nearfar.maps import Projector, layouts
from nearfar.networks import save_encoder
from nearfar.rendering import shown_on
from nearfar.views import View, ViewPlan
from tests.pictures import noise

pytestmark = pytest.mark.usefixtures("known_speed")


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
    return nearfar.Run(shutil.copytree(trained.path, tmp_path_factory.mktemp("runs") / "halves"))


def test_the_run_folder_is_complete(run):
    files = {path.name for path in run.path.iterdir()}
    assert files >= {
        "config.yaml",
        "metrics.jsonl",
        "checkpoints",
        "encoder.safetensors",
        "config.json",
        "report.html",
    }
    assert json.loads((run.path / "environment.json").read_text())["seed"] == 3
    assert run.settings.method == "sce"
    assert run.verdict.words


def test_a_notebook_shows_the_report(run, tmp_path):
    frame = (
        '<iframe sandbox="allow-scripts" srcdoc="([^"]*)" style="[^"]*" title="report"></iframe>'
    )
    shown = html.unescape(re.fullmatch(frame, run._repr_html_())[1])
    assert shown.endswith((run.path / "report.html").read_text())
    assert shown.startswith('<!doctype html><meta http-equiv="Content-Security-Policy"')
    assert nearfar.Run(tmp_path / "<nothing>")._repr_html_().count("<") == 2


def test_rankme_is_measured_each_time_and_lidar_before_and_after(run):
    measured = [line["health"] for line in run.metrics if "health" in line]
    assert len(measured) == 3 and [health["lidar"] is not None for health in measured] == [
        True,
        False,
        True,
    ]
    for health in measured:
        assert 1 <= health["rankme"] <= min(16, health["embedding_dim"])
        assert (
            health["lidar"] is None or 1 <= health["lidar"] <= 15.1
        )  # 16 images span 15 dimensions about their mean


def test_load_gives_the_encoder_with_its_preprocessing(run, images_file):
    encoder = nearfar.load(run)
    assert not encoder.training
    trained_on = np.load(images_file)["images"] / 255
    images = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    normalised = (images / 255 - trained_on.mean()) / trained_on.std()
    weights = load_file(run.path / "encoder.safetensors")
    with torch.no_grad():
        features = encoder(images)
        torch.testing.assert_close(
            features, encoder.backbone(normalised.float()), rtol=1e-4, atol=1e-5
        )
    assert features.shape == (3, encoder.num_features)
    assert all(
        torch.equal(value, weights[name])
        for name, value in encoder.backbone.net.state_dict().items()
    )


def test_evaluate_compares_with_what_needs_no_training(run):
    console = Console(width=80, record=True, file=io.StringIO(), force_terminal=True)
    with shown_on(console):
        results = nearfar.evaluate(run.path)
    shown = console.export_text(clear=False, styles=False)
    assert list(results) == [
        "largest_class",
        "raw_pixels",
        "colour_histogram",
        "hog",
        "untrained",
        "trained",
    ]
    assert (
        "…" not in shown and "colour histogram │" in shown
    )  # nothing is cut off or wrapped at 80 columns
    assert (
        sentence(results) in " ".join(shown.split())
        and sentence(results) in (run.path / "report.html").read_text()
    )
    assert "\x1b[1m1.000" in console.export_text(styles=True)  # the best are bold
    for row, numbers in results.items():
        few = set() if row == "largest_class" else {"one_label", "five_labels"}
        assert set(numbers) >= {"knn", "linear"} | few
        assert all(0 <= value <= 1 for value in numbers.values())
    assert results["raw_pixels"]["linear"] == 1.0  # bright above or below: one line parts them
    assert run.results == [results]


@pytest.mark.slow
def test_a_run_from_weights_is_compared_with_them(run, images_file, tmp_path):
    """Without any training to speak of, the encoder is its starting weights, and the row says
    so.
    """
    options = dict(epochs=1, batch_size=64, held_out=16, encoder="small", method="simclr", lr=1e-12)
    start = run.path / "encoder.safetensors"
    again = nearfar.pretrain(images_file, out=tmp_path / "run", init=str(start), **options)
    results = nearfar.evaluate(again, protocol=("knn",))
    assert list(results) == [
        "largest_class",
        "raw_pixels",
        "colour_histogram",
        "hog",
        "starting_weights",
        "trained",
    ]
    assert results["starting_weights"] == nearfar.evaluate(run, protocol=("knn",))["trained"]


@pytest.mark.parametrize("ending", ["parquet", "csv", "npz"])
def test_embed_writes_a_row_for_each_image(run, tmp_path, ending):
    path = nearfar.embed(run.path, out=str(tmp_path / f"rows.{ending}")).path
    if ending == "parquet":
        table = pyarrow.parquet.read_table(path)
        assert table.column_names == ["name", "label", "embedding"]
        embeddings = np.array(table["embedding"].to_pylist())
    elif ending == "csv":
        assert path.read_text().count("\n") == 81
        embeddings = np.loadtxt(
            path, delimiter=",", skiprows=1, usecols=range(2, 2 + run.encoder.num_features)
        )
    else:
        embeddings = np.load(path)["embedding"]
    assert embeddings.shape == (80, run.encoder.num_features)
    with pytest.raises(ValueError, match="exists already"):
        nearfar.embed(run.path, out=str(path))


def test_data_that_has_moved_is_to_be_named_anew(run, tmp_path):
    shutil.copytree(run.path, tmp_path / "moved")
    config = tmp_path / "moved" / "config.yaml"
    config.write_text(
        re.sub(r"^data: .*$", "data: /nowhere/photos", config.read_text(), flags=re.MULTILINE)
    )
    with pytest.raises(FileNotFoundError, match=r"data of .*moved was"):
        nearfar.embed(tmp_path / "moved", out=tmp_path / "rows.csv")


def test_columns_that_numpy_has_arguments_for_are_renamed(tmp_path):
    columns = pyarrow.table({"file": ["a"], "allow_pickle": [1], "camera": ["b"]})
    write_embeddings(tmp_path / "rows.npz", ["x"], np.zeros((1, 2), np.float32), None, columns)
    named = {"name", "table_file", "table_allow_pickle", "camera", "embedding"}
    assert set(np.load(tmp_path / "rows.npz")) == named


def test_embed_averages_each_image_with_its_mirror_image(run, tmp_path):
    path = nearfar.embed(run, out=tmp_path / "mirrored.npz", split="all", mirrored=True).path
    encoder, images = (
        nearfar.load(run),
        open_images(run.settings.data, **run.settings.reading).pixels,
    )
    with torch.no_grad():
        expected = torch.stack(
            [encoder(images), encoder(torch.from_numpy(images.numpy()[..., ::-1].copy()))]
        ).mean(0)
    np.testing.assert_allclose(np.load(path)["embedding"], expected.numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="leave out `mirrored`"):
        nearfar.embed(run, out=tmp_path / "map.parquet", map=True, mirrored=True)


@pytest.mark.slow
def test_images_that_are_not_kept_are_cropped_by_workers(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(24):
        Image.fromarray(rng.integers(0, 256, (90, 110, 3), dtype=np.uint8)).save(
            tmp_path / f"{number}.png"
        )
    (tmp_path / "broken.png").write_bytes(b"no image")
    options = dict(
        epochs=2,
        batch_size=8,
        held_out=4,
        image_size=32,
        encoder="small",
        method="simclr",
    )
    run = nearfar.pretrain(
        str(tmp_path), out=str(tmp_path / "run"), cache=False, workers=1, **options
    )
    assert [line["step"] for line in run.metrics if "loss" in line] == [2, 4]
    assert (run.path / "skipped.txt").read_text().startswith("broken.png\t")


def test_load_sees_what_was_trained_on(tmp_path):
    """The features of the files as they are, through `load`, are those that `embed` computes from
    the decoded cache.
    """
    rng = np.random.default_rng(0)
    pixels = np.kron(
        rng.integers(0, 256, (24, 9, 11, 3), dtype=np.uint8),
        np.ones((1, 10, 10, 1), dtype=np.uint8),
    )
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{number:02d}.png")
    options = dict(
        epochs=1,
        batch_size=8,
        held_out=4,
        image_size=32,
        encoder="small",
        method="simclr",
    )
    run = nearfar.pretrain(tmp_path, out=tmp_path / "run", **options)
    embedded = np.load(nearfar.embed(run, out=tmp_path / "rows.npz", split="all").path)["embedding"]
    with torch.no_grad():
        features = nearfar.load(run)(torch.from_numpy(pixels).permute(0, 3, 1, 2)).numpy()
    assert np.abs(features - embedded).max() < 0.02 * np.abs(embedded).max()


def test_views_and_images_of_other_data_are_normalised_alike(images_file, tmp_path, monkeypatch):
    """With views that change nothing a map of other, darker images gets the same features of views
    and of images.
    """
    still = View(scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0)
    options = dict(epochs=1, batch_size=16, encoder="small", method="simclr")
    run = nearfar.pretrain(
        images_file, out=tmp_path / "run", views=ViewPlan("still", (still, still)), **options
    )
    seen = []

    def fit_projector(views, features, **options):
        seen.extend([views[0], features])
        return Projector(features.shape[1])

    monkeypatch.setattr(layouts, "fit_projector", fit_projector)
    darker = np.load(images_file)["images"] // 4
    nearfar.map(run, darker, out=tmp_path / "map.html", layout="projector", num_views=2)
    assert torch.nn.functional.cosine_similarity(*seen).min() > 0.9999


@pytest.mark.slow
def test_a_saved_encoder_may_take_larger_images_than_the_run_was_trained_on(tmp_path):
    """A run at 8 px whose encoder is replaced by one that takes 24: all that reads images for it
    opens them at 24 px, and its features are those of images opened so.
    """
    chance = np.random.default_rng(0)
    for number in range(24):
        folder = tmp_path / "photos" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = chance.integers(0, 120, (24, 24, 3), dtype=np.uint8)
        pixels[:: 1 + number % 2] += 120
        Image.fromarray(pixels).save(folder / f"{number}.png")
    options = dict(
        epochs=1, batch_size=8, held_out=0, encoder="tiny", precision="32-true", workers=0
    )
    photos = str(tmp_path / "photos")
    run = nearfar.pretrain(photos, out=tmp_path / "run", image_size=8, **options)
    encoder = nearfar.join([run, "edges"], image_size=24)
    save_encoder(run.path, encoder)
    images = open_images(photos, image_size=24)
    expected = extract(encoder, images)
    nearfar.embed(run, out=tmp_path / "all.npz")
    assert np.allclose(np.load(tmp_path / "all.npz")["embedding"], expected, atol=1e-6)
    hits = nearfar.search(run, "a/0.png", k=3)
    nearest = (normalize(expected, dim=1) @ normalize(expected, dim=1)[0]).argsort(descending=True)
    assert hits["name"] == [images.names[row] for row in nearest[1:4]]
    measured = nearfar.evaluate(run, protocol=["knn_3"])
    assert measured.on.image_size == 24 and measured["trained"]["knn_3"] == 1.0
    assert list(measured)[-3:] == ["untrained", "trained_alone", "trained"]
    assert nearfar.export(run, to="torch").is_file()
    assert nearfar.map(run, epochs=5).path.is_file()


@pytest.mark.parametrize("channels", [None, 1, 3])
def test_gray_images_in_three_channels_are_named_at_the_start(tmp_path, channels, log):
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(16):
        Image.fromarray(noise(number)[..., :1].repeat(3, 2)).save(photos / f"{number}.jpg")
    short = dict(epochs=1, batch_size=8, held_out=0, encoder="tiny", channels=channels)
    nearfar.pretrain(photos, out=tmp_path / "run", **short)
    lines = log.lines
    gray = [line for line in lines if line.startswith("the images are gray")]
    assert len(gray) == (channels is None)
    if gray:
        assert gray[0].endswith(": pretrain with `channels=1`")
        assert lines.index(gray[0]) < next(i for i, line in enumerate(lines) if "simclr on" in line)
