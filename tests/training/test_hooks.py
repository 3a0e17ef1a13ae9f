"""A run used as a library: a hook on its metrics, a run that trains longer, encoders on the way."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

import nearfar
from nearfar.cli import main
from nearfar.evaluation import extract
from nearfar.training.health import neighbour_accuracy
from tests.pictures import png
from tests.steps import at_step, same_runs

SETTINGS = dict(
    epochs=4,
    batch_size=8,
    held_out=8,
    encoder="tiny",
    method="moco-v2",
    log_every=2,
    warmup_epochs=0.5,
    precision="32-true",
    threads=1,
    workers=0,
)


def photographed(folder):
    """Forty small pictures in two classes, sorted by class."""
    for number in range(40):
        place = folder / ("cats" if number < 25 else "dogs")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:02d}.png").write_bytes(png(number))
    return folder


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return photographed(tmp_path / "photos")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run from its start to its end, and the lines that its hook saw."""
    folder, seen = tmp_path_factory.mktemp("whole"), []
    photos = photographed(folder / "photos")
    run = nearfar.pretrain(photos, out=folder / "run", on_metrics=seen.append, **SETTINGS)
    return run, seen


def copied(whole, name="run"):
    """A copy of the whole run in the folder of the test."""
    return nearfar.Run(shutil.copytree(whole[0].path, name))


def lines_of(run):
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


def test_a_hook_sees_every_line_of_metrics(whole):
    run, seen = whole
    assert seen == lines_of(run) and seen[0]["step"] == 0 and seen[-1]["step"] == 16
    assert {"loss", "health"} <= {name for line in seen for name in line}


@pytest.mark.slow
def test_a_hook_that_returns_true_stops_the_run_which_can_be_used_and_resumed(photos, whole, log):
    run = nearfar.pretrain(
        photos, out="run", on_metrics=lambda line: line["step"] >= 6 and "loss" in line, **SETTINGS
    )
    assert lines_of(run)[-1]["step"] == 6 and "after step 6 of 16" in log.text
    assert (run.path / "report.html").is_file() and run.verdict is not None
    assert len(nearfar.embed(run).features) == 40
    same_runs(nearfar.resume(run), whole[0])


@pytest.mark.usefixtures("no_pages")
def test_a_hook_that_raises_loses_nothing(photos, whole):
    class Pruned(Exception):
        pass

    def prune(line):
        if line["step"] == 6:
            raise Pruned("too bad")

    with pytest.raises(Pruned, match="too bad"):
        nearfar.pretrain(photos, out="run", on_metrics=prune, **SETTINGS)
    same_runs(nearfar.resume("run"), whole[0])


@pytest.mark.usefixtures("no_pages")
def test_an_error_in_the_last_step_is_raised_and_the_run_is_whole(photos, whole):
    def fail(line):
        if line["step"] == 16:
            raise KeyError("tracker")

    with pytest.raises(KeyError, match="tracker"):
        nearfar.pretrain(photos, out="run", on_metrics=fail, **SETTINGS)
    same_runs(nearfar.resume("run"), whole[0])


