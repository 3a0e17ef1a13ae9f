"""Runs on images of more than 8 bits or of many channels, from one end to the other: their range is
the run's.
"""

import numpy as np
import pytest
import torch
from PIL import Image

import nearfar
from nearfar.data import open_images
from nearfar.run import Run
from nearfar.training.run_header import resume_plan

pytestmark = pytest.mark.usefixtures("known_speed")

tifffile = pytest.importorskip("tifffile")


def planes(number, channels, high):
    """A coarse random image [channels, 16, 16] of numbers up to `high`, with one side bright: two
    kinds.
    """
    coarse = np.random.default_rng(number).integers(0, high // 2, (channels, 4, 4))
    fine = np.kron(coarse, np.ones((4, 4), int))
    fine[:, (slice(0, 8), slice(8, 16))[number % 2]] += high // 2
    return fine.astype(np.uint16)


def trained(data, tmp_path, **options):
    usual = dict(epochs=1, batch_size=16, held_out=8, encoder="small", seed=0)
    return nearfar.pretrain(str(data), out=tmp_path / "run", **usual | options)


def embedded(run, data, path):
    nearfar.embed(run, str(data), out=path)
    with np.load(path) as written:
        return {
            str(name): row for name, row in zip(written["name"], written["embedding"], strict=True)
        }


def test_other_images_are_seen_in_the_range_of_the_run(tmp_path, log):
    """A darker folder gives the features that the encoder gives its raw numbers, not those of a
    range of its own.
    """
    for folder, high in (("bright", 4096), ("dark", 400)):
        (tmp_path / folder).mkdir()
        for i in range(40):
            Image.fromarray(planes(i, 1, high)[0]).save(tmp_path / folder / f"{i:02d}.png")
    run = trained(tmp_path / "bright", tmp_path)
    value_range = run.settings.value_range
    assert value_range == run.encoder.value_range == nearfar.load(run).value_range
    assert f"values from {value_range[0]:g} to {value_range[1]:g}" in log.text
    assert 1500 < value_range[1] < 4096
    raw = torch.from_numpy(np.stack([planes(i, 1, 400) for i in range(40)]))
    with torch.no_grad():
        expected = nearfar.load(run)(raw).numpy()
        as_floats = nearfar.load(run)(
            (raw.float() - value_range[0]).div(value_range[1] - value_range[0]).clamp(0, 1)
        )
    np.testing.assert_allclose(expected, as_floats, atol=1e-6)
    features = embedded(run, tmp_path / "dark", tmp_path / "dark.npz")
    np.testing.assert_allclose(
        [features[f"{i:02d}.png"] for i in range(40)], expected, atol=2e-3, rtol=1e-3
    )
    rows = nearfar.search(run, str(tmp_path / "dark" / "03.png"), k=1)
    assert len(rows["name"]) == 1


@pytest.mark.slow
def test_thirteen_channels_from_files_to_every_page(tmp_path, log):
    (tmp_path / "bands").mkdir()
    for i in range(40):
        tifffile.imwrite(
            tmp_path / "bands" / f"{i:02d}.tif", planes(i, 13, 3000), photometric="minisblack"
        )
    run = trained(tmp_path / "bands", tmp_path, show_channels=[3, 2, 1])
    assert run.settings.channels == 13 and len(run.settings.value_range) == 26
    assert "13 channels (views: channels" in log.text
    assert run.encoder.num_features == len(
        next(iter(embedded(run, tmp_path / "bands", tmp_path / "e.npz").values()))
    )
    images = open_images(str(tmp_path / "bands"), **run.settings.reading)
    assert images.shown == [2, 1, 0] and images.value_range == run.settings.value_range
    nearfar.map(run, out=tmp_path / "map.html", epochs=1)
    assert (run.path / "report.html").is_file() and (run.path / "views.html").is_file()
    settings = Run(run.path).settings
    assert resume_plan(settings, {}).images.value_range == settings.value_range


def test_queries_lose_bits_and_colours_with_a_word(tmp_path, log):
    """As the data of a run does; one file of each kind among three."""
    (tmp_path / "own").mkdir()
    for number in range(24):
        image = Image.fromarray(planes(number, 1, 256)[0].astype(np.uint8))
        image.save(tmp_path / f"own/{number}.png")
    run = trained(tmp_path / "own", tmp_path, channels=1, held_out=0)
    files = [tmp_path / "asked" / name for name in ("wide.png", "red.png", "gray.png")]
    files[0].parent.mkdir()
    Image.fromarray(planes(0, 1, 4096)[0]).save(files[0])
    Image.new("RGB", (16, 16), "red").save(files[1])
    Image.new("RGB", (16, 16), "gray").save(files[2])
    assert len(nearfar.search(run, list(map(str, files)), k=1)["name"]) == 3
    assert "1 of 3 query images hold" in log.text and "1 of 3 query images are" in log.text


def test_views_are_shown_in_the_range_that_is_asked_for(tmp_path):
    np.save(tmp_path / "a.npy", np.stack([planes(i, 1, 4096) for i in range(20)]))
    pages = [
        nearfar.show_views(
            str(tmp_path / "a.npy"), value_range=value_range, out=tmp_path / f"{i}.html"
        )
        for i, value_range in enumerate(([0.0, 4096.0], [0.0, 65535.0], "full"))
    ]
    low, high, full = (page.read_text() for page in pages)
    assert low != high and high == full
