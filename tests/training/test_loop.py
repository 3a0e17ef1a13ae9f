"""A run that was stopped or killed goes on as if nothing had happened; a run that breaks says so."""

import os
import signal
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file

import nearfar
from nearfar import threads
from nearfar.cli import main
from nearfar.methods import Recipe, SimCLR
from nearfar.training import loop
from nearfar.training.run_folder import read_metrics

CLOCKS = ("images_per_second", "data_wait")
METHODS = {
    "saclr-row": dict(method="saclr", scale="row", negatives=3),
    "sogclr": dict(method="sogclr"),
    "isogclr": dict(method="isogclr"),
    "moco-v2": dict(method="moco-v2", queue_size=50),
    "swav": dict(method="swav", stored=24, stored_from=1.0, small_views=1),
    "sigclr": dict(method="sigclr", learn_temperature=True),
    "jcl": dict(method="jcl", queue_size=50, optimizer="adamw", lr=1e-3),
}


def run(images_file, out, quiet, **options):
    settings = dict(epochs=3, batch_size=16, held_out=16, log_every=2, encoder="resnet10t", seed=3)
    return nearfar.pretrain(images_file, out=str(out), console=quiet, **(settings | options))


def logged(run):
    return [{key: value for key, value in line.items() if key not in CLOCKS} for line in run.metrics]


def at_step(monkeypatch, number, action):
    """Do something once a run has taken a number of steps."""
    advance = loop.TrainingProgress.advance

    def watched(self, step):
        advance(self, step)
        if step == number:
            action()

    monkeypatch.setattr(loop.TrainingProgress, "advance", watched)


