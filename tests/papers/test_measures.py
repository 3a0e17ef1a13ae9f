"""Numbers of the papers' tables that are no accuracies, against what can be counted or bounded."""

import json
import math
from functools import partial

import pytest
import torch

import nearfar
from nearfar.networks.backbone import with_grid
from nearfar.training.run_folder import CHECKPOINT
from nearfar_papers import measures, short_runs
from nearfar_papers.measures import IMAGES, MEASURES, main

pytestmark = pytest.mark.usefixtures("known_speed", "no_pages")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured") / "run"
    options = dict(
        method="saclr", limit=256, epochs=2, log_every=1, held_out=0, precision="32-true"
    )
    return nearfar.pretrain("digits", out=folder, **options)


@pytest.mark.parametrize(
    ("method", "numbers"),
    [
        (dict(method="simclr"), 0),
        (dict(method="saclr", scale="matrix"), 1),
        (dict(method="saclr", scale="row"), IMAGES),
        (dict(method="saclr", scale="row", images=7), 7),
        (dict(method="isogclr", images=7), 28),
    ],
)
def test_variables_are_those_of_table_7(tmp_path, method, numbers):
    assert MEASURES["variables"](method, tmp_path) == numbers


def test_a_curve_is_the_key_of_the_metrics(run):
    curve = MEASURES["curve"](dict(metric="loss"), run.path)
    assert curve == [line["loss"] for line in run.metrics] and len(curve) == 2
    positive, partition = (
        MEASURES["curve"](dict(metric=f"monitored.{key}"), run.path)
        for key in ("positive", "partition")
    )
    assert all(0 < value <= 1 for value in positive + partition) and partition[0] != partition[1]
    with pytest.raises(ValueError, match=r"metrics.jsonl has no monitored.negatives"):
        MEASURES["curve"](dict(metric="monitored.negatives"), run.path)


def test_the_nuclear_norm_of_32_unit_rows_lies_between_equal_and_orthogonal_ones(run):
    assert math.sqrt(32) <= MEASURES["nuclear"]({}, run.path) < 32


