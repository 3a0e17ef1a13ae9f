"""transfer, transfer-sgd and low-shot against scikit-learn, and average precision by hand."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC

from nearfar.threads import use_threads
from nearfar_papers import protocols
from nearfar_papers.protocols import (
    PENALTIES,
    RATES,
    area_precision,
    draw_positives,
    eleven_point_precision,
    low_shot_precision,
    mean_precision,
    measure,
    principal_axes,
    protocol_results,
    regularisation_path,
    transfer_accuracy,
    transfer_sgd_accuracy,
)


@pytest.fixture
def splits(clouds):
    """600 training and 200 validation images with features far from standardised, 500 to test."""
    train_x, train_y, test_x, test_y = clouds
    x = torch.cat([train_x[:800], test_x[:500]]) * torch.logspace(-1, 1, 12) + 2
    return (x[:600], train_y[:600]), (x[600:800], train_y[600:800]), (x[800:], test_y[:500])


def by_scikit_learn(train, validation, test, penalties):
    """The protocol with scikit-learn's classifier."""
    scores = []
    for penalty in penalties:
        model = LogisticRegression(C=1 / penalty, tol=1e-6, max_iter=5000).fit(
            train[0].numpy(), train[1]
        )
        scores.append(model.score(validation[0].numpy(), validation[1]))
    penalty = penalties[int(np.argmax(scores))]
    both = torch.cat([train[0], validation[0]]).numpy(), np.concatenate([train[1], validation[1]])
    model = LogisticRegression(C=1 / penalty, tol=1e-6, max_iter=5000).fit(*both)
    return model.score(test[0].numpy(), test[1]), penalty


def test_transfer_is_that_of_scikit_learn(splits):
    penalties = (0.01, 1.0, 100.0, 1e4)
    score, penalty = by_scikit_learn(*splits, penalties)
    result = transfer_accuracy(*splits, penalties=penalties)
    assert result.chosen == penalty and result.score == pytest.approx(score, abs=0.003)


def test_the_papers_grids():
    assert (
        len(PENALTIES) == 45
        and PENALTIES[0] == pytest.approx(1e-6)
        and PENALTIES[-1] == pytest.approx(1e5)
    )
    assert np.diff(np.log10(PENALTIES)) == pytest.approx(0.25)
    assert len(RATES) == 7 and RATES[0] == pytest.approx(0.1) and RATES[-1] == pytest.approx(100)


def test_the_metric_chooses_and_is_reported():
    """One image of a rare class: a strong penalty never finds it, which accuracy does not mind."""
    x = torch.cat([torch.zeros(30, 2), torch.full((3, 2), 1.0)])
    y = np.array([0] * 30 + [1] * 3)
    part = (x, y)
    both = (10.0, 1000.0)
    assert (
        transfer_accuracy(part, part, part, metric="mean_per_class", penalties=both).chosen == 10.0
    )
    lost = transfer_accuracy(part, part, part, metric="mean_per_class", penalties=(1000.0,))
    assert lost.score == 0.5
    assert transfer_accuracy(part, part, part, penalties=(1000.0,)).score == pytest.approx(30 / 33)


def test_several_labels_are_measured_by_average_precision(clouds):
    x, labels = clouds[0][:300], clouds[1][:300]
    y = np.where(labels[:, None] == np.arange(4), 1, -1)
    part = (x, y)
    result = transfer_accuracy(
        part,
        None,
        (clouds[2], np.where(clouds[3][:, None] == np.arange(4), 1, -1)),
        metric="eleven_point_map",
        penalties=(1.0, 10.0),
    )
    assert 0.8 < result.score < 0.9
    with pytest.raises(ValueError, match="one label an image"):
        transfer_sgd_accuracy(part, None, part, steps=5)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(transfer_accuracy, {"penalties": (0.1,)}), (transfer_sgd_accuracy, {"steps": 200})],
)
def test_the_last_fit_uses_the_validation_images_too(kind, options):
    train, validation = (torch.eye(3)[[0, 1]], ["a", "b"]), (torch.eye(3), ["a", "b", "c"])
    assert kind(train, validation, validation, **options).score == 1.0


def test_sgd_finds_a_rate_that_serves_on_a_fifth_of_the_training_images(clouds):
    train_x, train_y, test_x, test_y = clouds
    best = (test_x[:, :4].argmax(1).numpy() == test_y).mean()
    result = transfer_sgd_accuracy((train_x, train_y), None, (test_x, test_y), steps=300)
    assert result.score == pytest.approx(best, abs=0.03) and result.chosen in RATES
    single = torch.eye(2), ["a", "a"]
    with pytest.raises(ValueError, match="two classes"):
        transfer_accuracy(single, None, single)


