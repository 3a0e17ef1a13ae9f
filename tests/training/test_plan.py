"""Defaults work on few images; what a user gave and cannot be is refused before there is a
folder.
"""

import time
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import nearfar
import nearfar.data
from nearfar.commands import pretrain
from nearfar.methods import method_class, method_names
from nearfar.networks import Encoder, build_backbone
from nearfar.tools.evaluate.rows import encoders_by_row
from nearfar.training import job as job_module
from nearfar.training import prepare as prepare_module
from nearfar.training import trial
from nearfar.training.facts import Facts
from nearfar.training.model_size import ModelChoice, model_candidates
from nearfar.training.plan import epochs_in, plan_run
from nearfar.training.prepare import prepare
from nearfar.training.request import resolve, resolve_method
from nearfar.training.settings import Settings
from nearfar.training.view_choice import resolve_views, views_at
from nearfar.views import plan

pytestmark = pytest.mark.usefixtures("known_speed")


def some(count, size=8, channels=1):
    return np.random.default_rng(0).integers(0, 256, (count, size, size, channels), dtype=np.uint8)


# The plan by itself: numbers in, numbers out

FACTS = Facts(
    images=1000,
    side=32,
    channels=3,
    device="cpu",
    place="2 threads",
    half=None,
    processes=1,
    seconds=60.0,
    weights=False,
)
MODEL = ModelChoice("small", 32, 24, "32-true", 500.0, "")


def planned(model=MODEL, known=FACTS, **given):
    return plan_run(resolve(Settings("photos", **given)), known, model)


def facts(**changes):
    return replace(FACTS, **changes)


@pytest.mark.parametrize("name", method_names())
def test_a_plan_leaves_nothing_to_choose(name):
    """And it is the same plan each time, which is its own plan when it is read again."""
    first, second = planned(method=name, threads=2), planned(method=name, threads=2)
    assert first.settings.unchosen() == []
    assert first.settings == second.settings and first.notes == second.notes
    assert resolve(first.settings).method == first.method


@pytest.mark.parametrize(
    ("images", "given", "held_out", "batch_size"),
    [
        (1000, {}, 100, 256),
        (100_000, {}, 512, 256),
        (1000, dict(limit=100), 10, 32),
        (1000, dict(held_out=0), 0, 256),
        (1000, dict(held_out=990), 990, 4),
        (1000, dict(batch_size=32), 100, 32),
        (19, {}, 0, 8),
        (1000, dict(recipe="cifar"), 100, 512),
    ],
)
def test_the_validation_set_and_the_batch(images, given, held_out, batch_size):
    settings = planned(known=facts(images=images), **given).settings
    assert (settings.held_out, settings.batch_size) == (held_out, batch_size)


@pytest.mark.parametrize(
    ("seconds", "rate", "images", "epochs"),
    [
        (600.0, 500.0, 2000, 150),
        (60.0, 100.0, 1000, 6),
        (3600.0, 5000.0, 1000, 1000),
        (1.0, 10.0, 1_000_000, 256 / 1_000_000),  # at least one step
    ],
)
def test_epochs_fill_the_time(seconds, rate, images, epochs):
    assert epochs_in(seconds, rate, images, 256) == epochs
    plan = planned(
        replace(MODEL, rate=rate), facts(images=images, seconds=seconds), held_out=0, minutes=1
    )
    assert (plan.settings.epochs, plan.seconds) == (epochs, seconds)


@pytest.mark.parametrize(
    ("epochs", "batch_size", "lr", "warmup"),
    [(100, 256, 0.02, 2), (8, 64, 0.01, 2), (4, 1024, 0.04, 1)],
)
def test_the_learning_rate_follows_the_batch_and_the_warm_up_the_epochs(
    epochs, batch_size, lr, warmup
):
    """SimCLR for small data: 0.02 at 256 images, by the square root; two epochs, at most a
    quarter.
    """
    known = facts(images=2000)
    settings = planned(known=known, epochs=epochs, batch_size=batch_size).settings
    assert (settings.lr, settings.warmup_epochs) == (pytest.approx(lr), warmup)


def test_a_paper_s_recipe_keeps_its_epochs():
    plan = planned(known=facts(images=50_000), method="simclr", recipe="cifar")
    settings = plan.settings
    assert settings.epochs == 1000 and plan.seconds is None
    assert (settings.optimizer, settings.sync_batch_norm) == ("lars", True)
    assert resolve(Settings("photos", method="simclr", recipe="cifar")).settings.encoder == (
        "resnet50"
    )


