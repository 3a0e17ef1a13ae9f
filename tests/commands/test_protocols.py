"""The papers' protocols, end to end."""

import json

import numpy as np
import pytest

import nearfar
from nearfar.cli import main
from nearfar.commands.worth import sentence
from nearfar.data import open_images
from nearfar.data.images import sample
from tests.data.test_standard_sets import write_dtd, write_pets, write_voc

ROWS = ["raw_pixels", "colour_histogram", "hog", "untrained", "trained"]


@pytest.fixture(scope="module")
def run(images_file, tmp_path_factory):
    from rich.console import Console

    out = tmp_path_factory.mktemp("runs") / "halves"
    options = dict(
        epochs=1, batch_size=16, held_out=0, encoder="small", method="simclr", channels=3, precision="32-true"
    )
    return nearfar.pretrain(images_file, out=str(out), console=Console(quiet=True), **options)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr("nearfar.evaluation.finetune.LEAST_STEPS", 2)
    monkeypatch.setattr("nearfar.evaluation.transfer.PENALTIES", (0.1, 10.0))


@pytest.mark.parametrize(
    ("protocol", "keys", "options"),
    [
        ("linear-sgd", ["linear_sgd"], {}),
        ("linear-sgd", ["linear_sgd"], {"probe": "sce", "probe_lr": [0.01, 1.0]}),
        ("transfer", ["transfer"], {}),
        ("low-shot", ["low_shot_16", "low_shot_16_std", "low_shot_all"], {}),
    ],
)
def test_protocols_on_frozen_features_have_a_row_for_each_rival(run, quiet, protocol, keys, options):
    results = nearfar.evaluate(run, protocol=(protocol,), console=quiet, **options)
    assert list(results) == ROWS
    for numbers in results.values():
        assert set(numbers) >= set(keys) and all(0 <= value <= 1 for value in numbers.values())
    assert results["raw_pixels"][keys[-1]] > 0.95  # bright above or below: one line parts them


def test_the_temperature_of_knn_reaches_the_votes(run, quiet, monkeypatch):
    seen = []
    vote = nearfar.evaluation.evaluate.vote
    watched = lambda *given: (seen.append(given[3]), vote(*given))[1]  # noqa: E731
    monkeypatch.setattr("nearfar.evaluation.evaluate.vote", watched)
    for options in ({}, {"knn_temperature": 0.1}):
        nearfar.evaluate(run, protocol=("knn_3",), baselines=False, console=quiet, **options)
    assert seen == [0.07, 0.1]


def test_fine_tuning_has_a_row_for_each_encoder_and_results_are_kept(run, quiet):
    before = nearfar.evaluate(run, protocol=("knn",), console=quiet)
    results = nearfar.evaluate(run, protocol=("finetune-10", "finetune"), console=quiet)
    assert list(results) == ["untrained", "trained"]
    assert all(set(numbers) == {"finetune_10", "finetune"} for numbers in results.values())
    written = json.loads((run.path / "results.json").read_text())
    assert list(written) == ROWS
    for row, numbers in written.items():
        assert numbers["knn"] == before[row]["knn"]
        assert ("finetune" in numbers) == (row in results)
    assert sentence(written) in (run.path / "report.html").read_text()


def test_a_list_of_names_chooses_the_labelled_images(run, images_file, quiet, tmp_path):
    (tmp_path / "few.txt").write_text("000000\n000001\n000002\n000003\n")
    options = dict(test_share=0.2, protocol=("finetune-1",), console=quiet, labels=str(tmp_path / "few.txt"))
    with pytest.raises(ValueError, match="are not here, such as"):  # a fifth of the images is for the test
        (tmp_path / "few.txt").write_text("".join(f"{i:06d}\n" for i in range(80)))
        nearfar.evaluate(run, images_file, **options)
    with pytest.raises(FileNotFoundError):
        nearfar.evaluate(run, images_file, **{**options, "labels": str(tmp_path / "none.txt")})


def test_data_sets_of_torchvision_have_columns_of_their_own(run, tmp_path, quiet):
    write_dtd(tmp_path)
    write_pets(tmp_path)
    for name in ("dtd", "pets"):
        options = dict(root=str(tmp_path), protocol=("transfer", "finetune"), console=quiet)
        results = nearfar.evaluate(run, f"torchvision:{name}", **options)
        assert results["colour_histogram"] == {f"transfer_{name}": 1.0}  # light red and dark blue
        assert set(results["trained"]) == {f"transfer_{name}", f"finetune_{name}"}
    assert set(run.results["trained"]) >= {"transfer_dtd", "transfer_pets"}


