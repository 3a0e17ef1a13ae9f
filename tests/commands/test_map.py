"""`nearfar map` from end to end: every layout, how true it is, and new images on an old map."""

import base64
import json
import re
import shutil

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

import nearfar
from nearfar.cli import main
from nearfar.data import open_images
from nearfar.data.images import sample
from nearfar.evaluation import extract
from nearfar.maps import load_map, map_quality, projector
from nearfar.tools.map import page as page_module
from nearfar.tools.map import result

OPTIONS = dict(
    epochs=6, batch_size=16, held_out=16, encoder="small", method="simclr", precision="32-true"
)


@pytest.fixture(scope="module")
def run(images_file, tmp_path_factory):
    return nearfar.pretrain(
        images_file,
        out=tmp_path_factory.mktemp("runs") / "r",
        **OPTIONS,
    )


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Twelve further images of the two kinds, bright above and below."""
    rng = np.random.default_rng(7)
    images = rng.integers(0, 80, (12, 8, 8), dtype=np.uint8)
    images[::2, :4] += 120
    images[1::2, 4:] += 120
    path = tmp_path_factory.mktemp("other") / "other.npz"
    np.savez(path, images=images)
    return str(path)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Of the projector that is trained alone."""
    monkeypatch.setattr(projector, "LEAST_STEPS", 40)


def described(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))[1])


def drawn(page):
    """Numbers, note and data of a map, from its files."""
    note = re.findall(r'<p id="note">(.*?)</p>', page.read_text(encoding="utf-8"))[0]
    return json.loads(page.with_suffix(".json").read_text()), note, described(page)


def numbers_of(data, part, kind):
    return np.frombuffer(base64.b64decode(data["parts"][part]["bytes"]), kind)


def classes(data, name):
    """The class of each image in a column."""
    [place] = [i for i, column in enumerate(data["columns"]) if column["name"] == name]
    return [
        data["columns"][place]["classes"][code]["name"]
        for code in numbers_of(data, f"column-{place}", "<u2")
    ]


def test_images_that_are_on_the_map_already_are_not_counted_as_new(run, tmp_path, images_file):
    with np.load(images_file) as known:
        pixels = next(array for array in map(known.get, known.files) if array.ndim > 2)
    for number, image in enumerate([*pixels[:5], 255 - pixels[0]]):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    (tmp_path / "old").mkdir()
    for number in range(4):
        shutil.copy(tmp_path / f"{number}.png", tmp_path / "old")
    page = nearfar.map(run, tmp_path / "old", out=tmp_path / "m.html", epochs=2).path
    new = [str(tmp_path / f"{number}.png") for number in (2, 3, 4, 5)]
    note = drawn(nearfar.map(run, new, add_to=page, out=tmp_path / "n.html").path)[1]
    assert note.startswith("4 images among 4, 2 of them ")


def test_few_epochs_shorten_both_stages_of_a_finetuned_map(run, bars, tmp_path):
    """80 images are one batch: 40 steps of the projector alone by default, a tenth of them here."""
    nearfar.map(run, out=tmp_path / "m.html", layout="finetune", num_views=2, epochs=2)
    lengths = [of for title, done, of in bars if title == "laying out the map" and done == of]
    assert lengths == [4, 2]


def test_a_finetuned_map_of_a_single_image_is_refused_before_its_features(run, tmp_path):
    single = nearfar.embed(run, np.zeros((1, 8, 8), np.uint8))
    with pytest.raises(ValueError, match="two images"):
        nearfar.map(single, out=tmp_path / "m.html", layout="finetune")
    assert "features" not in vars(single)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["projector", "finetune", "cluster-embedding"])
