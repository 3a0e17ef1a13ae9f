import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from nearfar.evaluation.logistic import regularisation_path

PENALTIES = [1e4, 30.0, 1.0, 0.01]


def log_loss(scores, y):
    return float(-torch.log_softmax(scores.double(), 1)[torch.arange(len(y)), y].sum())


@pytest.mark.parametrize(("count", "dim"), [(300, 12), (40, 60)])
def test_every_penalty_of_the_path_gives_scikit_learns_optimum(clouds, count, dim, monkeypatch):
    """Of unscaled, shifted features, more images than dimensions and fewer."""
    monkeypatch.setattr("nearfar.evaluation.logistic.MAX_ITERATIONS", 1000)
    noise = torch.randn(count, max(dim - 12, 1), generator=torch.Generator().manual_seed(5))
    x = torch.cat([clouds[0][:count], noise], 1)[:, :dim] * torch.logspace(-1, 1, dim) + 3
    y = torch.from_numpy(clouds[1][:count])
    test = x.flip(0) + 0.1
    for penalty, classify in zip(PENALTIES, regularisation_path(x, y, 4, PENALTIES), strict=True):
        best = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=20_000).fit(x.double().numpy(), y.numpy())
        expected = torch.from_numpy(best.predict_proba(test.double().numpy()))
        torch.testing.assert_close(torch.softmax(classify(test).double(), 1), expected, rtol=0, atol=1e-3)
        reached = log_loss(classify(x), y)
        optimum = log_loss(torch.from_numpy(best.decision_function(x.double().numpy())), y)
        assert reached == pytest.approx(optimum, rel=2e-3, abs=1e-3)


def test_classes_of_several_labels_are_fitted_each_on_its_own_without_what_is_not_known(clouds):
    x, labels = clouds[0][:200], clouds[1][:200]
    y = np.where(labels[:, None] == np.arange(3), 1, -1)
    y[::7, 1] = 0
    [classify] = regularisation_path(x, torch.from_numpy(y), 3, [2.0])
    for column in range(3):
        known = y[:, column] != 0
        best = LogisticRegression(C=0.5, tol=1e-10, max_iter=10_000).fit(x[known].double().numpy(), y[known, column])
        expected = torch.from_numpy(best.decision_function(x.double().numpy()))
        torch.testing.assert_close(classify(x)[:, column].double(), expected, rtol=2e-3, atol=2e-3)


def test_equal_images_are_told_apart_by_their_number_alone():
    [classify] = regularisation_path(torch.ones(8, 3), torch.tensor([0] * 6 + [1] * 2), 2, [1.0])
    shares = torch.softmax(classify(torch.ones(1, 3)), 1)
    torch.testing.assert_close(shares, torch.tensor([[0.75, 0.25]]), atol=1e-3, rtol=0)
