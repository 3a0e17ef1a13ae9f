"""Training from a whitened first convolution, which stays as it is."""

import numpy as np
import pytest
import torch

import nearfar
from nearfar.run_evaluation import encoders_by_row
from nearfar.training.plan import plan_run
from nearfar.training.settings import Settings


def test_the_first_convolution_is_as_it_was_after_training_and_stopping(tmp_path, quiet):
    shared = dict(limit=256, batch_size=64, encoder="tiny", whiten=True, console=quiet)
    runs = [nearfar.pretrain("digits", out=str(tmp_path / f"{n}"), epochs=n, **shared) for n in (1, 2)]
    first, second = (nearfar.load(run).backbone.net.conv.weight for run in runs)
    assert torch.equal(first, second) and torch.equal(first[9:18], -first[:9])  # 9 pixels a patch, both signs
    plain = nearfar.pretrain("digits", out=str(tmp_path / "plain"), epochs=1, **shared | {"whiten": False})
    assert not torch.equal(nearfar.load(plain).backbone.net.conv.weight[:9], first[:9])
    compared = encoders_by_row(runs[0], None, baselines=True)
    assert torch.equal(compared["untrained"].backbone.net.conv.weight, first)  # so began the training too


@pytest.mark.parametrize(
    ("encoder", "channels", "whitened"),
    [("small", 3, True), ("medium", 3, True), ("small", 1, False), ("tiny", 3, False), ("resnet18", 3, False)],
)
def test_our_nets_begin_whitened_by_default_on_colour_images(encoder, channels, whitened, tmp_path, quiet):
    images = np.random.default_rng(0).integers(0, 256, (64, 32, 32, channels), np.uint8)
    job, _ = plan_run(Settings(data=images, out=str(tmp_path), encoder=encoder, epochs=1), quiet, 0.0)
    assert job.settings.whiten is whitened


def test_starting_weights_are_not_whitened(tmp_path, quiet):
    images = np.random.default_rng(0).integers(0, 256, (64, 16, 16, 3), np.uint8)
    shared = dict(encoder="small", epochs=1, batch_size=32, console=quiet)
    first = nearfar.pretrain(images, out=str(tmp_path / "first"), **shared)
    second = nearfar.pretrain(images, out=str(tmp_path / "second"), init=str(first.path), **shared)
    assert first.settings.whiten and not second.settings.whiten


def test_other_nets_and_starting_weights_are_refused(tmp_path, quiet):
    with pytest.raises(ValueError, match="--whiten is for the encoders tiny, small, medium"):
        nearfar.pretrain("digits", encoder="resnet18", whiten=True, epochs=1, out=str(tmp_path / "run"), console=quiet)
