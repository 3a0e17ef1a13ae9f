"""Choices for a machine: by its speed, among the settings left to choose, and written down as
numbers.
"""

import logging
import time

import pytest
import torch
import yaml
from nearfar.training.budget import (
    MODEL_SIZES,
    choose_model_size,
    epochs_in,
    model_candidates,
    training_speed,
)

import nearfar
from nearfar.device import half_precision
from nearfar.methods import method_class
from nearfar.training import budget
from nearfar.training import job as job_module
from nearfar.training.settings import Settings
from nearfar.views import plan

pytestmark = pytest.mark.usefixtures("known_speed")

SIMCLR = method_class("simclr").from_recipe()


@pytest.fixture
def machine(monkeypatch):
    """Images per second by (encoder, image size), and how much faster bfloat16 is; what was tried
    is listed.
    """
    speeds, tried = {"bf16-mixed": 1.0, "compiled": 1.0}, []

    def speed(given, method, views, candidate, channels, *, precision, batch_size, compiled):
        encoder, image_size, _ = candidate
        rate = speeds[encoder, image_size] * (
            speeds["bf16-mixed"] if precision == "bf16-mixed" else 1.0
        )
        if compiled:
            return rate * speeds["compiled"]
        tried.append((encoder, image_size, precision))
        return rate

    monkeypatch.setattr(budget, "training_speed", speed)
    monkeypatch.setattr(budget, "half_precision", lambda device: "bf16-mixed")
    return speeds, tried


def choose(given, images, seconds, candidates=None):
    candidates = candidates or model_candidates(given, 500, photographs=True)
    return choose_model_size(
        given,
        SIMCLR,
        lambda size, crop: plan("strong", crop, 3),
        candidates=candidates,
        channels=3,
        images=images,
        seconds=seconds,
    )


def test_the_largest_that_leaves_epochs_enough(machine):
    speeds, tried = machine
    speeds |= dict(zip(MODEL_SIZES, (800.0, 400.0, 200.0, 50.0, 30.0, 5.0), strict=True))
    enough = budget.LEAST_EPOCHS * 2000
    given = Settings("photos", precision="32-true", compile=False)
    assert choose(given, 2000, enough / 800).image_size == MODEL_SIZES[0][1]
    assert (
        choose(given, 2000, 0.1).image_size == MODEL_SIZES[0][1]
    )  # not even that: still the fastest
    found = choose(given, 2000, 1.01 * enough / 200)
    assert (found.encoder, found.image_size, found.crop_size) == (
        *MODEL_SIZES[2],
        MODEL_SIZES[2][1] * 2 // 3,
    )
    assert (
        choose(given, None, 1e9).image_size == MODEL_SIZES[0][1]
    )  # a number of images that is not known
    tried.clear()
    assert choose(given, 2000, 1.01 * enough / 50).encoder == "resnet18"
    assert tried == [
        (*pair, "32-true") for pair in MODEL_SIZES[:5]
    ]  # and nothing behind the first that does not fit


def test_the_medium_net_where_a_run_sees_200_000_images_of_32_pixels(machine):
    speeds, _ = machine
    speeds |= {("small", 32): 900.0, ("medium", 32): 400.0}
    given = Settings("cifar", precision="32-true")
    found = [
        choose(given, 50_000, seconds, model_candidates(given, 32, False)).encoder
        for seconds in (490.0, 510.0)
    ]
    assert found == ["small", "medium"]
    assert (
        choose(given, 1000, 260.0, model_candidates(given, 32, False)).encoder == "medium"
    )  # 100 epochs of few images are enough


