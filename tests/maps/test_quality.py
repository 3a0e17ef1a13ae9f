import numpy as np
import pytest
import torch
from sklearn.manifold import trustworthiness as sklearn_trustworthiness
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from nearfar.maps import map_quality


@pytest.fixture(scope="module")
def clusters():
    """Features of 240 points in three groups and coordinates that keep part of it; class
    numbers.
    """
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(240) % 3
    features = 2 * torch.eye(12)[labels] + 0.7 * torch.randn(240, 12, generator=generator)
    coordinates = features[:, :2] + 0.2 * torch.randn(240, 2, generator=generator)
    return features, coordinates, labels.numpy()


def test_numbers_are_those_of_scikit_learn(clusters):
    features, coordinates, labels = clusters
    quality = map_quality(features, coordinates, labels)
    x, y = features.numpy(), coordinates.numpy()
    expected = sklearn_trustworthiness(x, y, n_neighbors=15, metric="cosine")
    assert quality.trustworthiness == pytest.approx(expected, abs=1e-6)
    near, on_map = (
        NearestNeighbors(n_neighbors=15, metric=metric).fit(rows).kneighbors(return_distance=False)
        for rows, metric in ((x, "cosine"), (y, "euclidean"))
    )
    kept = [len(set(a) & set(b)) / 15 for a, b in zip(near, on_map, strict=True)]
    assert quality.kept == pytest.approx(
        np.array(kept)
    ) and quality.neighbours_kept == pytest.approx(np.mean(kept))
    for rows, metric, accuracy in (
        (y, "euclidean", quality.knn_map),
        (x, "cosine", quality.knn_features),
    ):
        predicted = cross_val_predict(
            KNeighborsClassifier(15, metric=metric), rows, labels, cv=LeaveOneOut()
        )
        assert accuracy == pytest.approx((predicted == labels).mean())


def test_the_features_themselves_are_a_perfect_map_and_noise_is_none():
    generator = torch.Generator().manual_seed(0)
    angle = 2 * torch.pi * torch.rand(400, generator=generator)
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    quality = map_quality(circle, circle)
    assert quality.neighbours_kept > 0.999 and quality.trustworthiness > 0.99999
    noise = map_quality(circle, torch.randn(400, 2, generator=generator))
    assert noise.neighbours_kept == pytest.approx(15 / 399, abs=0.01)
    assert noise.trustworthiness == pytest.approx(0.5, abs=0.03)
    assert noise.knn_map is None


def test_a_sample_is_ranked_among_all(clusters):
    features, coordinates, _ = clusters
    exact = map_quality(features, coordinates)
    sampled = map_quality(features, coordinates, most_ranked=100)
    assert (exact.ranked, sampled.ranked) == (240, 100)
    assert 0 < abs(sampled.trustworthiness - exact.trustworthiness) < 0.02
    assert np.array_equal(sampled.kept, exact.kept)


def test_images_without_a_label_neither_vote_nor_count(clusters):
    features, coordinates, labels = clusters
    with_gaps = np.where(np.arange(240) < 120, -1, labels)
    quality = map_quality(features, coordinates, with_gaps)
    single_class = map_quality(features, coordinates, np.where(np.arange(240) == 0, 2, -1))
    assert 0.4 < quality.knn_map < 1
    assert single_class.knn_map == 1.0  # of one class all labelled images are right
    assert map_quality(features, coordinates, np.full(240, -1)).knn_map is None


def test_the_line_for_a_person(clusters):
    features, coordinates, labels = clusters
    words = map_quality(features, features[:, :2], labels).words
    assert (
        words.startswith("keeps ") and "of the 15 nearest neighbours, trustworthiness 0." in words
    )
    assert "15-NN accuracy" in words and words.endswith("% in the features")
    assert "accuracy" not in map_quality(features, coordinates).words
    assert map_quality(features[:9], coordinates[:9]).neighbours == 4
    assert map_quality(features[:2], coordinates[:2]) is None
