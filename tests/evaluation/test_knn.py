import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from nearfar.evaluation import knn_accuracy, knn_predict
from nearfar.evaluation.knn import neighbours, vote


@pytest.mark.parametrize(("k", "chunk"), [(1, 2048), (20, 2048), (20, 7), (200, 50), (1200, 333)])
def test_knn_is_scikit_learns_with_exponential_weights(clouds, k, chunk):
    train_x, train_y, test_x, test_y = clouds
    test_x, test_y = test_x[:300], test_y[:300]
    reference = KNeighborsClassifier(k, metric="cosine", weights=lambda d: np.exp((1 - d) / 0.07))
    expected = reference.fit(train_x.double(), train_y).predict(test_x.double())
    predicted = knn_predict(train_x, train_y, test_x, k=k, chunk=chunk)
    assert (predicted == expected).mean() >= 0.996  # float32 against float64 at near ties
    assert knn_accuracy(train_x, train_y, test_x, test_y, k=k, chunk=chunk) == (predicted == test_y).mean()


def test_weights_can_outvote_the_majority():
    train_x = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    predicted = knn_predict(train_x, ["near", "far", "far"], np.array([[1.0, 0.1]]), k=3)
    assert list(predicted) == ["near"]
    assert list(knn_predict(train_x, ["near", "far", "far"], np.array([[1.0, 0.1]]), k=3, temperature=100.0)) == ["far"]


def test_a_tiny_temperature_is_the_nearest_neighbour(clouds):
    train_x, train_y, test_x, _ = clouds
    sharp = knn_predict(train_x, train_y, test_x, k=20, temperature=1e-4)
    assert (sharp == knn_predict(train_x, train_y, test_x, k=1)).mean() > 0.99


def test_neighbours_come_nearest_first_for_any_tile(clouds):
    train_x, _, test_x, _ = clouds
    unit = torch.nn.functional.normalize
    whole = (unit(test_x.double(), dim=1) @ unit(train_x.double(), dim=1).T).sort(1, descending=True)
    for chunk in (3, 100, 5000):
        cosine, index = neighbours(train_x, test_x[:90], 9, chunk)
        torch.testing.assert_close(cosine.double(), whole.values[:90, :9], rtol=0, atol=1e-6)
        assert (index == whole.indices[:90, :9]).double().mean() > 0.99


def test_unseen_test_classes_count_as_wrong(clouds):
    train_x, train_y, test_x, test_y = clouds
    kept = train_y != 3
    accuracy = knn_accuracy(train_x[kept], train_y[kept], test_x, test_y)
    known = test_y != 3
    seen_only = knn_accuracy(train_x[kept], train_y[kept], test_x[known], test_y[known])
    assert accuracy == pytest.approx(seen_only * known.mean())


def test_bad_input_is_named(clouds):
    train_x, train_y, test_x, test_y = clouds
    with pytest.raises(ValueError, match=r"k = 21 .* 20 training images"):
        knn_accuracy(train_x[:20], train_y[:20], test_x, test_y, k=21)
    with pytest.raises(ValueError, match="k = 0"):
        knn_accuracy(train_x, train_y, test_x, test_y, k=0)
    with pytest.raises(ValueError, match="no labels"):
        knn_accuracy(train_x, None, test_x, test_y)
    with pytest.raises(ValueError, match="test images have no labels"):
        knn_accuracy(train_x, train_y, test_x, None)
    with pytest.raises(ValueError, match="1200 training images need 1200 labels"):
        knn_accuracy(train_x, train_y[:-1], test_x, test_y)
    with pytest.raises(ValueError, match="same encoder"):
        knn_accuracy(train_x[:, :5], train_y, test_x, test_y)
    with pytest.raises(ValueError, match="not finite"):
        knn_accuracy(train_x / 0, train_y, test_x, test_y)
    with pytest.raises(ValueError, match="temperature"):
        vote(torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int64), 1, temperature=0.0)
    with pytest.raises(ValueError, match="chunk"):
        knn_accuracy(train_x, train_y, test_x, test_y, chunk=0)
