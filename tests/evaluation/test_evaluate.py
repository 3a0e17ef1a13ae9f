import numpy as np
import pytest
import torch
from sklearn.metrics import top_k_accuracy_score

from nearfar.evaluation import (
    evaluate_features,
    few_shot_accuracy,
    knn_accuracy,
    linear_accuracy,
    linear_sgd_accuracies,
)
from nearfar.evaluation.labelled import top_accuracies


def test_all_protocols_give_what_each_gives_alone(digits):
    results = evaluate_features(*digits)
    assert list(results) == [
        "knn",
        "linear",
        "one_label",
        "one_label_std",
        "five_labels",
        "five_labels_std",
    ]
    scores = few_shot_accuracy(*digits)
    assert results["knn"] == knn_accuracy(*digits, k=20)
    assert results["linear"] == linear_accuracy(*digits)
    assert (results["one_label"], results["one_label_std"]) == scores[1]
    assert (results["five_labels"], results["five_labels_std"]) == scores[5]
    assert results["knn"] > 0.96 and results["linear"] > 0.94


@pytest.mark.parametrize("scale", [1e-12, 1e-7, 1e7])
def test_the_scale_of_all_features_does_not_matter(digits, scale):
    """Of an encoder that gives small numbers a linear probe saw nothing but constants."""
    train_x, train_y, test_x, test_y = digits
    scaled = (train_x[:300] * scale, train_y[:300], test_x * scale, test_y)
    plain = evaluate_features(train_x[:300], train_y[:300], test_x, test_y)
    assert evaluate_features(*scaled) == pytest.approx(plain, abs=0.01)


def test_other_protocols_on_request(digits):
    results = evaluate_features(
        *digits, protocols=("knn_10", "knn_200", "linear-sgd"), probe="sce", seed=1
    )
    assert results == {
        "knn_10": knn_accuracy(*digits, k=10),
        "knn_200": knn_accuracy(*digits, k=200),
        "linear_sgd": linear_sgd_accuracies(*digits, probe="sce", seed=1).top1,
    }


def test_the_temperature_of_the_votes_can_be_chosen():
    """One near neighbour against two far ones, as in MoCo's notebook (0.1) and flatter."""
    train_x, labels, test_x = (
        torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]),
        [0, 1, 1],
        torch.tensor([[1.0, 0.1]]),
    )
    right = [
        evaluate_features(train_x, labels, test_x, [0], ("knn_3",), knn_temperature=t)["knn_3"]
        for t in (0.1, 100.0)
    ]
    assert right == [1.0, 0.0]


@pytest.mark.parametrize("name", ["knm", "knn_0", "knn_K", "lin"])
def test_unknown_protocols_are_named(digits, name):
    with pytest.raises(ValueError, match=f"'{name}': did you mean '(knn|linear)'"):
        evaluate_features(*digits, protocols=(name,))


def test_images_whose_label_is_missing_are_left_out(digits):
    train_x, train_y, test_x, test_y = digits
    train_gaps, test_gaps = train_y.copy(), test_y.copy()
    train_gaps[::3], test_gaps[::2] = -1, -1
    kept, tested = train_gaps >= 0, test_gaps >= 0
    expected = evaluate_features(train_x[kept], train_y[kept], test_x[tested], test_y[tested])
    assert evaluate_features(train_x, train_gaps, test_x, test_gaps) == expected
    with pytest.raises(ValueError, match="test images have no labels"):
        evaluate_features(train_x, train_y, test_x, np.full(len(test_x), -1))
    with pytest.raises(ValueError, match=r"training images have no labels.*health"):
        evaluate_features(train_x, None, test_x, test_y)


def test_top_5_accuracy_from_100_classes_on():
    generator = np.random.default_rng(0)
    train_y, test_y = (generator.integers(0, 120, n) for n in (2400, 600))
    train_y[:120] = np.arange(120)
    centres = generator.normal(size=(120, 16))
    train_x, test_x = (
        centres[y] + 0.7 * generator.normal(size=(len(y), 16)) for y in (train_y, test_y)
    )
    accuracies = evaluate_features(train_x, train_y, test_x, test_y, ("linear-sgd",), probe="sce")
    assert 0.2 < accuracies["linear_sgd"] < accuracies["linear_sgd_top5"] < 1
    scores = generator.normal(size=(600, 120))
    right = top_accuracies(torch.from_numpy(scores), np.arange(120), test_y)
    assert right.top1 == pytest.approx(
        top_k_accuracy_score(test_y, scores, k=1, labels=np.arange(120))
    )
    assert right.top5 == pytest.approx(
        top_k_accuracy_score(test_y, scores, k=5, labels=np.arange(120))
    )
    assert top_accuracies(torch.from_numpy(scores[:, :99]), np.arange(99), test_y).top5 is None


def test_few_training_images_all_vote_unless_a_number_is_asked_for(digits):
    train_x, train_y, test_x, test_y = digits
    few = train_x[:9], train_y[:9], test_x, test_y
    assert evaluate_features(*few, protocols=("knn",))["knn"] == knn_accuracy(*few, k=9)
    with pytest.raises(ValueError, match=r"20 neighbours .* from 9"):
        evaluate_features(*few, protocols=("knn_20",))