@pytest.mark.parametrize(
    ("weights", "channels", "side", "beside"),
    [
        (True, 3, 32, "pretrained+edges"),
        (False, 3, 32, "none"),
        (True, 5, 32, "none"),
        (True, 3, 16, "none"),
    ],
)
def test_pretrained_weights_stand_beside_the_net_by_the_facts(weights, channels, side, beside):
    model = replace(MODEL, image_size=side, crop_size=side)
    known = facts(weights=weights, channels=channels)
    assert planned(model, known).settings.beside == beside


def test_every_process_needs_an_image_of_the_batch():
    with pytest.raises(ValueError, match="images of all processes"):
        planned(known=facts(images=20, processes=16))


# From the public function


def begun(data, tmp_path, monkeypatch, **options):
    """Return the settings with which training would begin; nothing is trained."""
    seen = []
    monkeypatch.setattr(job_module, "launch", lambda job, *given, **named: seen.append(job))
    monkeypatch.setattr(pretrain, "_finish", lambda folder, *rest: nearfar.Run(folder))
    options = dict(epochs=1, encoder="small", precision="32-true") | options
    nearfar.pretrain(data, out=str(tmp_path / "run"), **options)
    images, held_out = seen[0].sets
    assert len(images) >= seen[0].settings.batch_size >= 2 and (
        held_out is None or len(held_out) >= 2
    )
    return seen[0].settings


@pytest.mark.parametrize(
    ("count", "batch", "held_out"), [(2, 2, 0), (19, 8, 0), (20, 8, 2), (285, 256, 28)]
)
def test_defaults_suit_the_number_of_images(count, batch, held_out, tmp_path, monkeypatch, log):
    settings = begun(some(count), tmp_path, monkeypatch)
    assert (settings.batch_size, settings.held_out) == (batch, held_out)
    assert (f"`batch_size={batch}`, for {count - held_out} training images" in log.text) == (
        batch < 256
    )
    assert ("too few for a validation" in log.text) == (held_out == 0)


@pytest.mark.parametrize(("opened", "crop"), [(32, 24), (128, 128)])
@pytest.mark.parametrize("length", [dict(epochs=1), dict(minutes=1)])
def test_images_that_are_open_keep_their_size(opened, crop, length, tmp_path):
    """Those of more than 96 px could not be trained on: another size was chosen for them."""
    images = nearfar.data.open_images(some(20, 150, channels=3), image_size=opened)
    given = Settings(images, out=str(tmp_path / "run"), precision="32-true", **length)
    job, _ = prepare(given, time.perf_counter())
    assert (job.settings.image_size, job.settings.crop_size) == (opened, crop)


def test_ten_images_train(tmp_path):
    run = nearfar.pretrain(some(10), out=tmp_path / "run", epochs=1, encoder="small")
    assert (run.path / "encoder.safetensors").is_file() and run.verdict is None
    assert "No images were held out" in (run.path / "report.html").read_text()


def test_whitening_takes_all_images_and_then_fewer_features(tmp_path, monkeypatch, log):
    settings = begun(
        some(110), tmp_path / "a", monkeypatch, method="wmse"
    )  # 99 to train on, 64 features
    assert settings.batch_size == 99 and settings.hyperparameters["projector"] == (512, 64)
    settings = begun(some(40), tmp_path / "b", monkeypatch, method="wmse")
    assert settings.batch_size == 36 and settings.hyperparameters["projector"] == (512, 32)
    assert "`batch_size=36` and `projector=(512, 32)`, for 36" in log.text
    settings = begun(some(300), tmp_path / "c", monkeypatch, method="wmse", batch_size=32)
    assert settings.batch_size == 32 and settings.hyperparameters["projector"] == (512, 16)