def test_each_layout_says_how_true_it_is_and_takes_new_images(
    layout, run, other, images_file, tmp_path
):
    options = dict(num_views=2) if layout != "cluster-embedding" else {}
    page = nearfar.map(run, out=tmp_path / "m.html", layout=layout, epochs=10, **options).path
    numbers, note, data = drawn(page)
    saved = load_map(tmp_path / "m.safetensors")
    images = open_images(images_file, image_size=8, channels=1)
    quality = map_quality(extract(run.encoder, images), saved.coordinates, images.labels)
    assert numbers.pop("layout") == layout
    assert numbers == pytest.approx(quality.numbers(), rel=1e-5)
    assert note == f"The map {quality.words}"
    assert np.allclose(numbers_of(data, "points", "<f4").reshape(-1, 2), saved.coordinates)
    assert (saved.backbone is not None) == (layout == "finetune")

    own = nearfar.map(run, images_file, add_to=page, out=tmp_path / "own.html").path
    again = np.array([[point["x"], point["y"]] for point in drawn(own)[0]["new"]])
    apart = np.linalg.norm(again - saved.coordinates.numpy(), axis=1)
    # a net places an image of the map where it was
    tolerance = 1e-4 if layout != "cluster-embedding" else 0.5
    assert np.median(apart) < tolerance * float(saved.coordinates.std())

    placed = nearfar.map(
        run, other, add_to=tmp_path / "m.safetensors", out=tmp_path / "n.html"
    ).path
    numbers, note, data = drawn(placed)
    assert len(numbers["new"]) == 12 and data["count"] == 92
    assert np.allclose(numbers_of(data, "points", "<f4").reshape(-1, 2)[:80], saved.coordinates)
    assert classes(data, "label")[-12:] == ["new images"] * 12
    assert note.startswith("12 new images among 80, with ")
    nearest = torch.cdist(
        torch.tensor([[point["x"], point["y"]] for point in numbers["new"]]), saved.coordinates
    ).argmin(1)
    assert (images.labels[nearest.numpy()] == np.arange(12) % 2).mean() >= 10 / 12


@pytest.mark.slow
def test_columns_of_new_and_old_images_colour_the_map(run, other, tmp_path):
    options = dict(columns=tmp_path / "few.csv")
    (tmp_path / "few.csv").write_text("name,site\n000007,north\n000075,south\n")
    page = nearfar.map(
        run, out=tmp_path / "m.html", layout="cluster-embedding", epochs=2, **options
    ).path
    _, _, data = drawn(
        nearfar.map(run, other, add_to=page, out=tmp_path / "n.html", **options).path
    )
    named = [
        pair
        for pair in zip(data["parts"]["names-0"], classes(data, "site"), strict=True)
        if pair[1] != "none"
    ]
    assert named == [
        ("000007", "north"),
        ("000075", "south"),
        ("000007", "north"),
    ]  # the last is new
    (tmp_path / "few.csv").write_text("name,site\nnowhere,north\n")
    with pytest.raises(ValueError, match="column 'name'"):
        nearfar.map(run, other, add_to=page, out=tmp_path / "o.html", **options)


def test_maps_of_few_and_many_images_carry_columns(run, tmp_path, monkeypatch):
    """With 80 images as if they were too many for a page."""
    (tmp_path / "about.csv").write_text("name,site\n000007,north\n000009,south\n")
    options = dict(epochs=1, columns=tmp_path / "about.csv")
    data = drawn(nearfar.map(run, **options).path)[2]
    shown = [column["name"] for column in data["columns"]]
    assert shown == ["label", "site", "outlierness", "density", "positive-pair retrieval", "kept"]
    site, retrieved = classes(data, "site"), classes(data, "positive-pair retrieval")
    assert dict(zip(data["parts"]["names-0"], site, strict=True))["000007"] == "north"
    assert site.count("none") == 78 and set(retrieved) <= {"yes", "no"}
    assert data["neighbours"]["k"] == 15

    monkeypatch.setattr(page_module, "MOST_IMAGES", 50)
    monkeypatch.setattr(result, "MOST_IMAGES", 50)
    page = nearfar.map(run, **options).path
    assert page == run.path / "map" / "index.html" and not (run.path / "map.html").exists()
    assert [column["name"] for column in described(page)["columns"]][:2] == ["label", "site"]
    assert '<a href="map/index.html">' in (run.path / "report.html").read_text(encoding="utf-8")
    page = nearfar.map(run, out=tmp_path / "elsewhere", **options).path
    assert page == tmp_path / "elsewhere" / "index.html" and (tmp_path / "elsewhere.png").is_file()
    with pytest.raises(ValueError, match="elsewhere exists already"):
        nearfar.map(run, out=tmp_path / "elsewhere", **options)


def table(path, tmp_path):
    return datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))


