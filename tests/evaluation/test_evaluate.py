import numpy as np
import pytest

from nearfar.evaluation import (
    evaluate_features,
    few_label_accuracy,
    knn_accuracy,
    linear_accuracy,
    linear_sgd_accuracy,
    mean_per_class_accuracy,
)
from nearfar.evaluation.labelled import accuracy


def test_all_protocols_give_what_each_gives_alone(digits):
    results = evaluate_features(*digits)
    assert list(results) == ["knn", "linear", "one_label", "one_label_std", "five_labels", "five_labels_std"]
    scores = few_label_accuracy(*digits)
    assert results["knn"] == knn_accuracy(*digits, k=20)
    assert results["linear"] == linear_accuracy(*digits)
    assert (results["one_label"], results["one_label_std"]) == scores[1]
    assert (results["five_labels"], results["five_labels_std"]) == scores[5]
    assert results["knn"] > 0.96 and results["linear"] > 0.94


def test_other_protocols_on_request(digits):
    results = evaluate_features(*digits, protocols=("knn_10", "knn_200", "sgd"))
    assert results == {
        "knn_10": knn_accuracy(*digits, k=10),
        "knn_200": knn_accuracy(*digits, k=200),
        "linear_sgd": linear_sgd_accuracy(*digits),
    }


@pytest.mark.parametrize("name", ["knm", "knn_", "knn_x", "knn_0", "knn_K", "one_label"])
def test_unknown_protocols_are_named(digits, name):
    with pytest.raises(ValueError, match=f"unknown protocol '{name}'.*linear"):
        evaluate_features(*digits, protocols=(name,))


def test_unlabelled_data_is_refused_in_words(digits):
    train_x, train_y, test_x, test_y = digits
    with pytest.raises(ValueError, match=r"training images have no labels.*health"):
        evaluate_features(train_x, None, test_x, test_y)
    with pytest.raises(ValueError, match="test images have no labels"):
        evaluate_features(train_x, train_y, test_x, None)


def test_images_whose_label_is_missing_are_left_out(digits):
    train_x, train_y, test_x, test_y = digits
    train_gaps, test_gaps = train_y.copy(), test_y.copy()
    train_gaps[::3], test_gaps[::2] = -1, -1
    kept, tested = train_gaps >= 0, test_gaps >= 0
    expected = evaluate_features(train_x[kept], train_y[kept], test_x[tested], test_y[tested])
    assert evaluate_features(train_x, train_gaps, test_x, test_gaps) == expected
    with pytest.raises(ValueError, match="test images have no labels"):
        evaluate_features(train_x, train_y, test_x, np.full(len(test_x), -1))


def test_mean_per_class_accuracy_weighs_classes_equally():
    truth = np.array(["a"] * 9 + ["b"])
    predicted = np.array(["a"] * 10)
    assert accuracy(predicted, truth) == 0.9
    assert mean_per_class_accuracy(predicted, truth) == 0.5
