"""`nearfar evaluate`, end to end: protocols, splits, and mistakes."""

import shutil
from itertools import product

import numpy as np
import pytest
from PIL import Image

import nearfar
from nearfar.data import open_images
from nearfar.data.images import sample
from nearfar.embeddings import Opening, resolve
from nearfar.evaluation import evaluate, finetune
from nearfar.evaluation.results import sentence
from nearfar.tools.evaluate.labelled_sets import divide, stratified_sample

ROWS = ["largest_class", "raw_pixels", "colour_histogram", "hog", "untrained", "trained"]


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory):
    return nearfar.Run(shutil.copytree(trained.path, tmp_path_factory.mktemp("runs") / "halves"))


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(finetune, "LEAST_STEPS", 2)


def test_protocols_on_frozen_features_have_a_row_for_each_baseline(run):
    options = dict(probe="sce", probe_lr=[0.01, 1.0])
    results = nearfar.evaluate(run, protocol=("linear-sgd", "knn_3"), **options)
    assert list(results) == ROWS
    for numbers in results.values():
        assert list(numbers) == ["linear_sgd", "knn_3"] and all(
            0 <= value <= 1 for value in numbers.values()
        )
    assert results["raw_pixels"]["linear_sgd"] > 0.95  # bright above or below: one line parts them


@pytest.mark.slow
def test_linear_layers_fit_on_crops_and_flips_of_the_training_images(run):
    plain, seen = (
        nearfar.evaluate(run, protocol=("linear", "linear-sgd", "knn_3"), probe_views=views)
        for views in (0, 4)
    )
    assert list(seen) == ROWS
    for row in ROWS[1:]:
        assert seen[row]["knn_3"] == plain[row]["knn_3"]
    assert seen["raw_pixels"]["linear"] > 0.8  # flips keep what is above
    assert "4 crops and flips" in seen.how["linear"] and "4 crops" in seen.how["linear_sgd"]
    assert "crops" not in plain.how["linear"] + seen.how["knn_3"]
    with pytest.raises(ValueError, match="probe_views"):
        nearfar.evaluate(run, protocol=("knn_3",), probe_views=2)
    vectors = np.eye(4).repeat(10, 0), np.arange(40) % 4
    with pytest.raises(ValueError, match="needs an encoder"):
        nearfar.evaluate(vectors, protocol=("linear",), probe_views=2)


def test_the_temperature_of_knn_reaches_the_votes(run, monkeypatch):
    seen = []
    vote = nearfar.evaluation.evaluate.vote
    watched = lambda *given: (seen.append(given[3]), vote(*given))[1]  # noqa: E731
    monkeypatch.setattr(evaluate, "vote", watched)
    for options in ({}, {"knn_temperature": 0.1}):
        nearfar.evaluate(run, protocol=("knn_3",), baselines=False, **options)
    assert seen == [0.07, 0.1]


@pytest.mark.slow
def test_fine_tuning_has_a_row_for_each_encoder_and_results_are_kept(run):
    before = nearfar.evaluate(run, protocol=("knn",))
    results = nearfar.evaluate(run, protocol=("finetune-10", "finetune"))
    assert list(results) == ["largest_class", "untrained", "trained"]
    assert all(set(numbers) == {"finetune_10", "finetune"} for numbers in results.values())
    written = run.results[-1]
    assert list(written) == ROWS
    for row, numbers in written.items():
        assert numbers["knn"] == before[row]["knn"]
        assert ("finetune" in numbers) == (row in results)
    assert sentence(written) in (run.path / "report.html").read_text()


