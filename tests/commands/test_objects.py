"""Objects of the user's own in the place of names: they train, are described in the folder, and are
given again.
"""

import copy

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import Dataset

import nearfar
from nearfar.methods import SimCLR
from nearfar.training.run_folder import TEACHER
from nearfar.views import View, ViewPlan
from tests.steps import at_step, same_runs

pytestmark = pytest.mark.usefixtures("known_speed")

SMALL = dict(method="simclr", epochs=2, batch_size=16, held_out=16)


class Net(nn.Module):
    """Two layers, 12 features."""

    def __init__(self, channels=1):
        super().__init__()
        self.conv = nn.Conv2d(channels, 12, 3)

    def forward(self, images):
        return self.conv(images).relu().mean((2, 3))


class Pictures(Dataset):
    """Forty pictures that come again when one reads on: there is no last index."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return np.random.default_rng(index % 40).integers(
            0, 256, (8, 8, 1), dtype=np.uint8
        ), index % 2


def noisy(pixels):
    return [pixels / 255 + 0.1 * torch.randn(pixels.shape) for _ in range(2)]


@pytest.fixture(scope="module")
def array():
    return np.random.default_rng(0).integers(0, 256, (48, 8, 8), dtype=np.uint8)


def written(run):
    return yaml.safe_load((run.path / "config.yaml").read_text())


@pytest.mark.slow
def test_an_array_trains_and_is_given_again(array, tmp_path):
    run = nearfar.pretrain(array, out=str(tmp_path / "run"), encoder="small", **SMALL)
    assert written(run)["data"] == {"object": "array [48, 8, 8] uint8"}
    features = nearfar.load(run)(torch.from_numpy(array[:, None]))  # needs no data
    path = nearfar.embed(run, array, out=tmp_path / "rows.npz").path
    torch.testing.assert_close(
        torch.from_numpy(np.load(path)["embedding"]), features, rtol=1e-4, atol=1e-5
    )
    for verb in (nearfar.map, nearfar.evaluate):
        with pytest.raises(ValueError, match=r"array \[48, 8, 8\] uint8"):
            verb(run)
    assert nearfar.map(run, array, epochs=2).path.is_file()


def test_an_own_encoder_is_trained_and_read_back(array, tmp_path):
    net = Net()
    before = net.conv.weight.detach().clone()
    run = nearfar.pretrain(array, out=str(tmp_path / "run"), encoder=net, **SMALL)
    assert torch.equal(net.conv.weight, before)  # a copy was trained
    assert written(run)["encoder"]["object"].endswith("Net")
    with pytest.raises(ValueError, match=r"give it again, .*encoder="):
        nearfar.load(run)
    encoder = nearfar.load(run, encoder=Net())
    saved = load_file(run.path / "encoder.safetensors")
    assert any(
        torch.equal(value, encoder.state_dict()[name])
        for name in encoder.state_dict()
        for value in saved.values()
    )
    images = torch.from_numpy(array[:, None])
    assert encoder(images).shape == (48, 12)
    assert not torch.equal(encoder(images), nearfar.load(run, encoder=Net()).train()(images * 0))
    results = nearfar.evaluate(run, (array, np.arange(48) % 2), encoder=Net())
    assert set(results) == {
        "largest_class",
        "raw_pixels",
        "colour_histogram",
        "hog",
        "untrained",
        "trained",
    }


@pytest.mark.parametrize(
    "net", [nn.Conv2d(1, 4, 3), nn.Linear(3, 3)], ids=["no rows", "other input"]
)
def test_a_module_that_does_not_fit(net, array, tmp_path):
    with pytest.raises(ValueError, match="encoder"):
        nearfar.pretrain(array, out=str(tmp_path / "run"), encoder=net, **SMALL)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("no_pages")
def test_a_method_as_an_object_is_the_method_by_name(array, tmp_path):
    options = dict(epochs=1, batch_size=16, held_out=16, encoder="tiny")
    named = nearfar.pretrain(
        array, out=str(tmp_path / "a"), method="simclr", temperature=0.3, **options
    )
    given = nearfar.pretrain(
        array, out=str(tmp_path / "b"), method=SimCLR(temperature=0.3), **options
    )
    assert [line.get("loss") for line in named.metrics] == [
        line.get("loss") for line in given.metrics
    ]
    first, second = written(named), written(given)
    assert first.pop("out") != second.pop("out")
    assert first == second and first["method"] == "simclr" and first["temperature"] == 0.3


@pytest.mark.usefixtures("no_pages")
def test_a_plan_of_views_is_written_in_full(array, tmp_path):
    view = View(scale=(0.6, 1.0), flip=0.0, noise=0.5)
    plan = ViewPlan("mine", (view, view))
    run = nearfar.pretrain(array, out=str(tmp_path / "run"), views=plan, encoder="tiny", **SMALL)
    assert ViewPlan.from_dict(nearfar.Run(run.path).settings.views) == plan
    assert nearfar.map(run, array, epochs=2).path.is_file()


def test_a_callable_makes_the_views_it_says(array, tmp_path):
    seen = []

    def watched(pixels):
        seen.append(pixels)
        return noisy(pixels)

    run = nearfar.pretrain(
        array, out=str(tmp_path / "run"), views=watched, encoder="small", **SMALL
    )
    assert all(pixels.dtype == torch.uint8 and pixels.shape[1:] == (1, 8, 8) for pixels in seen)
    with pytest.raises(ValueError, match=r"give it again, views="):
        nearfar.map(run, array)
    with pytest.raises(ValueError, match="3 views"):
        three = lambda pixels: [*noisy(pixels), pixels / 255]  # noqa: E731
        nearfar.pretrain(array, out=str(tmp_path / "b"), views=three, encoder="small", **SMALL)


def test_stopped_with_objects_and_resumed_with_them_is_uninterrupted(array, tmp_path):
    torch.manual_seed(0)
    net = Net()
    options = dict(method="sogclr", epochs=3, batch_size=16, held_out=0, log_every=1)
    whole = nearfar.pretrain(
        array, out=str(tmp_path / "whole"), encoder=net, views=noisy, **options
    )
    with at_step(4), pytest.raises(nearfar.TrainingStopped):
        nearfar.pretrain(array, out=str(tmp_path / "parts"), encoder=net, views=noisy, **options)
    with pytest.raises(ValueError, match="give it again"):
        nearfar.resume(tmp_path / "parts", data=array)
    parts = nearfar.resume(tmp_path / "parts", data=array, encoder=Net(), views=noisy)
    same_runs(parts, whole)


@pytest.mark.slow
def test_objects_and_the_vectors_of_a_teacher_reach_other_processes(array, tmp_path):
    """The losses of a run on two processes are those of a run on one."""
    vectors = np.random.default_rng(0).normal(size=(48, 6)).astype(np.float32) + 1
    np.save(tmp_path / "rows.npy", vectors)
    net = Net()
    single, two = (
        nearfar.pretrain(
            array,
            out=str(tmp_path / str(devices)),
            devices=devices,
            method="sce",
            teacher=tmp_path / "rows.npy",
            encoder=copy.deepcopy(net),
            views="grayscale",
            epochs=1,
            batch_size=16,
            held_out=16,
            log_every=1,
            precision="32-true",
            accelerator="cpu",
            sync_batch_norm=True,
        )
        for devices in (1, 2)
    )
    losses = [[line["loss"] for line in run.metrics if "loss" in line] for run in (single, two)]
    assert len(losses[0]) == 2 and losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert torch.equal(*(load_file(run.path / TEACHER)["rows"] for run in (single, two)))


def test_a_module_embeds_images_with_a_channel_that_is_constant():
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    images[..., 2] = 255
    features = nearfar.embed(images, encoder=Net(3)).features
    assert len(np.unique(features.numpy().round(4), axis=0)) == 12
    white = nearfar.embed(np.full_like(images, 255), encoder=Net(3)).features
    assert torch.equal(white, white[:1].expand_as(white)) and white.isfinite().all()
