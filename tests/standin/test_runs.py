"""Runs on the GPU by public functions: trained, saved, resumed elsewhere, and every verb on what
was trained.
"""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image

import nearfar
from nearfar.data import open_images
from nearfar.evaluation import finetune
from nearfar.maps import LAYOUTS, load_map, projector
from tests.standin.conftest import REAL
from tests.steps import at_step, same_runs

PROTOCOLS = ["knn", "knn_3", "linear", "few", "linear-sgd", "finetune-50"]
# a momentum encoder and a queue; numbers of each image and a loss that learns; what else a
# checkpoint holds
RUNS = {
    "sce": dict(method="sce", queue_size=40, optimizer="larc", clip_gradient=1.0, micro_batch=8),
    "isogclr": dict(method="isogclr", optimizer="adamw", lr=1e-3),
    "saclr": dict(method="saclr", scale="row", negatives=3, optimizer="muon", lr=1e-3),
}


def begin(data, out, accelerator, **options):
    settings = dict(
        epochs=2,
        batch_size=16,
        held_out=16,
        log_every=1,
        encoder="tiny",
        precision="32-true",
        seed=3,
    )
    return nearfar.pretrain(data, out=out, accelerator=accelerator, **(settings | options))


@contextmanager
def without_gpu():
    """A machine without a GPU, as torch finds it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
        yield


def begin_and_stop(*given, **options):
    """Stop a run in the middle of its second epoch."""
    with at_step(5), pytest.raises(nearfar.TrainingStopped):
        begin(*given, **options)


def same_metrics(run, other, tolerance):
    """Losses, learning rates and health line by line."""
    assert [line["step"] for line in run.metrics] == [line["step"] for line in other.metrics]
    for entry, other_entry in zip(run.metrics, other.metrics, strict=True):
        for key in {"loss", "lr"} & entry.keys():
            assert entry[key] == pytest.approx(other_entry[key], rel=10 * tolerance["rtol"])
        measured, wanted = (
            {k: v for k, v in line.get("health", {}).items() if v is not None}
            for line in (entry, other_entry)
        )
        assert measured == pytest.approx(wanted, rel=0.02, abs=0.02)
    assert run.verdict.state == other.verdict.state


@pytest.mark.parametrize("there_first", [True, False], ids=["from the GPU", "to the GPU"])
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.slow
def test_a_run_goes_on_elsewhere(name, there_first, images_file, tmp_path, tolerance):
    """Stopped there and resumed on the CPU, and the other way round, it logs what a run on the CPU
    logs.
    """
    first, second = ("gpu", "cpu") if there_first else ("cpu", "gpu")
    whole = begin(images_file, tmp_path / "whole", "cpu", **RUNS[name])
    begin_and_stop(images_file, tmp_path / "parts", first, **RUNS[name])
    saved = torch.load(
        tmp_path / "parts" / "checkpoints" / "last.ckpt", map_location="cpu", weights_only=True
    )
    assert {x.device.type for x in saved["model"].values()} == {"cpu"}
    same_metrics(nearfar.resume(tmp_path / "parts", accelerator=second), whole, tolerance)


@pytest.mark.slow
def test_a_run_resumed_on_the_gpu_is_an_uninterrupted_one_to_the_last_bit(images_file, tmp_path):
    """With torch's deterministic algorithms; cuBLAS has them with CUBLAS_WORKSPACE_CONFIG=:4096:8
    alone.
    """
    torch.use_deterministic_algorithms(True)
    try:
        whole = begin(images_file, tmp_path / "whole", "gpu", **RUNS["sce"])
        begin_and_stop(images_file, tmp_path / "parts", "gpu", **RUNS["sce"])
        parts = nearfar.resume(tmp_path / "parts")
    finally:
        torch.use_deterministic_algorithms(False)
    same_runs(parts, whole)


def test_a_run_on_a_gpu_that_is_gone_names_the_way_out(images_file, tmp_path):
    run = begin(images_file, tmp_path / "run", "gpu", epochs=1)
    with without_gpu():
        with pytest.raises(ValueError, match="`accelerator='gpu'`"):
            run.resume()
        assert run.resume(accelerator="cpu").path == run.path
    assert run.settings.accelerator == "gpu"  # on a machine that has one it goes on there


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_half_precision_trains_as_on_the_cpu(precision, images_file, tmp_path):
    """Losses in float32 of embeddings in half precision; float16 with a scaled gradient, whose
    scale is saved.
    """
    settings = [("cpu", "32-true"), ("cpu", precision), ("gpu", precision)]
    runs = [
        begin(
            images_file, tmp_path / "-".join(given), given[0], precision=given[1], epochs=1, seed=1
        )
        for given in settings
    ]
    full, half, half_on_device = (
        [line["loss"] for line in run.metrics if "loss" in line] for run in runs
    )
    assert (
        half == pytest.approx(half_on_device, rel=0.02)
        and half == pytest.approx(full, rel=0.1)
        and half != full
    )
    saved = torch.load(
        runs[2].path / "checkpoints" / "last.ckpt", map_location="cpu", weights_only=True
    )
    assert ("scale" in saved["precision"]) == (precision == "16-mixed")


@pytest.mark.slow
def test_images_that_workers_decode_and_views_of_ones_own(tmp_path, tolerance):
    made = np.random.default_rng(0).integers(0, 256, (24, 20, 20, 3), dtype=np.uint8)
    (tmp_path / "images").mkdir()
    for number, image in enumerate(made):
        Image.fromarray(image).save(tmp_path / "images" / f"{number}.png")
    options = dict(image_size=16, batch_size=8, held_out=0, epochs=1)
    for name, more in {"files": dict(cache=False, workers=0), "own": dict(views=mirrored)}.items():
        runs = [
            begin(tmp_path / "images", tmp_path / f"{name}-{w}", w, **options, **more)
            for w in ("cpu", "gpu")
        ]
        first, second = ([line["loss"] for line in run.metrics if "loss" in line] for run in runs)
        assert len(first) == 3 and first == pytest.approx(second, rel=tolerance["rtol"])


def mirrored(images):
    return [images, images.flip(3)]


@pytest.fixture(scope="module")
def trained(images_file, tmp_path_factory):
    """A run that was trained on the GPU."""
    return begin(images_file, tmp_path_factory.mktemp("gpu") / "run", "gpu", method="sce")


@pytest.mark.slow
def test_the_encoder_gives_the_features_of_the_cpu(trained, images_file, device, tolerance):
    """`embed` with and without a GPU, and `load` there as a module of one's own."""
    on_device = np.load(trained.embed(out=trained.path / "there.npz").path)
    (trained.path / "features.safetensors").unlink()
    with without_gpu():
        here = np.load(trained.embed(out=trained.path / "here.npz").path)
    key = next(name for name in here if here[name].ndim == 2)
    np.testing.assert_allclose(
        on_device[key], here[key], rtol=tolerance["rtol"], atol=10 * tolerance["atol"]
    )
    pixels = torch.from_numpy(np.load(images_file)["images"])[:, None]
    encoder = nearfar.load(trained)
    assert {x.device.type for x in encoder.state_dict().values()} == {"cpu"}
    with torch.no_grad():
        rows = encoder.to(device)(pixels.to(device)).cpu().numpy()
    np.testing.assert_allclose(rows, here[key], rtol=tolerance["rtol"], atol=10 * tolerance["atol"])


