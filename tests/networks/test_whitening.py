"""A first convolution that whitens: what comes out of it, and that training leaves it alone."""

import numpy as np
import pytest
import torch

import nearfar
from nearfar.commands.evaluate import _encoders
from nearfar.commands.resolve import new_job
from nearfar.networks import SmallNet, whiten_stem
from nearfar.networks.whitening import LEAST
from nearfar.training import Settings


@pytest.mark.parametrize(("size", "side"), [(32, 3), (64, 4)])
def test_directions_of_the_patches_come_out_uncorrelated_and_equally_large(size, side):
    torch.manual_seed(0)
    images = torch.nn.functional.avg_pool2d(torch.randn(200, 3, size + 4, size + 4), 5, 1)  # neighbours are alike
    net = SmallNet(size)
    before = net.conv.weight.clone()
    whiten_stem(net, images)
    count = min(32, 3 * side**2)
    filters = net.conv.weight.detach().flatten(1).double().numpy()
    patches = images[:, :, : size // side * side, : size // side * side].double().numpy()
    patches = (
        patches.reshape(200, 3, size // side, side, size // side, side)
        .transpose(0, 2, 4, 1, 3, 5)
        .reshape(-1, 3 * side**2)
    )
    found = np.cov(patches @ filters[:count].T, rowvar=False)
    values = np.sort(np.linalg.eigvalsh(np.cov(patches, rowvar=False)))[::-1][:count]
    np.testing.assert_allclose(found, np.diag(values / (values + LEAST)), atol=1e-5)
    np.testing.assert_array_equal(filters[count : 2 * count], -filters[:count])
    torch.testing.assert_close(net.conv.weight[2 * count :], before[2 * count :], rtol=0, atol=0)


def test_the_first_convolution_is_as_it_was_after_training_and_stopping(tmp_path, quiet):
    shared = dict(limit=256, batch_size=64, encoder="tiny", whiten=True, console=quiet)
    runs = [nearfar.pretrain("digits", out=str(tmp_path / f"{n}"), epochs=n, **shared) for n in (1, 2)]
    first, second = (nearfar.load(run).backbone.net.conv.weight for run in runs)
    assert torch.equal(first, second) and torch.equal(first[9:18], -first[:9])  # 9 pixels a patch, both signs
    plain = nearfar.pretrain("digits", out=str(tmp_path / "plain"), epochs=1, **shared | {"whiten": False})
    assert not torch.equal(nearfar.load(plain).backbone.net.conv.weight[:9], first[:9])
    compared = _encoders(runs[0], runs[0].settings, None, baselines=True)
    assert torch.equal(compared["untrained"].backbone.net.conv.weight, first)  # so began the training too


@pytest.mark.parametrize(
    ("encoder", "channels", "whitened"),
    [("small", 3, True), ("medium", 3, True), ("small", 1, False), ("tiny", 3, False), ("resnet18", 3, False)],
)
def test_our_nets_begin_whitened_by_default_on_colour_images(encoder, channels, whitened, tmp_path, quiet):
    images = np.random.default_rng(0).integers(0, 256, (64, 32, 32, channels), np.uint8)
    job, _ = new_job(Settings(data=images, out=str(tmp_path), encoder=encoder, epochs=1), quiet, 0.0)
    assert job.settings.whiten is whitened


def test_starting_weights_are_not_whitened_and_old_runs_were_not(tmp_path, quiet):
    images = np.random.default_rng(0).integers(0, 256, (64, 16, 16, 3), np.uint8)
    shared = dict(encoder="small", epochs=1, batch_size=32, console=quiet)
    first = nearfar.pretrain(images, out=str(tmp_path / "first"), **shared)
    second = nearfar.pretrain(images, out=str(tmp_path / "second"), init=str(first.path), **shared)
    assert first.settings.whiten and not second.settings.whiten
    config = first.path / "config.yaml"
    config.write_text("".join(line for line in config.open() if not line.startswith("whiten")))
    assert nearfar.Run(first.path).settings.whiten is False


def test_other_nets_and_starting_weights_are_refused(tmp_path, quiet):
    with pytest.raises(ValueError, match="--whiten is for the encoders tiny, small, medium"):
        nearfar.pretrain("digits", encoder="resnet18", whiten=True, epochs=1, out=str(tmp_path / "run"), console=quiet)