def test_all_images_are_one_svm_for_each_class_on_unit_features(clouds):
    train_x, train_y, test_x, test_y = (part[:400] for part in clouds)
    expected = []
    for label in range(4):
        svm = LinearSVC(C=0.5, class_weight={True: 2, False: 1}, max_iter=2000, random_state=0)
        svm.fit(normalize(train_x.numpy()), train_y == label)
        expected.append(
            area_precision(test_y == label, svm.decision_function(normalize(test_x.numpy())))
        )
    precision = low_shot_precision((train_x * 7, train_y), (test_x * 3, test_y), shots=())
    assert (
        precision[None].mean == pytest.approx(np.mean(expected), abs=1e-4)
        and precision[None].deviation == 0
    )


def test_more_shots_are_better_and_a_seed_is_a_result(clouds):
    precision = low_shot_precision(clouds[:2], clouds[2:], shots=(2, 16))
    assert (
        precision[2].mean < precision[16].mean < precision[None].mean
        and precision[2].deviation > precision[16].deviation > 0
    )
    assert precision == low_shot_precision(clouds[:2], clouds[2:], shots=(2, 16))


def test_one_label_an_image_is_a_matrix_with_one_1_in_a_row(clouds):
    train_x, train_y, test_x, test_y = (part[:200] for part in clouds)
    matrices = [np.where(y[:, None] == np.arange(4), 1, -1) for y in (train_y, test_y)]
    matrices[0][0] = np.where(matrices[0][0] == 1, 1, 0)  # difficult counts as not there
    assert low_shot_precision(
        (train_x, train_y), (test_x, test_y), shots=(4,)
    ) == low_shot_precision((train_x, matrices[0]), (test_x, matrices[1]), shots=(4,))


def test_every_class_gets_its_positives_and_an_image_of_two_may_come_twice():
    labels = np.array([[1, -1]] * 3 + [[1, 1]] * 2 + [[-1, 1]])
    rows = draw_positives(labels, 2, [0])
    assert len(rows) == 4 and (labels[rows[:2], 0] == 1).all() and (labels[rows[2:], 1] == 1).all()
    assert sorted(draw_positives(labels, 9, [0])) == [0, 1, 2, 3, 3, 4, 4, 5]


def test_a_class_that_training_lacks_is_found_by_chance():
    x = torch.eye(4)
    precision = low_shot_precision((x[[0, 1]], ["a", "b"]), (x, ["a", "b", "c", "d"]), shots=())
    assert precision[None].mean == pytest.approx((1 + 1 + 1 / 4 + 1 / 4) / 4)


