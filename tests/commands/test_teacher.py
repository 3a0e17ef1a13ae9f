"""`pretrain --teacher`: what may be one, what a run keeps of it, and what it is worth."""

import shutil

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize

import nearfar
from nearfar.data import open_images
from nearfar.embeddings.teacher import find_teacher
from nearfar.evaluation import extract
from nearfar.training.run_folder import TEACHER
from tests.pictures import png
from tests.steps import at_step, same_runs

pytestmark = pytest.mark.usefixtures("known_speed", "no_pages")

COUNT = 40
SETTINGS = dict(
    epochs=2,
    batch_size=8,
    held_out=8,
    encoder="tiny",
    log_every=1,
    precision="32-true",
    image_size=16,
)


@pytest.fixture
def photos(tmp_path, monkeypatch, own_cache):
    """Forty small pictures in two folders, and vectors with their paths in clip.parquet."""
    monkeypatch.chdir(tmp_path)
    names = [f"{'cats' if number % 2 else 'dogs'}/{number:02d}.png" for number in range(COUNT)]
    for number, name in enumerate(names):
        place = tmp_path / "photos" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(png(number))
    write("clip.parquet", names, vectors())
    return "photos"


def vectors(count=COUNT):
    return np.random.default_rng(0).normal(size=(count, 6)).astype(np.float32) + 1


def write(path, names, rows):
    columns = {"path": [f"elsewhere/photos/{name}" for name in names], "clip": list(rows)}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def trained(photos, out, **options):
    return nearfar.pretrain(photos, out=out, **SETTINGS | options)


def rows_of(run):
    return load_file(run.path / TEACHER)["rows"]


def expected(features):
    """Rows less their mean, of length one."""
    features = torch.as_tensor(features).double()
    return normalize(features - features.mean(0), dim=1).float()


def test_vectors_are_matched_by_name_and_kept_as_unit_rows_in_the_order_of_the_images(photos):
    order = np.random.default_rng(1).permutation(COUNT)
    names = [f"{'cats' if number % 2 else 'dogs'}/{number:02d}.png" for number in range(COUNT)]
    write("shuffled.parquet", [names[row] for row in order], vectors()[order])
    run = trained(photos, "run", teacher="shuffled.parquet", method="sce")
    images = open_images(photos, image_size=16).split_holdout(8, 0)[0]
    of = [names.index(name.removeprefix("photos/")) for name in images.names]
    torch.testing.assert_close(rows_of(run), expected(vectors()[of]))
    assert run.settings.teacher.endswith("/shuffled.parquet") and run.settings.teacher[0] == "/"
    assert (run.settings.teacher_temperature, run.settings.teacher_weight) == (0.05, None)


@pytest.mark.slow
def test_a_run_folder_and_weights_by_name_are_teachers(photos):
    first = trained(photos, "first")
    images = open_images(photos, image_size=16).split_holdout(8, 0)[0]
    for out, teacher in (("second", "first"), ("third", "first/encoder-alone")):
        (first.path / "encoder-alone").mkdir(exist_ok=True)
        for name in ("encoder.safetensors", "config.json"):
            shutil.copy(first.path / name, first.path / "encoder-alone")
        run = trained(photos, out, teacher=teacher)
        features = extract(nearfar.load(first), images)
        torch.testing.assert_close(rows_of(run), expected(features), rtol=1e-3, atol=1e-4)
    run = trained(photos, "fourth", teacher="nearfar", method="byol")
    assert rows_of(run).shape == (COUNT - 8, 256)
    assert (run.settings.teacher, run.settings.teacher_weight) == ("nearfar", 0.5)


@pytest.mark.parametrize("method", ["sce", pytest.param("simclr", marks=pytest.mark.slow)])
def test_a_run_is_resumed_bit_for_bit_without_its_teacher(method, photos, tmp_path):
    options = dict(teacher="clip.parquet", method=method)
    whole = trained(photos, "whole", **options)
    with at_step(3), pytest.raises(nearfar.TrainingStopped):
        trained(photos, "run", **options)
    (tmp_path / "clip.parquet").unlink()
    same_runs(nearfar.resume("run"), whole)
    state = torch.load("run/checkpoints/last.ckpt", weights_only=True)["model"]
    assert not [name for name in state if "teacher" in name or "momentum" in name]