def test_a_measure_tells_what_it_read(run, capsys):
    main(["nuclear", json.dumps({"unit": "norm"}), str(run.path), "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert math.sqrt(32) <= printed["result"] < 32
    assert [entry["line"] for entry in printed["read"]] == [
        "digits, the split train of train, test: 1437 images read",  # for the projector
        "digits, the split test of train, test: 360 images read",
    ]
    main(["variables", json.dumps({"method": "simclr", "unit": "n"}), str(run.path)])
    assert json.loads(capsys.readouterr().out) == 0


def test_the_projector_of_a_run_is_that_of_its_last_step(run):
    _, projector = run.model().online
    encoder = nearfar.load(run)
    encoder.backbone = with_grid(encoder.backbone, 1)
    pixels = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8)
    state = torch.load(run.path / CHECKPOINT, weights_only=True)["model"]
    rows = encoder(pixels)
    first = {
        name.removeprefix("online.1."): value
        for name, value in state.items()
        if name.startswith("online.1.")
    }
    torch.testing.assert_close(dict(projector.state_dict()), first, rtol=0, atol=0)
    assert (
        projector(rows).shape == (4, run.settings.hyperparameters["projector"][-1])
        and not projector.training
    )


def test_the_plane_is_measured_on_the_test_images(run, monkeypatch):
    monkeypatch.setattr(nearfar, "map", partial(nearfar.map, epochs=2, num_views=2), raising=False)
    (run.path / "plane.html").write_text("left by a measurement that was stopped")
    plane = MEASURES["plane"]({}, run.path)
    numbers = json.loads((run.path / "plane.json").read_text())
    assert plane == 100 * numbers["knn_map"] and numbers["images"] == 360


def test_only_losses_of_one_network_are_measured_alone(tmp_path):
    with pytest.raises(ValueError, match="more than one network"):
        MEASURES["loss-memory"](dict(method="byol", batch_size=16), tmp_path)
    assert 0 <= MEASURES["loss-memory"](dict(method="simclr", batch_size=64), tmp_path) < 500


def test_the_share_of_a_loss_is_that_of_a_step_with_as_many_images(tmp_path, monkeypatch):
    monkeypatch.setattr(measures, "SECONDS", 0.0)
    given = dict(method="simclr", encoder="tiny", image_size=16, batch_size=128)
    assert MEASURES["step-share"](given, tmp_path) > 100
    monkeypatch.setattr(measures, "_fastest", lambda step: 0.5)
    monkeypatch.setattr(
        measures, "_rate", lambda given: given["batch_size"] / 2.0
    )  # 2 s for any step
    assert MEASURES["step-share"](given, tmp_path) == pytest.approx(
        100 * (1 + 0.5 / (128 * (2 - 0.5) / 512))
    )
    large = given | dict(encoder="resnet18")
    assert MEASURES["step-share"](large, tmp_path) == pytest.approx(
        100 * (1 + 0.5 / (128 * (2 - 0.5) / 32))
    )


def test_the_first_trial_of_a_process_gives_no_time(tmp_path, monkeypatch):
    speeds = iter([99.0, 50.0, 20.0])
    monkeypatch.setattr(measures, "SECONDS", 0.0)
    monkeypatch.setattr(measures, "training_speed", lambda *given, **options: next(speeds))
    given = dict(method="simclr", encoder="tiny", batch_size=100)
    assert MEASURES["step-time"](given, tmp_path) == 1000 * 100 / 50
    MEASURES["step-memory"](given, tmp_path)
    assert not list(speeds)  # memory took one trial


def test_the_learned_numbers_of_a_loss_end_where_the_metrics_do(tmp_path):
    options = dict(
        method="sigclr", learn_temperature=True, temperature=0.2, bias=-5.0, limit=64, batch_size=32
    )
    run = nearfar.pretrain(
        "digits",
        out=tmp_path / "run",
        epochs=2,
        log_every=1,
        **options,
    )
    for name, start in (("temperature", 0.2), ("bias", -5.0)):
        values = [line["monitored"][name] for line in run.metrics if "monitored" in line]
        assert MEASURES["last"](dict(metric=f"monitored.{name}"), run.path) == values[-1]
        assert values[0] == pytest.approx(start) and values[-1] != values[0]


def test_the_whole_matrix_is_simclrs_loss_and_takes_the_memory_of_all_pairs():
    views = torch.randn(2, 24, 8, dtype=torch.float32, requires_grad=True)
    whole, ours = measures.WholeMatrix(0.2), nearfar.losses.SimCLR(0.2)
    torch.testing.assert_close(whole(*views), ours(*views))
    gradients = [torch.autograd.grad(loss(*views), views)[0] for loss in (whole, ours)]
    torch.testing.assert_close(*gradients)
    given = dict(method="simclr", whole_matrix=True)
    assert isinstance(measures._method(given).setup(9).loss, measures.WholeMatrix)
    with pytest.raises(ValueError, match="whole_matrix takes SimCLR"):
        measures._method(dict(method="dcl", whole_matrix=True))


def test_the_effective_number_is_that_of_a_loop_over_images():
    generator = torch.Generator().manual_seed(0)
    z1, z2 = torch.nn.functional.normalize(torch.randn(2, 5, 3, generator=generator), dim=2)
    rows = torch.cat([z1, z2])
    for i, number in enumerate(short_runs.effective(z1, z2, 0.3)):
        weights = [
            sum(math.exp(float(rows[i] @ view[j]) / 0.3) for view in (z1, z2))
            for j in range(5)
            if j != i % 5
        ]
        assert float(number) == pytest.approx(sum(weights) ** 2 / sum(w * w for w in weights))
    same = torch.eye(3)[:1].expand(8, 3)
    assert short_runs.effective(same, same, 0.05).tolist() == pytest.approx([7.0] * 16)


SHORT = dict(
    data="digits",
    limit=256,
    epochs=2,
    batch_size=64,
    precision="32-true",
    image_size=8,
    metric="knn",
)


def test_a_short_run_gives_every_loss_one_temperature():
    base = {"metric": "knn", "widths": [8], "pair_temperature": 0.2, "epochs": 3}
    settings = {
        method: short_runs.settings_of({**base, "method": method})
        for method in ("simclr", "saclr", "sigclr")
    }
    assert settings["simclr"] == {"epochs": 3, "method": "simclr", "temperature": 0.2}
    assert settings["saclr"]["kernel"] == "cosine" and settings["saclr"]["bandwidth"] == 0.2
    assert settings["saclr"]["initial_partition"] == pytest.approx(math.exp(3))
    assert (settings["sigclr"]["temperature"], settings["sigclr"]["bias"]) == (0.2, -5)


@pytest.mark.slow
def test_a_short_run_is_the_run_that_pretrain_and_evaluate_make(tmp_path):
    """The named net without a run folder, on the test images; held-out images are others."""
    given = SHORT | dict(method="simclr", encoder="tiny", held_out=0, seed=3)
    accuracy = short_runs.accuracy(given | {"pair_temperature": 0.3}, tmp_path)
    settings = {name: value for name, value in given.items() if name != "metric"}
    run = nearfar.pretrain(**settings, temperature=0.3, out=tmp_path / "run")
    evaluated = run.evaluate(protocol=["knn"], baselines=False)["trained"]["knn"]
    assert accuracy == pytest.approx(100 * evaluated)
    own = dict(widths=[8, 16], side=8, crop_size=8, channels=1, pair_temperature=0.3)
    del given["encoder"]
    held = short_runs.accuracy(given | own | {"evaluate": {"held_out": 100}}, tmp_path)
    assert held == pytest.approx(round(held))  # of 100 images
    number = short_runs.effective_number(given | own, tmp_path)
    assert 1 <= number <= 63