@pytest.mark.slow
def test_a_hook_stops_all_processes_and_torchrun_ends_well(photos):
    seen = []

    def stop_at_six(line):
        seen.append(line)
        return line["step"] >= 6

    run = nearfar.pretrain(photos, out="run", devices=2, on_metrics=stop_at_six, **SETTINGS)
    assert (
        seen == lines_of(run)
        and run.metrics[-1]["step"] == 6
        and (run.path / "report.html").is_file()
    )
    script = (
        "import nearfar\n"
        f"run = nearfar.pretrain('photos', out='other', on_metrics=lambda line: line['step'] >= 6,"
        f" **{SETTINGS!r})\n"
        "print('ended', run.path)\n"
    )
    (photos.parent / "script.py").write_text(script)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words = [*torchrun, "--nproc-per-node", "2", "script.py"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("ended other") == 2
    assert nearfar.Run("other").metrics[-1]["step"] == 6


def test_a_model_is_read_and_nothing_is_written(whole):
    run, _ = whole
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    assert not run.model().training
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


@pytest.mark.usefixtures("no_pages")
def test_the_encoder_of_a_run_that_was_stopped_by_a_signal_loads(photos):
    with at_step(5), pytest.raises(nearfar.TrainingStopped):
        nearfar.pretrain(photos, out="run", **SETTINGS)
    encoder = nearfar.load("run")
    state = torch.load("run/checkpoints/last.ckpt", weights_only=True)["model"]
    saved = encoder.backbone.net.state_dict()
    assert all(torch.equal(value, state[f"online.0.net.{name}"]) for name, value in saved.items())
    assert nearfar.embed("run").features.isfinite().all()


@pytest.mark.slow
@pytest.mark.usefixtures("no_pages")
def test_a_run_trains_longer_with_its_whole_state(photos, whole, log):
    short = copied(whole)
    before = torch.load("run/checkpoints/last.ckpt", weights_only=True)
    first = lines_of(short)
    longer = nearfar.resume(short, epochs=6)
    after = torch.load("run/checkpoints/last.ckpt", weights_only=True)
    assert (before["step"], after["step"]) == (16, 24) and longer.settings.epochs == 6
    assert "going on to 6 epochs" in log.text
    lines = lines_of(longer)
    assert lines[: len(first)] == first
    rates = {line["step"]: line["lr"] for line in lines if "lr" in line}
    reference = nearfar.pretrain(photos, out="long", **SETTINGS | {"epochs": 6})
    expected = {line["step"]: line["lr"] for line in lines_of(reference) if "lr" in line}
    assert [rates[step] for step in rates if step > 16] == [
        expected[step] for step in rates if step > 16
    ]
    assert nearfar.resume(longer).settings.epochs == 6  # nothing is left to do
    assert lines_of(longer) == lines


@pytest.mark.usefixtures("no_pages")
@pytest.mark.slow
def test_a_longer_run_that_is_killed_goes_on_to_its_end(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copied(whole)
    with at_step(20), pytest.raises(nearfar.TrainingStopped):
        nearfar.resume("run", epochs=6)
    copied(whole, "other")
    same_runs(nearfar.resume("run"), nearfar.resume("other", epochs=6))


def test_fewer_epochs_than_trained_are_refused_and_the_command_line_trains_longer(
    whole, complaint, capsys
):
    copied(whole)
    assert "--epochs 2: " in complaint("pretrain", "--resume", "run", "--epochs", "2")
    assert nearfar.Run("run").settings.epochs == 4
    assert main(["pretrain", "--resume", "run", "--epochs", "5"]) == 0
    assert nearfar.Run("run").settings.epochs == 5


@pytest.mark.slow
@pytest.mark.usefixtures("no_pages")
def test_encoders_are_kept_on_the_way(photos):
    run = nearfar.pretrain(photos, out="run", save_every=2, **SETTINGS)
    kept = sorted(path.name for path in (run.path / "encoders").iterdir())
    assert kept == ["epoch-0002", "epoch-0004"]
    last, middle = nearfar.load(run), nearfar.load("run/encoders/epoch-0002")
    same = extract(nearfar.load("run/encoders/epoch-0004"), torch.zeros(2, 3, 32, 32))
    assert torch.equal(same, extract(last, torch.zeros(2, 3, 32, 32)))
    stopped = nearfar.pretrain(
        photos, out="stopped", on_metrics=lambda line: line["step"] == 8, **SETTINGS
    )
    pixels = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(extract(middle, pixels), extract(nearfar.load(stopped), pixels))
    assert not torch.equal(extract(middle, pixels), extract(last, pixels))
    named = nearfar.embed(photos, encoder="run/encoders/epoch-0002")
    assert named.features.shape == (40, middle.num_features)


@pytest.mark.usefixtures("no_pages")
def test_a_run_that_was_killed_keeps_the_encoders_that_it_has(photos):
    with at_step(9), pytest.raises(nearfar.TrainingStopped):
        nearfar.pretrain(photos, out="run", save_every=1, **SETTINGS)
    kept = {path.name for path in (photos.parent / "run/encoders").iterdir()}
    assert kept == {"epoch-0001", "epoch-0002"}
    nearfar.resume("run")
    kept = {path.name for path in (photos.parent / "run/encoders").iterdir()}
    assert kept == {f"epoch-000{number}" for number in range(1, 5)}


@pytest.mark.slow
def test_held_out_images_with_labels_have_a_knn_accuracy_while_training(photos):
    options = SETTINGS | {"held_out": 20}
    run = nearfar.pretrain(photos, out="run", **options)
    accuracies = [line["health"]["knn"] for line in run.metrics if "health" in line]
    assert len(accuracies) > 2 and all(0 <= value <= 1 for value in accuracies)
    images = nearfar.data.open_images(photos, image_size=run.settings.image_size)
    _, held = images.split_holdout(20, run.settings.seed)
    features = extract(nearfar.load(run), held)
    unit = torch.nn.functional.normalize(features, dim=1).numpy()
    right = []
    for row in range(20):
        others = [other for other in range(20) if other != row]
        vote = KNeighborsClassifier(5).fit(unit[others], held.labels[others])
        right.append(vote.predict(unit[[row]])[0] == held.labels[row])
    assert accuracies[-1] == pytest.approx(np.mean(right))
    assert "kNN accuracy" in (run.path / "report.html").read_text()
    whole = torch.stack([images.gather(torch.tensor([row]))[0] for row in range(40)])
    unlabelled = nearfar.pretrain(whole, out="unlabelled", **options)
    assert all(line["health"]["knn"] is None for line in unlabelled.metrics if "health" in line)
    assert "kNN accuracy" not in (unlabelled.path / "report.html").read_text()


def test_a_vote_of_neighbours_leaves_out_what_has_no_label_and_the_nearest_decides_a_tie():
    angles = torch.tensor([0.0, 0.1, 0.25, 3.0, 3.1, 1.5])
    features = torch.stack([angles.cos(), angles.sin()], 1)
    labels = torch.tensor([0, 0, 0, 1, 1, -1])
    # among five, each of class 1 sees one of its own and three others
    assert neighbour_accuracy(features, labels) == 3 / 5
    assert neighbour_accuracy(features, torch.tensor([0, -1, -1, 1, -1, -1])) == 0
    assert neighbour_accuracy(features, torch.tensor([0, 0, 0, -1, -1, -1])) is None
    three = torch.tensor([0, -1, 1, 0, -1, -1])  # of two others, the nearer one is right or wrong
    assert neighbour_accuracy(features, three) == pytest.approx(0)