def test_hugging_face_datasets_reads_the_images_coordinates_and_neighbours_of_a_map(run, tmp_path):
    """x and y as on the map and by its function, thumbnails of the very images, and the nearest by
    a plain product.
    """
    nearfar.map(run, limit=50, epochs=2)
    rows = table(nearfar.embed(run, out=tmp_path / "rows.parquet", map=True).path, tmp_path)
    assert set(rows.column_names) == {"name", "label", "x", "y", "image", "neighbors", "embedding"}
    saved, features = load_map(run.path / "map.safetensors"), torch.tensor(rows["embedding"])
    coordinates = torch.tensor([rows["x"], rows["y"]]).T
    torch.testing.assert_close(
        coordinates[sample(80, 50, 0)], saved.coordinates, atol=1e-3, rtol=1e-3
    )
    torch.testing.assert_close(coordinates, saved.function(features), atol=1e-4, rtol=1e-4)
    unit = torch.nn.functional.normalize(features, dim=1)
    cosine = (unit @ unit.T).fill_diagonal_(-2)
    distances = torch.tensor([neighbours["distances"] for neighbours in rows["neighbors"]])
    ids = torch.tensor([neighbours["ids"] for neighbours in rows["neighbors"]])
    torch.testing.assert_close(distances, 1 - cosine.topk(15).values, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(distances, 1 - cosine.gather(1, ids), atol=1e-5, rtol=1e-4)
    images = np.stack([np.asarray(image.convert("L")) for image in rows[:5]["image"]])
    assert images.shape == (5, 8, 8)
    again = nearfar.load(run)(torch.from_numpy(images)[:, None])
    torch.testing.assert_close(again, features[:5], atol=1e-3, rtol=1e-3)


@pytest.mark.slow
def test_a_finetuned_map_of_an_encoder_of_ones_own_places_other_images(images_file, tmp_path):
    """The layout moves the encoder: coordinates come from the encoder of the map, which needs the
    module.
    """
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16))
    own = nearfar.pretrain(
        images_file, out=tmp_path / "run", **{**OPTIONS, "epochs": 1, "encoder": net}
    )
    given = dict(encoder=net)
    nearfar.map(own, limit=50, layout="finetune", num_views=2, epochs=1, **given)
    rows = table(
        nearfar.embed(own, out=tmp_path / "rows.parquet", map=True, **given).path, tmp_path
    )
    saved = load_map(own.path / "map.safetensors")
    coordinates = torch.tensor([rows["x"], rows["y"]]).T
    torch.testing.assert_close(
        coordinates[sample(80, 50, 0)], saved.coordinates, atol=1e-3, rtol=1e-3
    )
    assert (
        saved.function(torch.tensor(rows["embedding"])) - coordinates
    ).abs().max() > 1e-3  # of the old encoder


@pytest.mark.parametrize(
    ("words", "says"), [("--out rows.csv", ".parquet"), ("--out rows.parquet", "nearfar map")]
)
def test_a_table_of_a_map_needs_a_map_and_parquet(words, says, run, tmp_path, capsys, monkeypatch):
    copy = shutil.copytree(run.path, tmp_path / "copy", ignore=shutil.ignore_patterns("map*"))
    monkeypatch.chdir(tmp_path)
    assert main(["embed", str(copy), *words.split(), "--map", "--json"]) == 2
    assert says in json.loads(capsys.readouterr().out)["error"] and not list(tmp_path.glob("rows*"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (dict(num_views=4), "cluster-embedding makes no views"),
        (
            dict(add_to="map", layout="projector"),
            "`layout`, `num_views`, `epochs`, `label_column`",
        ),
        (dict(add_to="map"), "`add_to` adds other images"),
        (
            dict(add_to="map", data="digits", label_column="kind"),
            "`add_to` uses an existing map",
        ),
        (dict(add_to="nowhere", data="digits"), r"nowhere\.safetensors"),
    ],
)
def test_options_that_do_not_go_together(given, says, run, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=says):
        nearfar.map(run, out=tmp_path / "m.html", **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_new_images_need_the_encoder_and_the_images_of_the_map(images_file, other, tmp_path):
    with np.load(images_file) as file:
        few = {name: file[name][:40] for name in ("images", "labels")}
    data = tmp_path / "few.npz"
    np.savez(data, **few)
    run = nearfar.pretrain(data, out=tmp_path / "run", **{**OPTIONS, "epochs": 1})
    nearfar.map(run, layout="cluster-embedding", epochs=5)
    np.savez(data, images=few["images"][:30], labels=few["labels"][:30])
    with pytest.raises(ValueError, match=r"few\.npz changed since .*map\.safetensors"):
        nearfar.map(run, other, add_to="map")
    np.savez(data, **few)
    weights = run.path / "encoder.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(ValueError, match=r"encoder of .*run changed"):
        nearfar.map(run, other, add_to="map")
    nearfar.map(run, few["images"], layout="cluster-embedding", epochs=5)
    with pytest.raises(ValueError, match="an object"):
        nearfar.map(run, other, add_to="map")