def test_a_resumed_run_needs_the_features_as_they_were(photos, tmp_path):
    with at_step(3), pytest.raises(nearfar.TrainingStopped):
        trained(photos, "run", teacher="clip.parquet")
    path = tmp_path / "run" / TEACHER
    good, rows = path.read_bytes(), load_file(path)["rows"]
    spoiled = {
        "its content has changed": lambda: save_file({"rows": -rows}, path),
        "not finite": lambda: save_file({"rows": rows * torch.nan}, path),
        r"its rows are torch.float32 \[192\]": lambda: save_file({"rows": rows.flatten()}, path),
        "is damaged": lambda: path.write_bytes(good[:-100]),
        "is missing": path.unlink,
    }
    for message, spoil in spoiled.items():
        spoil()
        with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
            nearfar.resume("run")
        assert "\n" not in str(error.value) and TEACHER in str(error.value)
    path.write_bytes(good)
    (tmp_path / photos / "cats" / "01.png").write_bytes(png(99))
    with pytest.raises(ValueError, match="features of other images"):
        nearfar.resume("run", data_changed=True)


def test_mistakes_are_said_in_one_line(photos, tmp_path, complaint):
    names = [f"{'cats' if number % 2 else 'dogs'}/{number:02d}.png" for number in range(COUNT)]
    write("few.parquet", names[:30], vectors(30))
    write("others.parquet", [f"birds/{number}.png" for number in range(COUNT)], vectors())
    write("nan.parquet", names, vectors() * np.where(np.arange(COUNT) == 3, np.nan, 1)[:, None])
    write("alike.parquet", names, np.full((COUNT, 6), 0.37, np.float32))
    np.save("short.npy", vectors(39))
    (tmp_path / "text.csv").write_text("a,b\n1,2\n")
    fast = ["--epochs", 1, "--batch-size", 8, "--held-out", 8, "--encoder", "tiny", "--out", "out"]
    fast += ["--image-size", 16]
    for teacher, message in {
        "few.parquet": "few.parquet has no vector for ",
        "others.parquet": "others.parquet has no vector for 32",
        "nan.parquet": "in 1 of 40 rows",
        "alike.parquet": "tells none of 32",
        "short.npy": "39 vectors without names",
        "text.csv": "text.csv holds no vectors",
        "nowhere/run": "there is no teacher nowhere/run",
        "no-such-net": "no-such-net",
        "photos": "photos",
    }.items():
        assert message in complaint("pretrain", photos, "--teacher", teacher, *fast)
        assert not (tmp_path / "out").exists()
    with_teacher = ["pretrain", photos, "--teacher", "clip.parquet", *fast]
    assert "leave --teacher-weight out" in complaint(
        *with_teacher, "--method", "sce", "--teacher-weight", 0.3
    )
    assert "leave --small-views out" in complaint(
        *with_teacher, "--method", "ressl", "--small-views", 2
    )
    assert "--teacher-weight must be" in complaint(*with_teacher, "--teacher-weight", 2)
    assert "does not go with --stream" in complaint(*with_teacher, "--stream")
    assert "are for a --teacher" in complaint("pretrain", photos, *fast, "--teacher-weight", 0.3)


def test_a_teacher_of_other_channels_is_refused(photos, tmp_path):
    five = np.random.default_rng(0).integers(0, 255, (40, 5, 16, 16), dtype=np.uint8)
    np.save("five.npy", five)
    trained("five.npy", "five")
    with pytest.raises(ValueError, match=r"5 channels, .* 3"):
        trained(photos, "run", teacher="five")


class OneView(nearfar.methods.SimCLR):
    @property
    def views(self):
        return ("strong",)


def test_a_method_with_one_view_is_refused(photos):
    with pytest.raises(ValueError, match=r"two views .* not 1"):
        trained(photos, "run", teacher="clip.parquet", method=OneView())


def test_vectors_without_names_are_those_of_all_images_in_their_order(images_file, tmp_path):
    np.save(tmp_path / "rows.npy", vectors(80))
    images = open_images(images_file)
    train = images.split_holdout(8, 0)[0]
    features = find_teacher(str(tmp_path / "rows.npy")).features(train, images)
    of = [images.names.index(name) for name in train.names]
    torch.testing.assert_close(features, expected(vectors(80)[of]))
