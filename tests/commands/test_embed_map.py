"""The table of a map, read back as other tools read it."""

import json
import shutil

import datasets
import numpy as np
import pytest
import torch
from rich.console import Console

import nearfar
from nearfar.cli import main
from nearfar.data.images import sample
from nearfar.maps import load_map


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    quiet = Console(quiet=True)
    run = nearfar.pretrain(
        "digits", limit=128, epochs=1, batch_size=32, out=tmp_path_factory.mktemp("runs") / "run", console=quiet
    )
    nearfar.map_images(run, split="test", limit=200, num_views=2, epochs=2, console=quiet)
    return run


def test_hugging_face_datasets_reads_pictures_places_and_neighbours(run, tmp_path, quiet):
    """x and y as on the map, pictures of the very images, and the nearest by a plain product."""
    nearfar.embed(run, "digits", split="test", out=tmp_path / "rows.parquet", map=True, console=quiet)
    rows = datasets.Dataset.from_parquet(str(tmp_path / "rows.parquet"), cache_dir=str(tmp_path / "cache"))
    assert set(rows.column_names) == {"name", "label", "x", "y", "image", "neighbors", "embedding"}
    unit = torch.nn.functional.normalize(torch.tensor(rows["embedding"]), dim=1)
    cosine = unit @ unit.T
    cosine.fill_diagonal_(-2)
    expected = cosine.topk(15)
    distances = torch.tensor([one["distances"] for one in rows["neighbors"]])
    torch.testing.assert_close(distances, 1 - expected.values, atol=1e-5, rtol=1e-4)
    ids = torch.tensor([one["ids"] for one in rows["neighbors"]])
    torch.testing.assert_close(1 - cosine.gather(1, ids), distances, atol=1e-5, rtol=1e-4)
    images = np.stack([np.asarray(one.convert("L")) for one in rows[:5]["image"]])
    assert images.shape[1:] == (8, 8) and len({image.tobytes() for image in images}) == 5
    again = nearfar.load(run)(torch.from_numpy(images)[:, None])
    torch.testing.assert_close(again, torch.tensor(rows[:5]["embedding"]), atol=1e-3, rtol=1e-3)


def test_places_are_those_of_the_map_and_of_its_function(run, tmp_path, quiet):
    onto = run.path / "map.safetensors"
    saved = load_map(onto)
    nearfar.embed(run, "digits", split="test", out=tmp_path / "rows.parquet", map=True, console=quiet)
    rows = datasets.Dataset.from_parquet(str(tmp_path / "rows.parquet"), cache_dir=str(tmp_path / "cache"))
    places = torch.tensor([rows["x"], rows["y"]]).T
    torch.testing.assert_close(places[sample(360, 200, 0)], saved.places, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(places, saved.function(torch.tensor(rows["embedding"])), atol=1e-4, rtol=1e-4)


def test_what_cannot_be_is_one_line(run, tmp_path, capsys):
    for words, told in (
        (["--out", "rows.csv"], ".parquet"),
        (["--out", "rows.parquet"], "nearfar map"),
    ):
        place = run.path if words[1].endswith("csv") else _without_map(run, tmp_path)
        words[1] = str(tmp_path / words[1])
        assert main(["embed", str(place), *words, "--map", "--json"]) == 2
        assert told in json.loads(capsys.readouterr().out)["error"]
    assert not list(tmp_path.glob("rows*"))


def _without_map(run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "copy")
    (copy / "map.safetensors").unlink()
    return copy


def test_a_finetuned_map_of_an_encoder_of_ones_own_places_other_images(tmp_path, quiet):
    """The layout moves the encoder: images are placed by what it became, which needs the module that was trained."""
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16))
    settings = dict(limit=64, epochs=1, batch_size=32, encoder=net, console=quiet)
    run = nearfar.pretrain("digits", out=tmp_path / "run", **settings)
    own = dict(split="test", encoder=net, console=quiet)
    nearfar.map_images(run, limit=100, layout="finetune", num_views=2, epochs=1, **own)
    nearfar.embed(run, "digits", out=tmp_path / "rows.parquet", map=True, **own)
    rows = datasets.Dataset.from_parquet(str(tmp_path / "rows.parquet"), cache_dir=str(tmp_path / "cache"))
    saved = load_map(run.path / "map.safetensors")
    places = torch.tensor([rows["x"], rows["y"]]).T
    torch.testing.assert_close(places[sample(360, 100, 0)], saved.places, atol=1e-3, rtol=1e-3)
    assert (
        saved.function(torch.tensor(rows["embedding"])) - places
    ).abs().max() > 1e-3  # the old encoder places elsewhere