def test_what_is_given_is_not_chosen(machine):
    _, tried = machine
    assert model_candidates(Settings("photos", encoder="vit", image_size=64), 500, True) == [
        ("vit", 64, 64)
    ]
    assert [
        size for _, size, _ in model_candidates(Settings("photos", encoder="vit"), 500, True)
    ] == [
        96,
        144,
        192,
        240,
    ]
    assert model_candidates(Settings("photos", image_size=64), 500, True)[0] == ("small", 64, 64)
    assert {size for _, size, _ in model_candidates(Settings("photos"), 150, True)} == {
        96,
        144,
    }  # never larger than they are
    assert model_candidates(Settings("photos"), 8, False) == [("small", 8, 8)]
    assert model_candidates(Settings("photos"), 32, False) == [
        ("small", 32, 24),
        ("medium", 32, 24),
    ]
    assert model_candidates(Settings("photos", epochs=5.0, crop_size=32), 32, False) == [
        ("small", 32, 32)
    ]
    assert model_candidates(Settings("photos", recipe="cifar", encoder="resnet18"), 32, False) == [
        ("resnet18", 32, 32)
    ]
    assert model_candidates(Settings("photos", epochs=5.0), 500, True) == [("small", 96, 64)]
    given = Settings("photos", encoder="vit", image_size=64, epochs=5.0, precision="32-true")
    assert choose(given, 2000, 60.0).rate is None and tried == []


@pytest.mark.parametrize(("gain", "precision"), [(2.0, "bf16-mixed"), (1.05, "32-true")])
def test_the_faster_precision(machine, gain, precision):
    speeds, tried = machine
    speeds |= {MODEL_SIZES[0]: 100.0, MODEL_SIZES[1]: 50.0, "bf16-mixed": gain}
    found = choose(Settings("photos"), 2000, 60.0)
    assert found.precision == precision
    assert found.rate == pytest.approx(100.0 * max(gain if precision != "32-true" else 1.0, 1.0))
    assert [kind for *_, kind in tried] == ["32-true", "bf16-mixed"] * 3


def test_a_cpu_without_bfloat16_is_not_slowed_down_by_its_trial(machine, monkeypatch):
    """There it is emulated: the trial of the first net would leave no time to try a larger one."""
    speeds, tried = machine
    monkeypatch.setattr(budget, "half_precision", half_precision)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False, raising=False)
    speeds |= {("small", 32): 900.0, ("medium", 32): 400.0}
    given = Settings("cifar", accelerator="cpu", compile=False)
    found = choose(given, 50_000, 3600.0, model_candidates(given, 32, False))
    assert (found.encoder, found.precision) == (
        "medium",
        "32-true",
    ) and "no bfloat16" in found.reason
    assert tried == [("small", 32, "32-true"), ("medium", 32, "32-true")]


@pytest.mark.parametrize(
    ("gain", "seconds", "compiled"), [(1.2, 700.0, True), (1.03, 700.0, False), (1.2, 500.0, False)]
)
def test_torch_compiles_a_long_run_where_that_pays(machine, gain, seconds, compiled):
    speeds, _ = machine
    speeds |= {MODEL_SIZES[0]: 100.0, MODEL_SIZES[1]: 1.0, "compiled": gain}
    found = choose(Settings("photos", precision="32-true"), 2000, seconds)
    assert found.compiled == compiled and found.rate == pytest.approx(
        100.0 * (gain if compiled else 1.0)
    )
    assert ("1.2 times as fast compiled" in found.reason) == compiled
    assert not choose(
        Settings("photos", precision="32-true", compile=False), 2000, seconds
    ).compiled


def test_a_failing_compiler_leaves_the_run_as_it_is(machine, monkeypatch):
    speeds, _ = machine
    speeds |= {MODEL_SIZES[0]: 100.0, MODEL_SIZES[1]: 1.0}
    plainly = budget.training_speed

    def failing(*given, compiled=False, **named):
        if compiled:
            raise AssertionError("what a compiler may raise")
        return plainly(*given, compiled=compiled, **named)

    monkeypatch.setattr(budget, "training_speed", failing)
    found = choose(Settings("photos", precision="32-true"), 2000, 700.0)
    assert not found.compiled and found.rate == 100.0