def test_classes_that_a_list_of_labels_leaves_out_are_named(run, tmp_path, log):
    """Their test images count as wrong, and a list may be another share than the protocol's."""
    for split, kind in product(("train", "test"), ("ants", "bees", "cats")):
        (tmp_path / "few" / split / kind).mkdir(parents=True)
        for number in range(4):
            image = Image.new("RGB", (16, 16), (9 * number, 0, 30 * len(split)))
            image.save(tmp_path / "few" / split / kind / f"{kind} {number}.png")
    listed = tmp_path / "listed.txt"
    options = dict(protocol=("finetune-10",), labels=str(listed), baselines=False)
    listed.write_text("ants 1.png\nants 2.png\nbees 0.png\n")
    nearfar.evaluate(run, tmp_path / "few", **options)
    assert "finetune-10: " in log.text and "3 of the 12 training" in log.text
    assert "1 of the 3 classes" in log.text and "as wrong: cats\n" in log.text
    listed.write_text("ants 1.png\ncats 2.png\nbees 0.png\n")
    before = log.text.count("names no image of")
    nearfar.evaluate(run, tmp_path / "few", **options)
    assert log.text.count("names no image of") == before


def test_a_list_of_names_chooses_the_labelled_images(run, images_file, tmp_path):
    (tmp_path / "few.txt").write_text("000000\n000001\n000002\n000003\n")
    options = dict(test_share=0.2, protocol=("finetune-1",), labels=str(tmp_path / "few.txt"))
    with pytest.raises(
        ValueError, match=r"not here, or .* several"
    ):  # a fifth of the images is for the test
        (tmp_path / "few.txt").write_text("".join(f"{i:06d}\n" for i in range(80)))
        nearfar.evaluate(run, images_file, **options)
    for encoding in ("utf-8-sig", "utf-16"):
        (tmp_path / "few.txt").write_text("000000\nnowhere\n", encoding=encoding)
        with pytest.raises(ValueError, match=r"of the 2 images"):
            nearfar.evaluate(run, images_file, **options)
    with pytest.raises(FileNotFoundError):
        nearfar.evaluate(run, images_file, **{**options, "labels": str(tmp_path / "none.txt")})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("evaluate RUN --protocol linear-sdg", "did you mean 'linear-sgd'"),
        ("evaluate RUN --protocol finetune-200", "up to 100"),
        ("evaluate RUN --protocol linear-sgd --probe scee", "did you mean 'sce'"),
        ("evaluate RUN --protocol knn --probe sce", "--protocol does not ask"),
        ("evaluate RUN --protocol knn --knn-temperature 0", "--knn-temperature"),
        (
            "evaluate RUN --protocol finetune --labels names.txt",
            "--protocol does not ask",
        ),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(run, complaint, line, message):
    before = run.results
    assert message in complaint(*(run.path if word == "RUN" else word for word in line.split()))
    assert run.results == before


def test_predictions_are_kept_and_give_the_accuracies(run):
    results = nearfar.evaluate(run, protocol=("knn", "knn_5", "linear", "few"), baselines=False)
    with np.load(run.path / "predictions.npz") as saved:
        assert set(saved.files) == {"truth", "knn", "knn_5", "linear", "one_label", "five_labels"}
        for name in set(saved.files) - {"truth"}:
            right = saved[name] == saved["truth"]
            assert right.mean() == pytest.approx(results["trained"][name], rel=1e-12)
            if name == "five_labels":
                assert right.shape[0] == 20
                assert right.mean(1).std() == pytest.approx(results["trained"]["five_labels_std"])


@pytest.mark.slow
def test_settings_can_be_chosen_on_training_images_that_no_run_saw(tmp_path):
    options = dict(
        epochs=1,
        batch_size=64,
        limit=400,
        method="simclr",
        precision="32-true",
        held_out=0,
    )
    run = nearfar.pretrain("digits", out=str(tmp_path / "run"), **options)
    settings = dict(protocol=("knn",), baselines=False)
    nearfar.evaluate(run, held_out=1000, **settings)
    with np.load(run.path / "predictions.npz") as saved:
        truth = saved["truth"]
    train = open_images("digits", split="train")
    left = np.setdiff1d(np.arange(len(train)), sample(len(train), 400, 0))
    expected = stratified_sample(train.labels[left], 1000, 0)
    assert len(truth) == 1000 and (truth == train.labels[left[expected]]).all()
    with pytest.raises(ValueError, match=r"`held_out=1100`: 1037 training images"):
        nearfar.evaluate(run, held_out=1100, **settings)
    assert (
        nearfar.evaluate(run, **settings) != {}
        and len(np.load(run.path / "predictions.npz")["truth"]) == 360
    )


