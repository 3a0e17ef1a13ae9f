import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from nearfar.evaluation import transfer_accuracy, transfer_sgd_accuracy
from nearfar.evaluation.transfer import PENALTIES, RATES


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
        model = LogisticRegression(C=1 / penalty, tol=1e-6, max_iter=5000).fit(train[0].numpy(), train[1])
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
    assert len(PENALTIES) == 45 and PENALTIES[0] == pytest.approx(1e-6) and PENALTIES[-1] == pytest.approx(1e5)
    assert np.diff(np.log10(PENALTIES)) == pytest.approx(0.25)
    assert len(RATES) == 7 and RATES[0] == pytest.approx(0.1) and RATES[-1] == pytest.approx(100)


def test_the_metric_chooses_and_is_reported():
    """One image of a rare class: a strong penalty never finds it, which accuracy does not mind."""
    x = torch.cat([torch.zeros(30, 2), torch.full((3, 2), 1.0)])
    y = np.array([0] * 30 + [1] * 3)
    part = (x, y)
    both = (10.0, 1000.0)
    assert transfer_accuracy(part, part, part, metric="mean_per_class", penalties=both).chosen == 10.0
    lost = transfer_accuracy(part, part, part, metric="mean_per_class", penalties=(1000.0,))
    assert lost.score == 0.5
    assert transfer_accuracy(part, part, part, penalties=(1000.0,)).score == pytest.approx(30 / 33)


def test_several_labels_are_measured_by_average_precision(clouds):
    x, labels = clouds[0][:300], clouds[1][:300]
    y = np.where(labels[:, None] == np.arange(4), 1, -1)
    part = (x, y)
    result = transfer_accuracy(part, None, (clouds[2], np.where(clouds[3][:, None] == np.arange(4), 1, -1)),
                               metric="eleven_point_map", penalties=(1.0, 10.0))  # fmt: skip
    assert 0.8 < result.score < 0.9
    with pytest.raises(ValueError, match="one label an image"):
        transfer_sgd_accuracy(part, None, part, steps=5)


@pytest.mark.parametrize("kind", [transfer_accuracy, transfer_sgd_accuracy])
def test_the_last_fit_uses_the_validation_images_too(kind):
    train = torch.eye(3)[[0, 1]], ["a", "b"]
    validation = torch.eye(3)[[0, 1, 2]], ["a", "b", "c"]
    test = torch.eye(3), ["a", "b", "c"]
    options = {"penalties": (0.1,)} if kind is transfer_accuracy else {"steps": 200}
    assert kind(train, validation, test, **options).score == 1.0


def test_without_a_validation_split_a_fifth_of_the_training_images_chooses(splits, clouds):
    train, validation, test = splits
    whole = torch.cat([train[0], validation[0]]), np.concatenate([train[1], validation[1]])
    few = dict(penalties=(0.01, 1.0, 100.0))
    expected = transfer_accuracy(*splits, **few).score
    assert transfer_accuracy(whole, None, test, **few).score == pytest.approx(expected, abs=0.02)


def test_sgd_finds_a_rate_that_serves(clouds):
    train_x, train_y, test_x, test_y = clouds
    best = (test_x[:, :4].argmax(1).numpy() == test_y).mean()
    result = transfer_sgd_accuracy((train_x, train_y), None, (test_x, test_y), steps=300)
    assert result.score == pytest.approx(best, abs=0.03) and result.chosen in RATES


def test_one_class_is_refused():
    one = torch.eye(2), ["a", "a"]
    with pytest.raises(ValueError, match="two classes"):
        transfer_accuracy(one, one, one)
    with pytest.raises(ValueError, match="validation images have no labels"):
        transfer_accuracy((one[0], ["a", "b"]), (one[0], None), one)
