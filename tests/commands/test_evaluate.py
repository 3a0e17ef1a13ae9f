"""`nearfar evaluate`, end to end: protocols, splits, and mistakes."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

import nearfar
from nearfar.data import open_images
from nearfar.data.images import sample
from nearfar.evaluation.results import sentence
from nearfar.papers.runs import packed, unpacked
from nearfar.run_evaluation import open_labelled
from nearfar.training.settings import Settings

ROWS = ["raw_pixels", "colour_histogram", "hog", "untrained", "trained"]


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
    return nearfar.Run(shutil.copytree(trained.path, tmp_path_factory.mktemp("runs") / "halves"))


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr("nearfar.evaluation.finetune.LEAST_STEPS", 2)


def test_protocols_on_frozen_features_have_a_row_for_each_baseline(run, quiet):
    options = dict(probe="sce", probe_lr=[0.01, 1.0])
    results = nearfar.evaluate(run, protocol=("linear-sgd", "knn_3"), console=quiet, **options)
    assert list(results) == ROWS
    for numbers in results.values():
        assert list(numbers) == ["linear_sgd", "knn_3"] and all(
            0 <= value <= 1 for value in numbers.values()
        )
    assert results["raw_pixels"]["linear_sgd"] > 0.95  # bright above or below: one line parts them


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
    options = dict(
        test_share=0.2, protocol=("finetune-1",), console=quiet, labels=str(tmp_path / "few.txt")
    )
    with pytest.raises(
        ValueError, match="are not here, such as"
    ):  # a fifth of the images is for the test
        (tmp_path / "few.txt").write_text("".join(f"{i:06d}\n" for i in range(80)))
        nearfar.evaluate(run, images_file, **options)
    with pytest.raises(FileNotFoundError):
        nearfar.evaluate(run, images_file, **{**options, "labels": str(tmp_path / "none.txt")})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("evaluate RUN --protocol linear-sdg", "did you mean 'linear-sgd'"),
        ("evaluate RUN --protocol finetune-200", "above 0 and up to 100"),
        ("evaluate RUN --protocol linear-sgd --probe scee", "did you mean 'sce'"),
        ("evaluate RUN --protocol knn --probe sce", "which --protocol does not ask for"),
        ("evaluate RUN --protocol knn --knn-temperature 0", "--knn-temperature"),
        (
            "evaluate RUN --protocol finetune --labels names.txt",
            "which --protocol does not ask for",
        ),
        ("evaluate RUN --protocol transfer", "see nearfar transfer"),
        (
            "transfer RUN --protocol transfr",
            "there is no protocol 'transfr': did you mean 'transfer'",
        ),
        ("transfer RUN --protocol knn", "there are transfer, transfer-sgd"),
        ("transfer RUN torchvision:dtd", "--root DIR"),
        ("transfer RUN torchvision:dtd --root nowhere", "nothing is downloaded"),
        ("transfer RUN --root nowhere", "--root is for data sets of torchvision"),
        ("transfer RUN --limit 0", "--limit"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(run, complaint, line, said):
    before = run.results
    assert said in complaint(*(run.path if word == "RUN" else word for word in line.split()))
    assert run.results == before


def test_predictions_are_kept_and_give_the_accuracies(run, quiet):
    results = nearfar.evaluate(
        run, protocol=("knn", "knn_5", "linear", "few"), baselines=False, console=quiet
    )
    with np.load(run.path / "predictions.npz") as saved:
        assert set(saved.files) == {"truth", "knn", "knn_5", "linear", "one_label", "five_labels"}
        for name in set(saved.files) - {"truth"}:
            right = saved[name] == saved["truth"]
            assert right.mean() == pytest.approx(results["trained"][name], rel=1e-12)
            assert unpacked(packed(right)) == pytest.approx(
                right.reshape(-1, right.shape[-1]).mean(0)
            )
            if name == "five_labels":
                assert right.shape[0] == 20
                assert right.mean(1).std() == pytest.approx(results["trained"]["five_labels_std"])


def test_settings_can_be_chosen_on_training_images_that_no_run_saw(tmp_path, quiet):
    options = dict(
        epochs=1,
        batch_size=64,
        limit=400,
        method="simclr",
        precision="32-true",
        held_out=0,
        console=quiet,
    )
    run = nearfar.pretrain("digits", out=str(tmp_path / "run"), **options)
    how = dict(protocol=("knn",), baselines=False, console=quiet)
    nearfar.evaluate(run, held_out=1000, **how)
    with np.load(run.path / "predictions.npz") as saved:
        truth = saved["truth"]
    train = open_images("digits", split="train")
    left = np.setdiff1d(np.arange(len(train)), sample(len(train), 400, 0))
    assert len(truth) == 1000 and (truth == train.labels[left[-1000:]]).all()
    with pytest.raises(
        ValueError, match=r"--held-out 1100: 1037 training images are left; lower it"
    ):
        nearfar.evaluate(run, held_out=1100, **how)
    assert (
        nearfar.evaluate(run, **how) != {}
        and len(np.load(run.path / "predictions.npz")["truth"]) == 360
    )


def opened(path, quiet, **options):
    settings = Settings(data=str(path), out="", image_size=8)
    return open_labelled(settings, None, quiet, **options)


def test_images_without_labels_are_refused(tmp_path, quiet):
    for name in ("a", "b"):
        Image.new("RGB", (9, 9)).save(tmp_path / f"{name}.png")
    with pytest.raises(ValueError, match="no labels to evaluate with"):
        opened(tmp_path, quiet)


def test_images_without_a_label_are_no_class(tmp_path, quiet):
    images, labels = np.zeros((40, 8, 8), np.uint8), np.arange(40) % 2
    labels[::4] = -1
    np.savez(tmp_path / "some.npz", images=images, labels=labels)
    sets = opened(tmp_path / "some.npz", quiet).splits
    names = sorted(sets["train"].names + sets["test"].names)
    assert names == [f"{i:06d}" for i in range(40) if i % 4]
    assert [len(sets["train"]), len(sets["test"])] == [24, 6]
    assert set(sets["train"].labels) == set(sets["test"].labels) == {0, 1}
    np.savez(
        tmp_path / "two.npz",
        x_train=images,
        y_train=labels,
        x_test=images,
        y_test=np.arange(40) - 30,
    )
    sets = opened(tmp_path / "two.npz", quiet).splits
    assert len(sets["train"]) == 30 and sets["test"].labels.tolist() == list(range(10))


def test_a_class_with_one_image_is_trained_on_and_not_tested(tmp_path, quiet):
    labels = np.array([7, *[0, 1] * 10])
    np.savez(tmp_path / "a.npz", images=np.zeros((21, 8, 8), np.uint8), labels=labels)
    sets = opened(tmp_path / "a.npz", quiet).splits
    assert sorted(sets["test"].labels) == [0, 0, 1, 1]
    assert sorted(sets["train"].labels) == [0] * 8 + [1] * 8 + [7]
    np.savez(tmp_path / "b.npz", images=np.zeros((12, 8, 8), np.uint8), labels=np.arange(12) % 6)
    with pytest.raises(
        ValueError,
        match=r"12 images of 6 classes are too few for --test-share 0.2: both parts need",
    ):
        opened(tmp_path / "b.npz", quiet)
    assert len(opened(tmp_path / "b.npz", quiet, share=0.5).splits["test"]) == 6