def test_a_channel_that_is_empty_is_not_scaled(tmp_path, monkeypatch, log):
    images = some(40, channels=3)
    images[..., 2] = 0
    settings = begun(images, tmp_path, monkeypatch)
    assert settings.std[2] == 1.0 and settings.mean[2] == 0.0 and "not scaled" in log.text
    np.testing.assert_allclose(settings.std[:2], (images / 255).std((0, 1, 2))[:2], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(held_out=1), "`held_out=1`"),
        (dict(held_out=40), "none of the 40 images"),
        (dict(held_out=39), "too few"),
        (dict(limit=1), "too few"),
        (dict(batch_size=1), r"`batch_size=1` .*2 images"),
        (dict(batch_size=37), "larger than the 36 images"),
        (dict(method="saclr", negatives=36), r"36 negatives .* at least 37"),
        (dict(method="wmse", batch_size=32, projector=(64,)), "more than 64 images"),
        (
            dict(method="moco-v2", norm_groups=30, batch_size=16),
            "`batch_size=16` does not work: .*normalisation",
        ),
        (
            dict(data=some(600), method="moco-v2", norm_groups=8, batch_size=300),
            "`batch_size=300` does not work: ",
        ),
        (
            dict(data=some(600), group_size=64, batch_size=300),
            "`batch_size=300` does not work: .*group",
        ),
        (dict(minutes=1), "`minutes` and `epochs`"),
        (dict(batch_size=2, devices=3, accelerator="cpu"), "images of all processes"),
        (dict(micro_batch="auto", devices=2, accelerator="cpu"), "one process"),
        (
            dict(micro_batch=4, devices=2, accelerator="cpu", sync_batch_norm=True),
            "`sync_batch_norm` needs",
        ),
        (dict(encoder="resnet18", whiten=True), r"`whiten` .* tiny, small, medium"),
        (dict(data=np.zeros((40, 8, 8), dtype=np.uint8)), "all of one colour"),
        (
            dict(method="lorac", large_views=5000),
            r"5002 views .*at most 100",
        ),
        (dict(data=some(1)), "too few"),
        (dict(method="simclr", views=lambda pixels: [pixels / 255]), r"1 views, .* simclr needs 2"),
    ],
)
def test_what_cannot_be_leaves_no_folder(options, says, tmp_path):
    data = options.pop("data", some(40))
    settings = dict(epochs=1, encoder="small", precision="32-true")
    with pytest.raises(ValueError, match=says):
        nearfar.pretrain(data, out=str(tmp_path / "runs" / "run"), **settings | options)
    assert not list(tmp_path.iterdir())


ENCODERS = {
    "frozen": (
        lambda: timm.create_model("resnet10t", num_classes=0).requires_grad_(False),
        "nothing of the encoder would be trained: all of its .* have requires_grad=False",
    ),
    "of a run": (
        lambda: Encoder(
            build_backbone("tiny", image_size=8, channels=3), 8, 3, [0.5] * 3, [1.0] * 3
        ),
        "normalises images itself: give its backbone, .* or start from its weights by init=run",
    ),
}


