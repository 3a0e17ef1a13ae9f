"""From weights that exist, end to end: normalisation, gentle settings, frozen stages, resuming
without the file.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file
from timm.models._hub import save_for_hf

import nearfar
from nearfar.networks import size_step
from tests.steps import at_step, same_runs

pytestmark = pytest.mark.usefixtures("known_speed", "no_pages")

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


@pytest.fixture
def weights(tmp_path):
    """A folder in timm's form with a ResNet-10 of random weights."""
    torch.manual_seed(1)
    net = timm.create_model("resnet10t", num_classes=4)
    net.pretrained_cfg |= dict(mean=MEAN, std=STD, num_classes=4)
    save_for_hf(net, tmp_path / "hub", safe_serialization=True)
    return tmp_path / "hub"


def run(images_file, out, **options):
    usual = dict(
        epochs=2, batch_size=16, held_out=16, log_every=1, method="simclr", precision="32-true"
    )
    return nearfar.pretrain(images_file, out=str(out), **(usual | options))


@pytest.mark.slow
def test_adapting_keeps_the_first_stages_and_the_weights_normalisation(
    weights, images_file, tmp_path
):
    adapted = run(images_file, tmp_path / "run", init=str(weights), adapt=True)
    settings, about = adapted.settings, adapted.encoder
    assert (settings.encoder, settings.optimizer) == ("resnet10t", "adamw")
    assert (settings.frozen, settings.layer_decay) == (2, 0.7)
    assert settings.warmup_epochs == pytest.approx(0.2)
    assert settings.lr == pytest.approx(3e-4 * (16 / 256) ** 0.5)
    assert settings.mean == pytest.approx([0.4]) and settings.std == pytest.approx(
        [0.25]
    )  # the images are grayscale
    assert about.mean.item() == pytest.approx(0.4) and about.std.item() == pytest.approx(0.25)
    before, after = (
        load_file(path / "encoder.safetensors")
        for path in (adapted.path / "starting", adapted.path)
    )
    first = ("conv1.", "bn1.", "layer1.")
    for key, value in before.items():
        assert torch.equal(value, after[key]) == key.startswith(first), key
    given = load_file(weights / "model.safetensors")
    torch.testing.assert_close(
        before["conv1.0.weight"], given["conv1.0.weight"].sum(1, keepdim=True)
    )
    assert torch.equal(before["layer4.0.conv1.weight"], given["layer4.0.conv1.weight"])


@pytest.mark.slow
def test_each_layer_has_its_rate_under_the_schedule(weights, images_file, tmp_path, monkeypatch):
    rates = []
    step = torch.optim.SGD.step

    def watched(self, *given, **named):
        rates.append({(group["lr_scale"], group["lr"]) for group in self.param_groups})
        return step(self, *given, **named)

    monkeypatch.setattr(torch.optim.SGD, "step", watched)
    done = run(
        images_file,
        tmp_path / "run",
        init=str(weights),
        layer_decay=0.5,
        frozen=1,
        optimizer="sgd",
        lr=0.1,
    )
    logged = [line["lr"] for line in done.metrics if "lr" in line]
    assert len(rates) == len(logged) == 8
    for groups, lr in zip(rates, logged, strict=True):
        assert dict(groups) == pytest.approx(
            {0.5**depth: lr * 0.5**depth for depth in range(5)}
        )  # head and 4 blocks


@pytest.mark.slow
def test_stopped_and_resumed_without_the_weights_is_uninterrupted(weights, images_file, tmp_path):
    whole = run(images_file, tmp_path / "whole", init=str(weights), adapt=True)
    with at_step(5), pytest.raises(nearfar.TrainingStopped):
        run(images_file, tmp_path / "parts", init=str(weights), adapt=True)
    shutil.rmtree(weights)
    (tmp_path / "parts").rename(tmp_path / "moved")
    parts = nearfar.resume(tmp_path / "moved")
    same_runs(parts, whole)
    nearfar.evaluate(parts, protocol=("knn",))  # starts from the copy in the run too


def test_a_run_is_continued_by_its_own_encoder(images_file, tmp_path):
    first = run(images_file, tmp_path / "first", encoder="small", epochs=1)
    with pytest.raises(ValueError, match="without starting weights"):
        run(images_file, tmp_path / "no", init=str(first.path), whiten=True)
    second = run(
        images_file,
        tmp_path / "second",
        init=str(first.path),
        adapt=True,
        lr=0.0,
        limit=40,
        epochs=1,
    )
    assert second.settings.encoder == "small"
    assert second.settings.mean == pytest.approx(first.encoder.mean.flatten().tolist())
    weights, others = (load_file(run.path / "encoder.safetensors") for run in (first, second))
    assert torch.equal(weights["blocks.0.conv1.weight"], others["blocks.0.conv1.weight"])


def test_a_run_starts_from_the_weights_of_the_package(images_file, tmp_path):
    started = run(images_file, tmp_path / "run", init="nearfar", lr=0.0, epochs=1)
    package = nearfar.networks.load_encoder(Path(nearfar.__file__).parent / "weights" / "small")
    assert started.settings.encoder == "small" and not started.settings.whiten
    assert started.settings.mean == pytest.approx([float(package.mean.mean())])
    trained, shipped = (
        started_run.backbone.net.blocks.state_dict() for started_run in (started.encoder, package)
    )
    assert all(
        torch.equal(trained[name], shipped[name]) for name in trained if name.endswith("weight")
    )


def test_adapting_needs_weights_and_a_net_that_has_some(images_file, complaint):
    assert "--init timm" in complaint("pretrain", images_file, "--adapt")
    words = ["pretrain", images_file, "--init", "timm"]
    assert "timm has no weights for" in complaint(*words, "--encoder", "small")
    error = complaint(*words, "--epochs", "1")  # resnet18, and no network
    assert "hf download timm/resnet18.a1_in1k --local-dir FOLDER" in error


@pytest.mark.slow
def test_normalisation_and_frozen_stages_can_be_given_without_weights(images_file, tmp_path):
    done = run(
        images_file,
        tmp_path / "run",
        encoder="resnet10t",
        mean=[0.3],
        std=[0.2],
        frozen=1,
        epochs=1,
    )
    assert (done.encoder.mean.item(), done.encoder.std.item()) == pytest.approx((0.3, 0.2))
    net = done.encoder.backbone.net
    assert net.bn1.num_batches_tracked == 0 < net.layer1[0].bn1.num_batches_tracked
    with pytest.raises(ValueError, match="`mean` and `std` go together"):
        run(images_file, tmp_path / "no", encoder="resnet10t", mean=[0.3])
    with pytest.raises(ValueError, match="1 channels need as many"):
        run(images_file, tmp_path / "no", encoder="resnet10t", mean=[0.3] * 3, std=[0.2] * 3)
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
def test_sizes_that_are_chosen_fit_the_patches(tmp_path, images_file):
    assert [size_step(name) for name in ("small", "resnet18", "vit_tiny_patch16_224")] == [1, 1, 16]
    assert size_step("vit_small_patch14_dinov2.lvd142m") == 14
    images = np.random.default_rng(0).integers(0, 255, (40, 20, 20, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images)
    done = run(tmp_path / "images.npz", tmp_path / "run", encoder="vit_tiny_patch16_224", epochs=1)
    assert (done.settings.image_size, done.settings.crop_size) == (16, 16)
    with pytest.raises(ValueError, match=r"height \(20\) .* patch size \(16\)"):
        run(
            tmp_path / "images.npz",
            tmp_path / "no",
            encoder="vit_tiny_patch16_224",
            image_size=20,
        )
