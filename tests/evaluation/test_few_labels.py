import numpy as np
import pytest

from nearfar.evaluation import few_label_accuracy
from nearfar.evaluation.few_labels import sample_labels


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


def test_few_labels_is_the_mean_of_naive_draws(digits):
    train_x, train_y, test_x, test_y = (part[:240] for part in digits)
    scores = few_label_accuracy(train_x, train_y, test_x, test_y, labels_per_class=(1, 3), trials=4, seed=7)
    for per_class, score in scores.items():
        trials = sample_labels(train_y, per_class, 4, seed=7)
        expected = [naive(train_x, train_y, test_x, test_y, chosen) for chosen in trials]
        assert score.mean == pytest.approx(np.mean(expected), abs=0.002)
        assert score.deviation == pytest.approx(np.std(expected), abs=0.002)


def test_raw_digits_score_what_the_project_measures_against(digits):
    scores = few_label_accuracy(*digits)
    assert 0.63 < scores[1].mean < 0.69  # "raw: about 0.66"
    assert 0.80 < scores[5].mean < 0.88
    assert 0.02 < scores[1].deviation < 0.09
    assert scores[5].deviation < scores[1].deviation


def test_draws_take_each_class_equally_and_differ():
    labels = np.array([3] * 30 + [5] * 10 + [9] * 2)
    trials = sample_labels(labels, 4, trials=20)
    for chosen in trials:
        assert len(set(chosen.tolist())) == len(chosen)
        counts = np.unique(labels[chosen], return_counts=True)
        assert counts[0].tolist() == [3, 5, 9] and counts[1].tolist() == [4, 4, 2]  # a rare class gives all it has
    assert len({tuple(sorted(chosen.tolist())) for chosen in trials}) > 15


def test_draws_do_not_depend_on_the_features_nor_on_how_many_draws_follow():
    labels = np.arange(50) % 5
    first = sample_labels(labels, 1, trials=20)
    np.testing.assert_array_equal(first[:3], sample_labels(labels, 1, trials=3))
    assert not np.array_equal(first[0], sample_labels(labels, 1, trials=1, seed=1)[0])


def test_a_common_offset_of_all_features_does_not_matter(digits):
    train_x, train_y, test_x, test_y = digits
    plain = few_label_accuracy(train_x, train_y, test_x, test_y, trials=3)
    moved = few_label_accuracy(train_x + 5, train_y, test_x + 5, test_y, trials=3)
    assert moved[1].mean == pytest.approx(plain[1].mean, abs=0.003)


def test_bad_input_is_named(digits):
    train_x, train_y, test_x, test_y = digits
    with pytest.raises(ValueError, match="no labels"):
        few_label_accuracy(train_x, None, test_x, test_y)
    with pytest.raises(ValueError, match="at least 1"):
        few_label_accuracy(train_x, train_y, test_x, test_y, labels_per_class=(0,))
