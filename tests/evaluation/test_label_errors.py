"""Doubtful labels: clusters whose truth is known, and probabilities by an independent
classifier.
"""

import tracemalloc

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from nearfar.evaluation.linear import MAX_ITERATIONS, TOLERANCE, choose_strength
from nearfar.neighbours import Nearest, find_nearest
from nearfar.tools.check.label_issues import find_label_issues, label_probabilities, likelihood


@pytest.fixture(scope="module")
def clusters():
    """Three hundred rows around six directions, the class of each."""
    chance = np.random.default_rng(0)
    truth = np.arange(300) % 6
    rows = 4 * np.eye(12)[truth] + chance.normal(0, 0.4, (300, 12))
    return torch.from_numpy(rows).float(), truth


def test_planted_errors_are_found_with_the_right_label_and_nothing_else(clusters):
    rows, truth = clusters
    labels, wrong = truth.copy(), np.array([3, 50, 77, 121, 200, 299])
    labels[wrong] = (labels[wrong] + 2) % 6
    issues = find_label_issues(rows, labels)
    assert sorted(issues.row.tolist()) == wrong.tolist()
    assert (issues.suggested == truth[issues.row]).all()
    assert (np.diff(issues.own / issues.probability) >= 0).all() and (
        issues.probability > 3 * issues.own
    ).all()


def test_errors_are_found_between_two_classes_that_are_easy_to_tell_apart():
    chance = np.random.default_rng(0)
    truth, wrong = np.arange(200) % 2, chance.permutation(200)[:12]
    rows = np.eye(2, 32)[truth] + chance.normal(0, 0.1, (200, 32))
    labels = truth.copy()
    labels[wrong] = 1 - labels[wrong]
    assert set(find_label_issues(rows, labels).row.tolist()) == set(wrong.tolist())


def test_labels_of_any_kind_and_rare_classes(clusters):
    rows, truth = clusters
    labels = np.array(["abcdef"[label] for label in truth])
    labels[7], labels[20:23] = "c", "rare"
    issues = find_label_issues(rows, labels)
    assert issues.row.tolist() == [7] and issues.suggested.tolist() == ["b"]
    assert len(find_label_issues(rows, np.zeros(300, int)).row) == 0
    assert len(find_label_issues(rows[:8], np.arange(8)).row) == 0


def test_probabilities_are_the_mean_of_neighbours_and_a_cross_validated_linear_classifier(clusters):
    rows, truth = clusters
    noisy = rows + torch.randn(rows.shape, generator=torch.Generator().manual_seed(0))
    unit = torch.nn.functional.normalize(noisy.double(), dim=1).numpy()
    votes = []
    for row in range(300):
        others = np.delete(np.arange(300), row)
        knn = KNeighborsClassifier(20, weights=lambda far: np.exp(-far / 0.07), metric="cosine")
        votes.append(knn.fit(unit[others], truth[others]).predict_proba(unit[[row]])[0])
    scaled = StandardScaler().fit_transform(noisy.numpy())
    model = LogisticRegression(
        C=choose_strength(scaled, truth, 0, likelihood), max_iter=MAX_ITERATIONS, tol=TOLERANCE
    )
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    linear = cross_val_predict(model, scaled, truth, cv=folds, method="predict_proba")
    np.testing.assert_allclose(
        label_probabilities(noisy, truth).toarray(), (np.array(votes) + linear) / 2, atol=2e-3
    )


@pytest.mark.parametrize("known", [False, True])
def test_copies_of_an_image_do_not_confirm_its_label(clusters, known):
    """Three of each, the wrong labels too: as without the copies, and each copy is listed."""
    rows, truth = clusters
    labels, wrong = truth.copy(), np.array([3, 50, 77, 121, 200, 299])
    labels[wrong] = (labels[wrong] + 2) % 6
    alone = find_label_issues(rows, labels)
    near = find_nearest(rows.repeat(3, 1), k=60) if known else None
    group = np.tile(np.arange(300), 3)
    issues = find_label_issues(rows.repeat(3, 1), np.tile(labels, 3), near=near, group=group)
    assert issues.row.reshape(-1, 3).tolist() == [[row, row + 300, row + 600] for row in alone.row]
    np.testing.assert_allclose(issues.own, alone.own.repeat(3), atol=1e-6)
    assert issues.predicted == alone.predicted and alone.predicted.accuracy < 1


def test_without_features_the_neighbours_judge_alone(clusters):
    """As above 50 000 images, where no linear classifier is fitted."""
    rows, truth = clusters
    labels, wrong = truth.copy(), [3, 50, 77, 121, 200, 299]
    labels[wrong] = (labels[wrong] + 2) % 6
    near = find_nearest(rows, k=20)
    issues = find_label_issues(None, labels, near=near)
    assert sorted(issues.row.tolist()) == wrong
    votes = torch.softmax((1 - near.distance) / 0.07, 1)
    own = (votes * (labels[near.index] == labels[:, None])).sum(1)[issues.row]
    np.testing.assert_allclose(issues.own, own, atol=1e-6)


def test_a_copy_with_another_label_is_no_reason_to_doubt_the_right_one(clusters):
    rows, truth = clusters
    twice, labels = torch.cat([rows, rows[:12]]), np.concatenate([truth, (truth[:12] + 1) % 6])
    group = np.append(np.arange(300), np.arange(12))
    issues = find_label_issues(twice, labels, group=group)
    assert sorted(issues.row.tolist()) == list(range(300, 312))
    assert max(issues.own) < 0.1 and min(issues.probability) > 0.4