THERE = np.array([True, False, True, False, False, True])
SCORES = np.array(
    [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
)  # precision 1, 1/2, 2/3, 2/4, 2/5, 3/6 at recall 1/3 ... 1


def test_by_hand():
    """Recall 0 to .3: 1; .4 to .6: 2/3; .7 to 1: 1/2. The area: thirds of 1, 2/3 and 1/2."""
    assert eleven_point_precision(THERE, SCORES) == pytest.approx((4 * 1 + 3 * 2 / 3 + 4 / 2) / 11)
    assert area_precision(THERE, SCORES) == pytest.approx((1 + 2 / 3 + 1 / 2) / 3)


def naive(relevant, scores):
    order = np.argsort(-scores)
    hits = relevant[order].cumsum()
    precision, recall = hits / np.arange(1, len(hits) + 1), hits / hits[-1]
    eleven = np.mean([max(precision[recall >= t - 1e-9]) for t in np.arange(11) / 10])
    area = np.mean([max(precision[rank:]) for rank in np.flatnonzero(relevant[order])])
    return eleven, area


def test_random_rankings_are_those_of_a_plain_loop_and_above_the_curve_that_is_not_made_to_fall():
    generator = np.random.default_rng(0)
    for _ in range(20):
        relevant, scores = generator.random(50) < 0.3, generator.random(50)
        eleven, area = naive(relevant, scores)
        assert eleven_point_precision(relevant, scores) == pytest.approx(eleven)
        assert area_precision(relevant, scores) == pytest.approx(area)
        assert area >= average_precision_score(relevant, scores)


def test_difficult_images_and_classes_that_nothing_shows_are_left_out():
    labels = np.array([[1, -1], [-1, -1], [0, -1]])
    scores = np.array([[1.0, 0.0], [0.0, 0.0], [2.0, 0.0]])
    assert mean_precision(eleven_point_precision, labels, scores) == 1.0
    assert measure("eleven_point_map", labels, scores, np.arange(2)) == 1.0


def test_accuracies_by_name():
    scores, truth = np.eye(3)[[0, 0, 0, 2]], np.array(["a", "a", "b", "c"])
    assert measure("accuracy", truth, scores, np.array(["a", "b", "c"])) == 0.75
    assert measure("mean_per_class", truth, scores, np.array(["a", "b", "c"])) == pytest.approx(
        2 / 3
    )


def test_the_results_of_a_protocol_by_name(clouds):
    train, test = (clouds[0][:200], clouds[1][:200]), (clouds[2][:200], clouds[3][:200])
    shots = low_shot_precision(train, test, seed=1)
    parts = [(train[0][part], train[1][part]) for part in (slice(80), slice(80, None))]
    results = protocol_results(
        "low-shot", {"train": parts[0], "validation": parts[1], "test": test}, seed=1
    )
    expected = {f"low_shot_{k or 'all'}": score.mean for k, score in shots.items()}
    expected |= {
        f"low_shot_{k}_std": score.deviation for k, score in shots.items() if k is not None
    }
    assert results == pytest.approx(expected)
    sgd = protocol_results("transfer-sgd", {"train": train, "test": test}, steps=50, seed=1)
    assert sgd == {"transfer_sgd": transfer_sgd_accuracy(train, None, test, steps=50, seed=1).score}


FEW_PENALTIES = [1e4, 30.0, 1.0, 0.01]


@pytest.mark.parametrize(("count", "dim"), [(300, 12), (40, 60)])
def test_every_penalty_of_the_path_gives_scikit_learns_optimum(clouds, count, dim, monkeypatch):
    """Of unscaled, shifted features, more images than dimensions and fewer."""
    monkeypatch.setattr(protocols, "MAX_ITERATIONS", 1000)
    noise = torch.randn(count, max(dim - 12, 1), generator=torch.Generator().manual_seed(5))
    x = torch.cat([clouds[0][:count], noise], 1)[:, :dim] * torch.logspace(-1, 1, dim) + 3
    y = torch.from_numpy(clouds[1][:count])
    test = x.flip(0) + 0.1
    for penalty, classify in zip(
        FEW_PENALTIES, regularisation_path(x, y, 4, FEW_PENALTIES), strict=True
    ):
        best = LogisticRegression(C=1 / penalty, tol=1e-8, max_iter=20_000).fit(
            x.double().numpy(), y.numpy()
        )
        expected = torch.from_numpy(best.predict_proba(test.double().numpy()))
        torch.testing.assert_close(
            torch.softmax(classify(test).double(), 1), expected, rtol=0, atol=1e-3
        )


def test_classes_of_several_labels_are_fitted_each_on_its_own_without_what_is_not_known(clouds):
    x, labels = clouds[0][:200], clouds[1][:200]
    y = np.where(labels[:, None] == np.arange(3), 1, -1)
    y[::7, 1] = 0
    [classify] = regularisation_path(x, torch.from_numpy(y), 3, [2.0])
    for column in range(3):
        known = y[:, column] != 0
        best = LogisticRegression(C=0.5, tol=1e-10, max_iter=10_000).fit(
            x[known].double().numpy(), y[known, column]
        )
        expected = torch.from_numpy(best.decision_function(x.double().numpy()))
        torch.testing.assert_close(classify(x)[:, column].double(), expected, rtol=2e-3, atol=2e-3)


def test_equal_images_are_told_apart_by_their_number_alone():
    [classify] = regularisation_path(torch.ones(8, 3), torch.tensor([0] * 6 + [1] * 2), 2, [1.0])
    shares = torch.softmax(classify(torch.ones(1, 3)), 1)
    torch.testing.assert_close(shares, torch.tensor([[0.75, 0.25]]), atol=1e-3, rtol=0)


@pytest.mark.parametrize("images", [64, 600])
def test_features_that_are_mostly_zero_have_principal_axes_on_two_threads(images):
    """MKL's eigenvalues of these did not converge."""
    chance = torch.Generator().manual_seed(0)
    x = torch.zeros(images, 512)
    shown = torch.randperm(512, generator=chance)[:16]
    x[:, shown] = torch.rand(images, 16, generator=chance)
    x -= x.mean(0)
    with use_threads(2):
        axes, variances = principal_axes(x)
    of_few = torch.linalg.svdvals(x[:, shown].double()).square() / images
    torch.testing.assert_close(variances[:16].double(), of_few, rtol=1e-4, atol=0)
    assert variances[16:].max() < 1e-6 * variances[0]
    spread = (x @ axes[:, :16]).square().mean(0)
    torch.testing.assert_close(spread, variances[:16], rtol=1e-4, atol=0)


def test_the_rates_are_those_of_the_paper():
    assert list(RATES) == pytest.approx([10 ** (half / 2) for half in range(-2, 5)])