def test_where_float32_does_not_fit_half_precision_is_taken_for_that(machine):
    speeds, _ = machine
    speeds |= dict.fromkeys(MODEL_SIZES, 0.0)
    assert choose(Settings("photos", compile=False), 2000, 1.0).rate == 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            budget, "training_speed", lambda *a, precision, **k: 50.0 * (precision == "bf16-mixed")
        )
        found = choose(Settings("photos", compile=False), 2000, 1.0)
    assert (found.precision, found.reason) == (
        "bf16-mixed",
        ", bf16-mixed as float32 does not fit into the memory",
    )


def test_a_trial_has_the_batch_and_the_parts_that_are_given(images_file, tmp_path, monkeypatch):
    """A run begins even if not even a trial fits into the memory."""
    seen = set()

    def full(self, make_views, index, batch, seed):
        seen.add((len(index), self.micro_batch))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(budget.GradientStep, "__call__", full)
    with pytest.raises(torch.OutOfMemoryError):
        nearfar.pretrain(images_file, out=tmp_path / "run", epochs=1, batch_size=16, micro_batch=4)
    assert seen == {(16, 4)}


def test_a_slow_compiler_is_tried_once(monkeypatch):
    tried = []

    def speed(*given, compiled=False, **options):
        time.sleep(0.02 * compiled)
        return tried.append(compiled) or 1.0 + compiled

    monkeypatch.setattr(budget, "training_speed", speed)
    monkeypatch.setattr(budget, "LONGEST", 0.005)
    given = Settings("photos", precision="32-true", image_size=32)
    assert choose(given, None, 600.0, [("small", 32, 24)]).compiled
    assert tried == [False, True, False]  # the choice of the machine, and one pair


def test_epochs_fill_the_time():
    assert epochs_in(600.0, 500.0, 2000, 256) == 150
    assert epochs_in(60.0, 100.0, 1000, 256) == 6
    assert epochs_in(1.0, 10.0, 1_000_000, 256) == 256 / 1_000_000  # at least one step
    assert epochs_in(3600.0, 5000.0, 1000, 256) == 1000


def test_a_trial_trains_in_either_precision_and_logs_nothing(caplog):
    caplog.set_level("INFO", "nearfar")
    for precision in ("32-true", "bf16-mixed"):
        rate = training_speed(
            Settings("photos"),
            SIMCLR,
            plan("strong", 16, 3),
            ("small", 16, 16),
            3,
            precision=precision,
        )
        assert 1 < rate < 1e7
    assert not caplog.records and not logging.getLogger("nearfar").disabled


def test_a_run_with_minutes_writes_what_it_did(images_file, tmp_path):
    run = nearfar.pretrain(
        images_file,
        minutes=0.1,
        out=str(tmp_path / "run"),
        method="simclr",
        batch_size=16,
    )
    config = yaml.safe_load((run.path / "config.yaml").read_text())
    last = max(line["epoch"] for line in run.metrics)
    assert config["minutes"] is None and config["epochs"] == pytest.approx(last)
    assert (
        config["precision"] == "32-true"
        and config["encoder"] == "small"
        and config["crop_size"] == 8
    )


def test_a_paper_s_recipe_keeps_its_epochs(images_file, tmp_path, monkeypatch):
    seen = []

    def launch(job, model, on_metrics):
        seen.append(job)
        raise InterruptedError

    monkeypatch.setattr(job_module, "launch", launch)
    with pytest.raises(InterruptedError):
        nearfar.pretrain(
            images_file,
            method="simclr",
            recipe="cifar",
            batch_size=16,
            out=str(tmp_path / "run"),
        )
    settings = seen[0].settings
    assert settings.epochs == 1000 and seen[0].seconds is None
    assert (settings.encoder, settings.optimizer, settings.sync_batch_norm) == (
        "resnet50",
        "lars",
        True,
    )
    assert seen[0].views == plan(
        "simclr-cifar", settings.image_size, 1
    )  # the paper's, not fitted to small grey images