def opened(path, **options):
    photos = resolve(str(path)).open(Opening(usual=("train", "test")))
    return divide(photos, **options)


def test_images_without_labels_are_refused(tmp_path):
    for name in ("a", "b"):
        Image.new("RGB", (9, 9)).save(tmp_path / f"{name}.png")
    with pytest.raises(ValueError, match="no labels to evaluate with"):
        opened(tmp_path)


def test_classes_that_nothing_was_fitted_to_are_told(tmp_path, log):
    """Folders that are named otherwise in the test split, and a class that the limit leaves out."""
    for folder, count in (("train/cat", 9), ("train/dog", 1), ("test/cats", 2), ("test/dog", 3)):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (9, 9), (number, 0, 0)).save(tmp_path / folder / f"{number}.png")
    opened(tmp_path)
    assert "2 of 5 test images" in log.text and log.text.endswith(": cats\n")
    opened(tmp_path, limit=2, seed=0)
    assert "5 of 5 test images" in log.text and log.text.endswith(": cats, dog\n")


def test_images_without_a_label_are_no_class(tmp_path):
    images, labels = np.zeros((40, 8, 8), np.uint8), np.arange(40) % 2
    labels[::4] = -1
    np.savez(tmp_path / "some.npz", images=images, labels=labels)
    sets = opened(tmp_path / "some.npz").splits
    names = sorted(sets["train"].names + sets["test"].names)
    assert names == [f"{i:06d}" for i in range(40) if i % 4]
    assert [len(sets["train"]), len(sets["test"])] == [24, 6]
    assert set(sets["train"].labels) == set(sets["test"].labels) == {0, 1}
    np.savez(
        tmp_path / "two.npz",
        x_train=images,
        y_train=labels,
        x_test=images,
        y_test=np.where(np.arange(40) < 30, -1, np.arange(40) % 2),
    )
    sets = opened(tmp_path / "two.npz").splits
    assert len(sets["train"]) == 30 and sets["test"].labels.tolist() == [0, 1] * 5


def test_a_class_with_one_image_is_trained_on_and_not_tested(tmp_path):
    labels = np.array([7, *[0, 1] * 10])
    np.savez(tmp_path / "a.npz", images=np.zeros((21, 8, 8), np.uint8), labels=labels)
    sets = opened(tmp_path / "a.npz").splits
    assert sorted(sets["test"].labels) == [0, 0, 1, 1]
    assert sorted(sets["train"].labels) == [0] * 8 + [1] * 8 + [7]
    np.savez(tmp_path / "b.npz", images=np.zeros((12, 8, 8), np.uint8), labels=np.arange(12) % 6)
    with pytest.raises(
        ValueError,
        match=r"12 images of 6 classes .*`test_share=0.2`",
    ):
        opened(tmp_path / "b.npz")
    assert len(opened(tmp_path / "b.npz", share=0.5).splits["test"]) == 6


def test_held_out_images_have_the_classes_of_a_set_that_is_sorted_by_class():
    labels = np.repeat([0, 1, 2, 3], [400, 200, 100, 3])
    first, again, other = (stratified_sample(labels, 140, seed) for seed in (0, 0, 1))
    assert (first == again).all() and not np.array_equal(first, other)
    assert len(set(first.tolist())) == 140
    counts = np.bincount(labels[first], minlength=4)
    assert np.abs(counts - 140 * np.array([400, 200, 100, 3]) / 703).max() <= 1
    assert (np.diff(np.flatnonzero(np.isin(np.arange(400), first))) > 1).any()  # not a run of them
    assert stratified_sample(labels, 703, 0).tolist() == list(range(703))