@pytest.mark.slow
def test_every_protocol_gives_the_accuracies_of_the_cpu(trained, monkeypatch):
    monkeypatch.setattr(finetune, "LEAST_STEPS", 10)
    on_device = trained.evaluate(protocol=PROTOCOLS)
    with without_gpu():
        here = trained.evaluate(protocol=PROTOCOLS)
    assert on_device.keys() == here.keys() and len(on_device["trained"]) == 9
    for (
        row,
        numbers,
    ) in here.items():  # one test image of 16 more or less, where a GPU rounds in another way
        assert on_device[row] == pytest.approx(numbers, abs=0.07 if REAL else 1e-6)


@pytest.mark.slow
def test_searches_copies_and_choices_are_those_of_the_cpu(trained, images_file):
    names = open_images(images_file).names[:2]

    def results():
        (trained.path / "features.safetensors").unlink(missing_ok=True)
        near = trained.search(names, k=5)
        copies = trained.duplicates(distance=0.05)
        chosen = trained.select(n=6)
        return near["name"], copies["name"], chosen["name"], near["distance"]

    *images, distances = results()
    with without_gpu():
        *others, far = results()
    assert distances == pytest.approx(far, abs=1e-5)
    assert REAL or images == others


@pytest.mark.parametrize(
    "layout",
    [pytest.param(layout, marks=[pytest.mark.slow] * (layout == "finetune")) for layout in LAYOUTS],
)
@pytest.mark.slow
def test_a_map_is_that_of_the_cpu(layout, trained, images_file, tmp_path, monkeypatch):
    for stage in ("LEAST_STEPS", "FINETUNE_LEAST_STEPS"):
        monkeypatch.setattr(projector, stage, 20)

    def drawn(name):
        page = trained.map(out=tmp_path / f"{name}.html", layout=layout, epochs=3).path
        return load_map(page.with_suffix(".safetensors")).coordinates

    on_device = drawn("there")
    new = trained.map(
        images_file,
        out=tmp_path / "new.html",
        add_to=tmp_path / "there.html",
        limit=20,
    ).path
    assert new.is_file()
    with without_gpu():
        here = drawn("here")
    assert on_device.isfinite().all() and on_device.shape == here.shape == (80, 2)
    if not REAL:  # whose own random numbers give another map
        torch.testing.assert_close(on_device, here, rtol=1e-2, atol=1e-2 * float(here.std()))


@pytest.mark.parametrize("to", ["safetensors", "torch", "timm"])
def test_an_encoder_trained_there_is_exported(to, trained, tmp_path):
    assert trained.export(
        to=to, out=tmp_path / f"net{dict(safetensors='.safetensors', torch='.pt2').get(to, '')}"
    )