@pytest.mark.parametrize("kind", ENCODERS)
def test_an_encoder_that_would_learn_nothing_is_refused(kind, tmp_path):
    """A frozen net ran for its half hour, and came out as it had gone in."""
    make, says = ENCODERS[kind]
    with pytest.raises(ValueError, match=says):
        nearfar.pretrain(some(40), out=tmp_path / "run", epochs=1, encoder=make())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "says"), [("broken", "can be read"), ("one", "too few"), ("run", "is a run folder")]
)
def test_data_to_train_nothing_on_is_refused_before_a_measurement(
    kind, says, trained, tmp_path, monkeypatch
):
    monkeypatch.setattr(prepare_module, "choose_model", None)
    folder = trained.path if kind == "run" else tmp_path / "photos"
    folder.mkdir(exist_ok=True)
    if kind == "one":
        Image.new("RGB", (200, 200)).save(folder / "a.png")
    elif kind == "broken":
        (folder / "a.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=says):
        nearfar.pretrain(folder, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["saclr", "byol", "swav", "lorac", "sce"])
def test_every_kind_of_loss_is_tried_with_few_images(name, tmp_path, monkeypatch):
    assert method_class(name).recipe("small").batch_size > 18
    assert begun(some(20), tmp_path, monkeypatch, method=name).batch_size == 8


@pytest.mark.usefixtures("no_pages")
@pytest.mark.slow
def test_the_first_convolution_is_as_it_was_after_training_and_stopping(tmp_path):
    shared = dict(limit=256, batch_size=64, encoder="tiny", whiten=True)
    runs = [
        nearfar.pretrain("digits", out=str(tmp_path / f"{n}"), epochs=n, **shared) for n in (1, 2)
    ]
    first, second = (nearfar.load(run).backbone.net.conv.weight for run in runs)
    assert torch.equal(first, second) and torch.equal(
        first[9:18], -first[:9]
    )  # 9 pixels a patch, both signs
    plain = nearfar.pretrain(
        "digits", out=str(tmp_path / "plain"), epochs=1, **shared | {"whiten": False}
    )
    assert not torch.equal(nearfar.load(plain).backbone.net.conv.weight[:9], first[:9])
    compared = encoders_by_row(runs[0], None, baselines=True)
    assert torch.equal(
        compared["untrained"].backbone.net.conv.weight, first
    )  # so began the training too


@pytest.mark.parametrize(
    ("encoder", "channels", "whitened"),
    [
        ("small", 3, True),
        ("medium", 3, True),
        ("small", 1, False),
        ("tiny", 3, False),
        ("resnet18", 3, False),
    ],
)
def test_our_nets_begin_whitened_by_default_on_colour_images(encoder, channels, whitened, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (64, 32, 32, channels), np.uint8)
    job, _ = prepare(Settings(data=images, out=str(tmp_path), encoder=encoder, epochs=1), 0.0)
    assert job.settings.whiten is whitened


@pytest.mark.parametrize(
    ("options", "size", "share"),
    [
        ({}, 64, 0.5),
        ({"method": "sce", "views": "photographs"}, 8, 0.5),
        ({}, 8, 0.0),
        ({"views": "microscope"}, 64, 0.0),
        ({"recipe": "imagenet", "image_size": 64}, 64, 0.0),
        ({"views": "simclr+simclr", "keep_colour": 0.25}, 64, 0.25),
        ({"views": replace(plan("simclr+simclr", 8, 3), keep_colour=0.75)}, 8, 0.75),
    ],
)
def test_some_photographs_keep_their_colours_in_all_views(
    options, size, share, tmp_path, monkeypatch
):
    settings = begun(some(40, size, channels=3), tmp_path, monkeypatch, **options)
    assert settings.keep_colour == resolve_views(settings.views, settings).keep_colour == share


def test_a_function_of_views_decides_on_colours_itself(tmp_path):
    with pytest.raises(ValueError, match="not for a callable"):
        nearfar.pretrain(some(40), out=tmp_path / "run", views=lambda x: [x, x], keep_colour=0.5)


NETS = {  # and the side of a patch, 1 where there is none
    "vit_tiny_patch16_224": 16,
    "vit_tiny_r_s16_p8_224": 8,
    "swin_tiny_patch4_window7_224": 4,
    "convnext_atto": 1,
    "resnet18": 1,
    "efficientnet_b0": 1,
}


@pytest.mark.parametrize("side", [32, 96])
@pytest.mark.parametrize("name", NETS)
@pytest.mark.slow
def test_views_have_sizes_that_the_encoder_can_take(name, side):
    """Large and small crops: whole patches, four of a side where the image has as many."""
    given = Settings("photos", encoder=name, method="swav", epochs=1)
    method, _ = resolve_method(given)
    ((encoder, image_size, crop_size),) = model_candidates(given, side)
    views = views_at(given, method, image_size, crop_size, 3)
    sizes = {view.size for view in views.views}
    assert max(sizes) == crop_size <= image_size <= side
    assert min(sizes) >= min(4 * NETS[name], side)
    net = build_backbone(encoder, image_size=crop_size, channels=3).eval()
    for size in sizes:
        assert size % NETS[name] == 0
        assert net(torch.zeros(2, 3, size, size)).isfinite().all()


@pytest.mark.parametrize(("encoder", "image_size"), [("test_vit", 64), ("test_convnext", None)])
@pytest.mark.usefixtures("no_pages")
def test_small_crops_train_a_net_that_takes_few_sizes(encoder, image_size, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
    options = dict(epochs=0.4, batch_size=8, held_out=4, precision="32-true")
    run = nearfar.pretrain(
        images,
        method="swav",
        encoder=encoder,
        image_size=image_size,
        out=tmp_path / "run",
        **options,
    )
    assert run.encoder(torch.from_numpy(images[:2]).permute(0, 3, 1, 2)).isfinite().all()


@pytest.mark.parametrize("sizes", [{"batch_size": 37}, {"held_out": 40}, {"limit": 1}])
def test_sizes_that_cannot_be_are_told_before_anything_is_measured(sizes, monkeypatch, tmp_path):
    def measured(*given, **named):
        raise AssertionError("the speed was measured first")

    monkeypatch.setattr(trial, "training_speed", measured)
    with pytest.raises(ValueError, match=r"images?"):
        nearfar.pretrain(some(40), minutes=1, out=str(tmp_path / "run"), **sizes)


@pytest.mark.parametrize(("crop_size", "words"), [(16, 0), (24, 1)])
def test_crops_larger_than_the_images_are_a_line(crop_size, words, tmp_path, log):
    nearfar.pretrain(
        some(10), out=tmp_path / "run", epochs=1, encoder="tiny", image_size=16, crop_size=crop_size
    )
    assert log.text.count("enlarged from images of 16 px") == words
