"""Defaults work on few images; what a user gave and cannot be is refused before there is a folder."""

import io

import numpy as np
import pytest
from rich.console import Console

import nearfar
from nearfar.methods import WMSE, method_class
from nearfar.training import budget
from nearfar.training.budget import training_speed
from nearfar.views import plan


def some(count, size=8, channels=1):
    return np.random.default_rng(0).integers(0, 256, (count, size, size, channels), dtype=np.uint8)


def begun(data, tmp_path, monkeypatch, **options):
    """The settings with which training would begin, and what was said; nothing is trained."""
    seen = []
    monkeypatch.setattr("nearfar.training.job.launch", lambda job, *given, **named: seen.append(job))
    monkeypatch.setattr("nearfar.commands.pretrain._finish", lambda folder, job: nearfar.Run(folder))
    console = Console(file=io.StringIO(), width=500)
    options = dict(epochs=1, encoder="small", precision="32-true") | options
    nearfar.pretrain(data, out=str(tmp_path / "run"), console=console, **options)
    images, held_out = seen[0].sets
    assert len(images) >= seen[0].settings.batch_size >= 2 and (held_out is None or len(held_out) >= 2)
    return seen[0].settings, console.file.getvalue()


@pytest.mark.parametrize(
    ("count", "batch", "held_out"),
    [(2, 2, 0), (3, 2, 0), (10, 4, 0), (19, 8, 0), (20, 8, 2), (220, 64, 22), (285, 256, 28)],
)
def test_defaults_suit_the_number_of_images(count, batch, held_out, tmp_path, monkeypatch):
    settings, said = begun(some(count), tmp_path, monkeypatch)
    assert (settings.batch_size, settings.held_out) == (batch, held_out)
    assert (f"--batch-size {batch}, for {count - held_out} training images" in said) == (batch < 256)
    assert ("too few for a validation set" in said) == (held_out == 0)


@pytest.mark.parametrize("count", [10, 19])
def test_ten_images_train(count, tmp_path, quiet):
    run = nearfar.pretrain(some(count), out=tmp_path / "run", epochs=1, encoder="small", console=quiet)
    assert (run.path / "encoder.safetensors").is_file() and run.verdict is None
    assert "No images were held out" in (run.path / "report.html").read_text()


def test_whitening_takes_all_images_and_then_fewer_features(tmp_path, monkeypatch):
    settings, _ = begun(some(110), tmp_path / "a", monkeypatch, method="wmse")  # 99 to train on, 64 features
    assert settings.batch_size == 99 and settings.hyperparameters["projector"] == (512, 64)
    settings, said = begun(some(40), tmp_path / "b", monkeypatch, method="wmse")
    assert settings.batch_size == 36 and settings.hyperparameters["projector"] == (512, 32)
    assert "--batch-size 36 and --projector 512 32, for 36 training images" in said
    settings, _ = begun(some(300), tmp_path / "c", monkeypatch, method="wmse", batch_size=32)
    assert settings.batch_size == 32 and settings.hyperparameters["projector"] == (512, 16)


def test_a_trial_of_speed_has_enough_images_for_the_loss(monkeypatch):
    tried = []

    def speed(*given, batch_size=64, **named):
        tried.append(batch_size)
        return training_speed(*given, batch_size=batch_size, **named)

    monkeypatch.setattr(budget, "training_speed", speed)
    given = nearfar.training.settings.Settings("digits", method="wmse", precision="32-true")
    views = plan("strong+strong", 8, 1)
    options = dict(candidates=[("small", 8, 8)], channels=1, images=40, seconds=1.0, console=Console(quiet=True))
    assert budget.choose_machine(given, WMSE(), lambda *_: views, **options).rate > 0
    assert tried == [64, 256]


def test_a_channel_that_is_empty_is_not_scaled(tmp_path, monkeypatch):
    images = some(40, channels=3)
    images[..., 2] = 0
    settings, said = begun(images, tmp_path, monkeypatch)
    assert settings.std[2] == 1.0 and settings.mean[2] == 0.0 and "not scaled" in said
    np.testing.assert_allclose(settings.std[:2], (images / 255).std((0, 1, 2))[:2], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(held_out=1), "--held-out 1"),
        (dict(held_out=40), "leaves none of the 40 images"),
        (dict(held_out=39), "too few"),
        (dict(limit=1), "too few"),
        (dict(batch_size=1), "--batch-size 1 does not work: .*2 images or more"),
        (dict(batch_size=37), "larger than the 36 images"),
        (dict(method="saclr", negatives=36), "36 negatives per image need a batch of at least 37"),
        (dict(method="saclr", negatives=16, batch_size=16), "negatives per image need a batch of at least 17"),
        (dict(method="wmse", batch_size=32, projector=(64,)), "more than 64 images at a time"),
        (
            dict(method="moco-v2", norm_groups=30, batch_size=16),
            "--batch-size 16 does not work: .*normalisation groups",
        ),
        (dict(data=np.zeros((40, 8, 8), dtype=np.uint8)), "all of one colour"),
        (dict(data=np.full((40, 8, 8, 3), 255, dtype=np.uint8)), "all of one colour"),
        (dict(method="lorac", large_views=5000), "5002 views of each image are too many: at most 100"),
        (dict(data=some(1)), "too few"),
        (dict(method="simclr", views=lambda pixels: [pixels / 255]), "1 views, but simclr needs 2"),
    ],
)
def test_what_cannot_be_leaves_no_folder(options, says, tmp_path, quiet):
    data = options.pop("data", some(40))
    settings = dict(epochs=1, encoder="small", precision="32-true")
    with pytest.raises(ValueError, match=says):
        nearfar.pretrain(data, out=str(tmp_path / "runs" / "run"), console=quiet, **settings | options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["saclr", "byol", "swav", "nnclr", "lorac", "moco-v3", "sce"])
def test_every_kind_of_loss_is_tried_with_few_images(name, tmp_path, monkeypatch):
    assert method_class(name).recipe("small").batch_size > 18
    assert begun(some(20), tmp_path, monkeypatch, method=name)[0].batch_size == 8
