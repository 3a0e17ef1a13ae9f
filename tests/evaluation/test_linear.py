import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from nearfar.evaluation import linear_accuracy, linear_predict
from nearfar.evaluation.linear import choose_strength, fit, standardise


def bayes(test_x, test_y):
    """Accuracy of the best possible rule for the clouds: the nearest true mean, here the largest of 4 coordinates."""
    return (test_x[:, :4].argmax(1).numpy() == test_y).mean()


def test_probe_is_near_the_bayes_rule_on_gaussian_classes(clouds):
    train_x, train_y, test_x, test_y = clouds
    assert linear_accuracy(train_x, train_y, test_x, test_y) == pytest.approx(bayes(test_x, test_y), abs=0.015)


def test_probe_minimises_the_penalised_cross_entropy(clouds):
    train_x, train_y = clouds[0][:150, :6], clouds[1][:150]
    (train,) = standardise(train_x)

    def objective(flat):
        weight, bias = flat[:24].reshape(4, 6), flat[24:]
        nll = -log_softmax(train @ weight.T + bias, axis=1)[np.arange(150), train_y].sum()
        return nll + 0.5 / 0.3 * (weight**2).sum()

    best = minimize(objective, np.zeros(28), method="BFGS", options={"gtol": 1e-4})
    model = fit(train, train_y, 0.3)
    mine = objective(np.concatenate([model.coef_.ravel(), model.intercept_]).astype(np.float64))
    assert mine == pytest.approx(best.fun, rel=1e-4)


def test_the_penalty_follows_the_features(clouds):
    train_x, train_y, test_x, test_y = clouds
    noise = torch.randn(len(train_x) + len(test_x), 800, generator=torch.Generator().manual_seed(3))
    noisy = torch.cat([train_x, noise[: len(train_x)]], 1), torch.cat([test_x, noise[len(train_x) :]], 1)
    assert choose_strength(standardise(noisy[0])[0], train_y, seed=0) < choose_strength(
        standardise(train_x)[0], train_y, seed=0
    )
    chosen = linear_accuracy(noisy[0], train_y, noisy[1], test_y)
    assert chosen > linear_accuracy(noisy[0], train_y, noisy[1], test_y, strength=10.0) + 0.01


def test_scale_and_shift_of_each_feature_do_not_matter(clouds):
    train_x, train_y, test_x, _ = clouds
    scale, shift = torch.logspace(-3, 3, 12), torch.linspace(-5, 5, 12)
    plain = linear_predict(train_x, train_y, test_x)
    moved = linear_predict(train_x * scale + shift * scale, train_y, test_x * scale + shift * scale)
    assert (plain == moved).mean() > 0.998


def test_constant_features_become_zero():
    train, test = standardise(torch.tensor([[1.0, 3.3], [2.0, 3.3]]), torch.tensor([[4.0, 9.0]]))
    np.testing.assert_allclose(train, [[-1, 0], [1, 0]], atol=1e-5)
    np.testing.assert_allclose(test, [[5, 0]], atol=1e-5)


def test_unseen_test_classes_count_as_wrong(clouds):
    train_x, train_y, test_x, test_y = clouds
    kept = train_y != 3
    accuracy = linear_accuracy(train_x[kept], train_y[kept], test_x, test_y)
    assert accuracy <= (test_y != 3).mean()
    assert accuracy > 0.7 * (test_y != 3).mean()


def test_a_handful_of_images_works_and_one_class_is_refused():
    x = torch.eye(4)
    assert linear_accuracy(x, ["a", "a", "b", "b"], x, ["a", "a", "b", "b"]) == 1.0
    with pytest.raises(ValueError, match="two classes"):
        linear_accuracy(x, ["a"] * 4, x, ["a"] * 4)
    with pytest.raises(ValueError, match="no labels"):
        linear_accuracy(x, None, x, ["a"] * 4)
    with pytest.raises(ValueError, match="positive"):
        linear_accuracy(x, ["a", "a", "b", "b"], x, ["a"] * 4, strength=0.0)