def test_a_class_of_copies_of_four_images_is_too_small(clusters):
    rows, truth = clusters
    labels = np.where(np.arange(300) < 20, 6, truth)
    issues = find_label_issues(rows, labels, group=np.where(labels == 6, truth % 4, np.arange(300)))
    assert issues.unexamined == 20 and 6 not in issues.suggested
    assert find_label_issues(rows, labels).unexamined == 0
    assert find_label_issues(rows, np.zeros(300, int)).unexamined == 300


def test_two_classes_of_the_same_images_are_predicted_by_the_others_alone():
    """All five images of one class are in the other, too: nothing is left to fit some folds to."""
    chance = torch.Generator().manual_seed(0)
    rows = torch.randn(50, 8, generator=chance)
    both, labels = torch.cat([rows, rows[:5]]), np.repeat([0, 1], [50, 5])
    group = np.append(np.arange(50), np.arange(5))
    for seed in range(20):
        assert len(find_label_issues(both, labels, seed, group=group).row) == 0


def overlapping(seed, spread, images=1200, classes=8):
    """Rows around eight directions, overlapping more the larger the spread."""
    chance = np.random.default_rng(seed)
    truth = np.arange(images) % classes
    rows = np.eye(classes, 32)[truth] + chance.normal(0, spread, (images, 32))
    return torch.from_numpy(rows).float(), truth


def planted(truth, share, seed):
    """Labels of which a share is replaced by another class, and which of them are wrong."""
    chance, labels = np.random.default_rng(seed), truth.copy()
    wrong = chance.permutation(len(truth))[: round(share * len(truth))]
    classes = truth.max() + 1
    labels[wrong] = (labels[wrong] + chance.integers(1, classes, len(wrong))) % classes
    return labels, wrong


@pytest.mark.parametrize("spread", [0.2, 0.3, 0.4])
def test_most_of_what_is_listed_is_wrong_whether_classes_are_easy_or_hard(spread):
    """Precision and recall of planted errors, 5 to 20 %; of right labels next to none is listed."""
    rows, truth = overlapping(0, spread)
    assert len(find_label_issues(rows, truth).row) <= 0.01 * len(truth)
    for share, least in ((0.05, 0.5), (0.1, 0.6), (0.2, 0.65)):
        labels, wrong = planted(truth, share, 1)
        rows_listed = find_label_issues(rows, labels).row
        hits = np.isin(rows_listed, wrong).sum()
        assert hits >= least * len(rows_listed)
        assert hits >= (0.8 if spread == 0.2 else 0.25) * len(wrong)


@pytest.mark.parametrize(("spread", "most"), [(0.6, 0.01), (0.8, 0), (1.0, 0)])
def test_features_that_cannot_tell_the_classes_apart_list_next_to_nothing(spread, most):
    """As clothing by colours and edges: half of the labels are contradicted, and all are right."""
    rows, truth = overlapping(0, spread)
    issues = find_label_issues(rows, truth)
    assert issues.predicted.skill < 0.5 and len(issues.row) <= most * len(truth)
    noise = torch.randn(600, 16, generator=torch.Generator().manual_seed(0))
    assert len(find_label_issues(noise, np.arange(600) % 3).row) == 0


def test_how_well_labels_are_predicted_stands_beside_the_largest_class():
    rows, truth = overlapping(0, 0.2)
    keep = (truth != 3) | (np.arange(len(truth)) % 5 == 0)
    accuracy = find_label_issues(rows[torch.from_numpy(keep)], truth[keep]).predicted
    assert accuracy.largest == pytest.approx(150 / keep.sum()) and accuracy.skill > 0.8
    assert 0.9 < accuracy.accuracy <= 1 and accuracy.balanced != accuracy.accuracy
    one_class = find_label_issues(rows, np.zeros(len(truth), int))
    assert one_class.predicted is None


def voted(images, classes):
    """Neighbours of many images, most of them of their class; labels, 2 % of them wrong, and which
    these are.
    """
    chance = np.random.default_rng(0)
    truth = np.arange(images) % classes
    index = truth[:, None] + classes * chance.integers(0, images // classes, (images, 20))
    far = chance.random(index.shape) < 0.3
    index[far] = chance.integers(0, images, far.sum())
    distance = np.sort(chance.uniform(0.1, 0.4, index.shape), 1)
    labels, wrong = planted(truth, 0.02, 1)
    return Nearest(torch.from_numpy(distance).float(), torch.from_numpy(index)), labels, wrong


def test_many_images_of_many_classes_take_no_number_for_each_pair():
    """A hundred million pairs would take more as single bytes."""
    near, labels, wrong = voted(51_000, 2000)
    tracemalloc.start()
    rows = find_label_issues(torch.zeros(51_000, 1), labels, near=near).row
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80e6
    assert np.isin(wrong, rows).mean() > 0.99 and np.isin(rows, wrong).mean() > 0.95


def test_doubts_of_many_images_do_not_depend_on_their_order():
    """Most pairs of an image and a class have no vote at all, and share a rank."""
    near, labels, _ = voted(51_000, 10)
    order = np.random.default_rng(1).permutation(51_000)
    moved = Nearest(near.distance[order], torch.from_numpy(order.argsort())[near.index[order]])
    rows = find_label_issues(torch.zeros(51_000, 1), labels, near=near)
    again = find_label_issues(torch.zeros(51_000, 1), labels[order], near=moved)
    assert set(order[again.row]) == set(rows.row)
    assert again.predicted.accuracy == rows.predicted.accuracy


def test_images_whose_neighbours_are_copies_are_in_no_doubt():
    near, labels, _ = voted(51_000, 10)
    alone = np.arange(30) * 1000
    near.index[alone] = torch.from_numpy(alone)[:, None]
    rows = find_label_issues(torch.zeros(51_000, 1), labels, near=near).row
    assert len(rows) > 800 and not set(rows) & set(alone)
