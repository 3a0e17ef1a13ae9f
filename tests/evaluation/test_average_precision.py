import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from nearfar.evaluation.average_precision import area_precision, eleven_point_precision, mean_precision, measure

THERE = np.array([True, False, True, False, False, True])
SCORES = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])  # precision 1, 1/2, 2/3, 2/4, 2/5, 3/6 at recall 1/3 ... 1


def test_by_hand():
    """Recall 0 to .3: 1; .4 to .6: 2/3; .7 to 1: 1/2. The area: thirds of 1, 2/3 and 1/2."""
    assert eleven_point_precision(THERE, SCORES) == pytest.approx((4 * 1 + 3 * 2 / 3 + 4 / 2) / 11)
    assert area_precision(THERE, SCORES) == pytest.approx((1 + 2 / 3 + 1 / 2) / 3)


def test_a_wrong_first_place_costs_at_recall_0_too():
    assert eleven_point_precision(np.array([False, True]), np.array([2.0, 1.0])) == pytest.approx(0.5)
    assert area_precision(np.array([False, True]), np.array([2.0, 1.0])) == pytest.approx(0.5)


def naive(there, scores):
    order = np.argsort(-scores)
    hits = there[order].cumsum()
    precision, recall = hits / np.arange(1, len(hits) + 1), hits / hits[-1]
    eleven = np.mean([max(precision[recall >= t - 1e-9]) for t in np.arange(11) / 10])
    area = np.mean([max(precision[rank:]) for rank in np.flatnonzero(there[order])])
    return eleven, area


def test_random_rankings_are_those_of_a_plain_loop_and_above_the_curve_that_is_not_made_to_fall():
    generator = np.random.default_rng(0)
    for _ in range(20):
        there, scores = generator.random(50) < 0.3, generator.random(50)
        eleven, area = naive(there, scores)
        assert eleven_point_precision(there, scores) == pytest.approx(eleven)
        assert area_precision(there, scores) == pytest.approx(area)
        assert area >= average_precision_score(there, scores)


def test_difficult_images_and_classes_that_nothing_shows_are_left_out():
    labels = np.array([[1, -1], [-1, -1], [0, -1]])
    scores = np.array([[1.0, 0.0], [0.0, 0.0], [2.0, 0.0]])
    assert mean_precision(eleven_point_precision, labels, scores) == 1.0
    assert measure("eleven_point_map", labels, scores, np.arange(2)) == 1.0


def test_accuracies_by_name():
    scores, truth = np.eye(3)[[0, 0, 0, 2]], np.array(["a", "a", "b", "c"])
    classes = np.array(["a", "b", "c"])
    assert measure("accuracy", truth, scores, classes) == 0.75
    assert measure("mean_per_class", truth, scores, classes) == pytest.approx(2 / 3)