def test_numbers_of_other_data_seeds_limits_and_encoders_stand_apart(run, tmp_path):
    """Each is a measurement of its own; the same again, under another name, replaces its
    numbers.
    """
    (run.path / "results.json").unlink(missing_ok=True)
    chance = np.random.default_rng(1)
    images, labels = chance.integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 2
    for name in ("one.npz", "same.npz"):
        np.savez(tmp_path / name, images=images, labels=labels)
    np.savez(tmp_path / "labels.npz", images=images, labels=labels[::-1])
    settings = dict(protocol=("knn_3",))
    own = nearfar.evaluate(run, **settings)
    alone = nearfar.evaluate(run, tmp_path / "one.npz", baselines=False, **settings)
    assert list(alone) == ["trained"] and list(run.results[-1]) == ["trained"]  # none of the others
    assert len(run.results) == 2 and run.results[0] == own
    nearfar.evaluate(run, tmp_path / "same.npz", baselines=False, **settings)
    assert len(run.results) == 2 and run.results[-1].on.data.endswith("same.npz")
    for data, options in (("labels.npz", {}), ("one.npz", {"seed": 1}), ("one.npz", {"limit": 9})):
        before = len(run.results)
        nearfar.evaluate(run, tmp_path / data, baselines=False, **options, **settings)
        assert len(run.results) == before + 1
    assert run.results[-1].on.limit == run.results[-1].on.train_images == 9
    page = (run.path / "report.html").read_text()
    assert page.count("<h2>Evaluation</h2>") == 5 and "one.npz: 9 images to fit" in page
    assert {result.on.encoder for result in run.results} == {run.weights}


def test_a_column_with_other_options_is_replaced_as_a_whole(run):
    (run.path / "results.json").unlink(missing_ok=True)
    fresh = nearfar.Run(shutil.copytree(run.path, run.path.with_name("options")))
    nearfar.evaluate(fresh, protocol=("knn_3", "linear"))
    nearfar.evaluate(fresh, protocol=("knn_3",), knn_temperature=0.5, baselines=False)
    [measured] = fresh.results
    assert "knn_3" not in measured["hog"] and "linear" in measured["hog"]
    assert measured.how["knn_3"] == "temperature 0.5"


def test_results_of_an_earlier_version_are_one_line(run, complaint, tmp_path):
    for text, message in (
        ('{"trained": {"knn": 0.5}}', "is of an earlier version"),
        ('{"measurements": [{"on": 1}]}', "is damaged"),
        ('{"measurements": 3}', "is damaged"),
        ("[]", "is damaged"),
    ):
        folder = tmp_path / message[-8:] / str(len(text))
        shutil.copytree(run.path, folder)
        (folder / "results.json").write_text(text)
        assert message in complaint("evaluate", folder, "--protocol", "knn_3")


def test_classes_of_unequal_size_have_a_balanced_accuracy_and_the_largest_is_a_row(
    trained, tmp_path
):
    folder = nearfar.Run(shutil.copytree(trained.path, tmp_path / "run"))
    chance = np.random.default_rng(0)
    images, labels = chance.integers(0, 256, (200, 8, 8), dtype=np.uint8), np.arange(200) % 10 > 7
    np.savez(tmp_path / "a.npz", images=images, labels=labels.astype(int))
    accuracies = nearfar.evaluate(folder, tmp_path / "a.npz", protocol=("knn_3", "linear", "few"))
    assert accuracies["largest_class"] == pytest.approx(
        {"knn_3": 0.8, "knn_3_balanced": 0.5, "linear": 0.8, "linear_balanced": 0.5}
    )
    assert accuracies.on.largest == pytest.approx(0.8) and accuracies.on.classes == 2
    with np.load(folder.path / "predictions.npz") as saved:
        right, truth = saved["knn_3"] == saved["truth"], saved["truth"]
    expected = np.mean([right[truth == label].mean() for label in (0, 1)])
    assert accuracies["trained"]["knn_3_balanced"] == pytest.approx(expected)
    assert "encoder beats" not in sentence(accuracies)  # noise