def test_voc_is_measured_by_average_precision(run, tmp_path, quiet):
    write_voc(tmp_path, train=12, test=6)
    options = dict(root=str(tmp_path), console=quiet)
    results = nearfar.evaluate(run, "torchvision:voc2007", protocol=("transfer", "low-shot"), **options)
    assert results["colour_histogram"]["transfer_voc2007"] == results["raw_pixels"]["transfer_voc2007"] == 1.0
    assert results["colour_histogram"]["low_shot_all_voc2007"] == 1.0
    assert "low_shot_16_voc2007_std" in results["trained"]
    with pytest.raises(ValueError, match="linear-sgd needs one label an image"):
        nearfar.evaluate(run, "torchvision:voc2007", protocol=("linear-sgd",), **options)
    with pytest.raises(ValueError, match="finetune-1 needs one label an image"):
        nearfar.evaluate(run, "torchvision:voc2007", protocol=("transfer", "finetune-1"), **options)


def test_a_validation_split_of_a_folder_is_used_by_transfer(run, tmp_path, quiet, monkeypatch):
    from tests.data.test_standard_sets import picture

    for part, count in (("train", 6), ("validation", 4), ("test", 4)):
        for kind, shade in (("a", 200), ("b", 40)):
            for i in range(count):
                picture(tmp_path / part / kind / f"{i}.png", shade)
    seen = []
    real = nearfar.evaluation.evaluate.transfer_accuracy
    watched = lambda *given, **named: (seen.append([len(part[1]) for part in given[:3]]), real(*given, **named))[1]  # noqa: E731
    monkeypatch.setattr("nearfar.evaluation.evaluate.transfer_accuracy", watched)
    results = nearfar.evaluate(run, str(tmp_path), protocol=("transfer",), baselines=False, console=quiet)
    assert seen == [[12, 8, 8]] and list(results) == ["trained"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--protocol", "linear-sdg"], "did you mean 'linear-sgd'"),
        (["--protocol", "finetune-200"], "above 0 and up to 100"),
        (["--protocol", "linear-sgd", "--probe", "scee"], "did you mean 'sce'"),
        (["--protocol", "knn", "--probe", "sce"], "which --protocol does not ask for"),
        (["--protocol", "knn", "--knn-temperature", "0"], "--knn-temperature"),
        (["--protocol", "finetune", "--labels", "names.txt"], "which --protocol does not ask for"),
        (["torchvision:dtd", "--protocol", "transfer"], "--root DIR"),
        (["torchvision:dtd", "--protocol", "transfer", "--root", "nowhere"], "nothing is downloaded"),
        (["--protocol", "transfer", "--root", "nowhere"], "--root is for data sets of torchvision"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(run, capsys, words, said):
    before = run.results
    assert main(["evaluate", str(run.path), *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and run.results == before


def test_the_command_line_takes_several_rates(run, capsys):
    words = ["--protocol", "linear-sgd", "--probe", "lorac", "--probe-lr", "0.1", "1"]
    assert main(["evaluate", str(run.path), *words, "--no-baselines"]) == 0
    assert np.isfinite(run.results["trained"]["linear_sgd"])


def test_predictions_are_kept_and_give_the_accuracies(run, quiet):
    results = nearfar.evaluate(run, protocol=("knn", "knn_5", "linear"), baselines=False, console=quiet)
    with np.load(run.path / "predictions.npz") as saved:
        assert set(saved.files) == {"truth", "knn", "knn_5", "linear"}
        for name in ("knn", "knn_5", "linear"):
            assert np.mean(saved[name] == saved["truth"]) == results["trained"][name]


def test_settings_can_be_chosen_on_training_images_that_no_run_saw(tmp_path, quiet):
    options = dict(epochs=1, batch_size=64, limit=400, method="simclr", precision="32-true", held_out=0, console=quiet)
    run = nearfar.pretrain("digits", out=str(tmp_path / "run"), **options)
    how = dict(protocol=("knn",), baselines=False, console=quiet)
    nearfar.evaluate(run, held_out=1000, **how)
    with np.load(run.path / "predictions.npz") as saved:
        truth = saved["truth"]
    train = open_images("digits", split="train")
    left = np.setdiff1d(np.arange(len(train)), sample(len(train), 400, 0))
    assert len(truth) == 1000 and (truth == train.labels[left[-1000:]]).all()
    with pytest.raises(ValueError, match=r"--held-out 1100: 1037 training images are left; lower it"):
        nearfar.evaluate(run, held_out=1100, **how)
    assert nearfar.evaluate(run, **how) != {} and len(np.load(run.path / "predictions.npz")["truth"]) == 360
