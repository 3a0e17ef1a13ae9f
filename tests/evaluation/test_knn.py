"""kNN and the nearest class mean against scikit-learn and naive loops."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from nearfar.evaluation import few_shot_accuracy, knn_accuracy, knn_predict, linear_accuracy
from nearfar.evaluation.knn import sample_labels, vote


@pytest.mark.parametrize("k", [1, 20, 1200])
def test_knn_is_scikit_learns_with_exponential_weights(clouds, k):
    train_x, train_y, test_x, test_y = clouds
    test_x, test_y = test_x[:300], test_y[:300]
    reference = KNeighborsClassifier(k, metric="cosine", weights=lambda d: np.exp((1 - d) / 0.07))
    expected = reference.fit(train_x.double(), train_y).predict(test_x.double())
    predicted = knn_predict(train_x, train_y, test_x, k=k)
    assert (predicted == expected).mean() >= 0.996  # float32 against float64 at near ties
    assert knn_accuracy(train_x, train_y, test_x, test_y, k=k) == (predicted == test_y).mean()


def test_weights_can_outvote_the_majority():
    train_x = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    predicted = knn_predict(train_x, ["near", "far", "far"], np.array([[1.0, 0.1]]), k=3)
    assert list(predicted) == ["near"]
    assert list(
        knn_predict(train_x, ["near", "far", "far"], np.array([[1.0, 0.1]]), k=3, temperature=100.0)
    ) == ["far"]


def test_unseen_test_classes_count_as_wrong(clouds):
    train_x, train_y, test_x, test_y = clouds
    kept = train_y != 3
    accuracy = knn_accuracy(train_x[kept], train_y[kept], test_x, test_y)
    known = test_y != 3
    seen_only = knn_accuracy(train_x[kept], train_y[kept], test_x[known], test_y[known])
    assert accuracy == pytest.approx(seen_only * known.mean())


def test_bad_input_is_named(clouds):
    train_x, train_y, test_x, test_y = clouds
    for given, message in (
        (
            (train_x[:20], train_y[:20], test_x, test_y, 21),
            r"21 neighbours .* 20 rows",
        ),
        ((train_x, train_y, test_x, test_y, 0), "0 neighbours"),
        ((train_x, train_y, test_x, None), "test images have no labels"),
        ((train_x, train_y[:-1], test_x, test_y), r"1200 .*images need 1200 labels"),
        ((train_x[:, :5], train_y, test_x, test_y), r"rows of 5 .*queries"),
        ((train_x / 0, train_y, test_x, test_y), "not finite"),
    ):
        with pytest.raises(ValueError, match=message):
            knn_accuracy(*given)
    with pytest.raises(ValueError, match="temperature"):
        vote(torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int64), 1, temperature=0.0)


def naive(train_x, train_y, test_x, test_y, chosen):
    """Nearest class mean by cosine, one test image at a time, in float64."""
    train_x, test_x = train_x.astype(np.float64), test_x.astype(np.float64)
    centre = train_x.mean(0)
    right = 0
    for x, truth in zip(test_x - centre, test_y, strict=True):
        best = {}
        for label in set(train_y[chosen].tolist()):
            rows = [train_x[i] - centre for i in chosen if train_y[i] == label]
            mean = sum(r / np.linalg.norm(r) for r in rows)
            best[label] = mean @ x / np.linalg.norm(mean)
        right += max(best, key=best.get) == truth
    return right / len(test_y)


def test_few_shot_accuracy_is_the_mean_of_naive_draws(digits):
    train_x, train_y, test_x, test_y = (part[:240] for part in digits)
    scores = few_shot_accuracy(
        train_x, train_y, test_x, test_y, labels_per_class=(1, 3), trials=4, seed=7
    )
    for per_class, score in scores.items():
        trials = sample_labels(train_y, per_class, 4, seed=7)
        expected = [naive(train_x, train_y, test_x, test_y, chosen) for chosen in trials]
        assert score.mean == pytest.approx(np.mean(expected), abs=0.002)
        assert score.deviation == pytest.approx(np.std(expected), abs=0.002)


def test_raw_digits_score_what_the_project_measures_against(digits):
    scores = few_shot_accuracy(*digits)
    assert 0.63 < scores[1].mean < 0.69  # "raw: about 0.66"
    assert 0.80 < scores[5].mean < 0.88
    assert 0.02 < scores[1].deviation < 0.09
    assert scores[5].deviation < scores[1].deviation


def test_draws_take_each_class_equally_and_depend_on_seed_and_trial_alone():
    labels = np.array([3] * 30 + [5] * 10 + [9] * 2)
    trials = sample_labels(labels, 4, trials=20)
    for chosen in trials:
        assert len(set(chosen.tolist())) == len(chosen)
        counts = np.unique(labels[chosen], return_counts=True)
        assert counts[0].tolist() == [3, 5, 9] and counts[1].tolist() == [
            4,
            4,
            2,
        ]  # a rare class gives all it has
    assert len({tuple(sorted(chosen.tolist())) for chosen in trials}) > 15
    np.testing.assert_array_equal(trials[:3], sample_labels(labels, 4, trials=3))
    assert not np.array_equal(trials[0], sample_labels(labels, 4, trials=1, seed=1)[0])


def test_minus_one_beside_one_is_a_class_and_beside_zero_a_missing_label():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(400, 8)).astype(np.float32), rng.choice([-1, 1], 400)
    chance = knn_accuracy(x[:200], y[:200], x[200:], y[200:])
    assert 0.35 < chance < 0.65  # of random labels
    assert knn_accuracy(x[:200], y[:200] * 1.0, x[200:], list(y[200:])) == chance
    only = y[200:] == -1  # a test set of one class is told by the training labels
    assert knn_accuracy(x[:200], y[:200], x[200:][only], y[200:][only]) < 1
    missing = np.where(y == -1, 0, y)
    missing[::2] = -1
    kept = knn_accuracy(x[:200], missing[:200], x[200:], missing[200:])
    assert kept == knn_accuracy(x[1:200:2], missing[1:200:2], x[201::2], missing[201::2])


@pytest.mark.parametrize("probe", [knn_accuracy, few_shot_accuracy, linear_accuracy])
def test_a_single_class_is_refused_by_every_probe(probe):
    x = np.random.default_rng(0).normal(size=(40, 4))
    for labels in (np.zeros(40, int), ["a"] * 40, [1.0, None] * 20):
        with pytest.raises(ValueError, match="at least two classes"):
            probe(x, labels, x, labels)


def test_features_that_are_not_finite_are_named_by_their_rows():
    x, y = np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 2
    x[[7, 9], 1] = np.nan
    with pytest.raises(ValueError, match=r"row 7 .* of 2") as error:
        knn_accuracy(x, y, x, y)
    assert "encoder" not in str(error.value)