@pytest.mark.parametrize("name", METHODS)
def test_stopped_and_resumed_is_uninterrupted(name, images_file, tmp_path, quiet, monkeypatch):
    whole = run(images_file, tmp_path / "whole", quiet, **METHODS[name])
    with monkeypatch.context() as patch:
        at_step(patch, 5, lambda: os.kill(os.getpid(), signal.SIGINT))  # in the middle of the second of three epochs
        with pytest.raises(nearfar.TrainingStopped, match="--resume"):
            run(images_file, tmp_path / "parts", quiet, **METHODS[name])
    assert read_metrics(tmp_path / "parts")[-1]["step"] < 6
    parts = nearfar.resume(tmp_path / "parts", console=quiet)
    assert logged(parts) == logged(whole)
    one, two = (load_file(path / "encoder.safetensors") for path in (whole.path, parts.path))
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_killed_and_resumed_is_uninterrupted(images_file, tmp_path, quiet, monkeypatch):
    whole = run(images_file, tmp_path / "whole", quiet)
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    with monkeypatch.context() as patch:

        def die():
            raise MemoryError

        at_step(patch, 7, die)
        with pytest.raises(MemoryError):
            run(images_file, tmp_path / "parts", quiet)
    with (tmp_path / "parts" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "lo')  # a line that was cut off
    parts = nearfar.resume(tmp_path / "parts", console=quiet)
    assert logged(parts) == logged(whole)


def test_a_loss_that_is_not_finite_stops_the_run(images_file, tmp_path, quiet):
    with pytest.raises(nearfar.TrainingDiverged, match=r"lower --lr"):
        run(images_file, tmp_path / "run", quiet, method="vicreg", lr=1e12, warmup_epochs=0.0)
    assert not (tmp_path / "run" / "encoder.safetensors").exists()


def test_micro_batches_leave_the_gradient_of_the_batch(images_file, tmp_path, quiet):
    """On a net whose normalisation knows no batch, whole batches and micro-batches log the same losses."""
    options = dict(encoder="convnext_atto", method="simclr", optimizer="adamw", lr=1e-4, epochs=2, image_size=32)
    whole = run(images_file, tmp_path / "whole", quiet, **options, projector=(16,))
    parts = run(images_file, tmp_path / "parts", quiet, **options, projector=(16,), micro_batch=5)
    one, two = ([line["loss"] for line in r.metrics if "loss" in line] for r in (whole, parts))
    torch.testing.assert_close(torch.tensor(one), torch.tensor(two), rtol=1e-4, atol=1e-5)


def test_the_same_settings_give_the_same_run(images_file, tmp_path, quiet):
    first = run(images_file, tmp_path / "first", quiet, epochs=1, tensorboard=True)
    assert list((first.path / "tensorboard").glob("events.*"))
    again = run(images_file, tmp_path / "again", quiet, epochs=1)
    other = run(images_file, tmp_path / "other", quiet, epochs=1, seed=4)
    assert logged(first) == logged(again)
    assert logged(first) != logged(other)


def test_the_rate_starts_and_drops_as_the_recipe_says(images_file, tmp_path, quiet):
    @dataclass(frozen=True, kw_only=True)
    class Dropping(SimCLR):
        """With a recipe of 30 epochs, of which a run of three has the shape."""

        recipes: ClassVar = {"small": Recipe("", epochs=30, warmup_start=0.5, lr_drops=(20,), lr_drop=0.2)}

    options = dict(method=Dropping(), lr=1e-3, warmup_epochs=1.0, encoder="tiny", log_every=1)
    made = run(images_file, tmp_path / "run", quiet, **options)
    rates = [line["lr"] for line in made.metrics if "lr" in line]
    steps = len(rates) // 3
    rising = [1e-3 * (0.5 + 0.5 * (step + 1) / steps) for step in range(steps)]
    assert rates == pytest.approx(rising + [1e-3] * steps + [2e-4] * steps)


@pytest.fixture
def load(monkeypatch):
    """Two threads to choose among, and a function that makes a number of them the fastest from then on."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "SECONDS", 0.0)
    torch.set_num_threads(2)

    def fastest(number):
        monkeypatch.setattr(threads, "_trial", lambda count, at_most: 1.0 if count == number else 2.0)

    yield fastest
    torch.set_num_threads(before)


def test_a_run_keeps_its_number_of_threads_whatever_the_load(load, images_file, tmp_path, quiet, monkeypatch):
    used = []
    short = dict(encoder="small", image_size=32, batch_size=32)  # large enough that the number changes the loss

    def watch(patch, at=None):
        advance = loop.TrainingProgress.advance

        def watched(self, step):
            used.append(torch.get_num_threads())
            advance(self, step)
            load(2 if used[0] == 1 else 1)
            if step == at:
                os.kill(os.getpid(), signal.SIGINT)

        patch.setattr(loop.TrainingProgress, "advance", watched)
        used.clear()

    with monkeypatch.context() as patch:
        watch(patch)
        load(1)
        whole = run(images_file, tmp_path / "whole", quiet, **short)
    assert {*used} == {1} and whole.settings.threads == 1 and torch.get_num_threads() == 2
    for fastest in (1, 2):
        load(fastest)
        again = run(images_file, tmp_path / f"again-{fastest}", quiet, **short, threads=1)
        assert logged(again) == logged(whole)
    with monkeypatch.context() as patch:
        watch(patch, at=5)
        load(1)
        with pytest.raises(nearfar.TrainingStopped):
            run(images_file, tmp_path / "parts", quiet, **short)
    load(2)
    assert logged(nearfar.resume(tmp_path / "parts", console=quiet)) == logged(whole)


def test_another_number_of_threads_is_taken_and_said(load, images_file, tmp_path, quiet, monkeypatch, capsys):
    load(2)
    with monkeypatch.context() as patch:
        at_step(patch, 5, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(nearfar.TrainingStopped):
            run(images_file, tmp_path / "run", quiet)
    assert nearfar.Run(tmp_path / "run").settings.threads == 2
    used = []
    at_step(monkeypatch, 6, lambda: used.append(torch.get_num_threads()))
    assert main(["pretrain", "--resume", str(tmp_path / "run"), "--threads", "1"]) == 0
    assert "--threads 1 in place of 2" in capsys.readouterr().out
    assert used == [1] and nearfar.Run(tmp_path / "run").settings.threads == 1
