import pytest
import torch

from nearfar.evaluation import linear_sgd_accuracy


def test_sgd_probe_is_near_the_bayes_rule_on_gaussian_classes(clouds):
    train_x, train_y, test_x, test_y = clouds
    best = (test_x[:, :4].argmax(1).numpy() == test_y).mean()
    assert linear_sgd_accuracy(train_x, train_y, test_x, test_y, lr=0.3, epochs=30) == pytest.approx(best, abs=0.02)
    stepped = linear_sgd_accuracy(train_x, train_y, test_x, test_y, lr=0.3, epochs=30, drop_at=(18, 24))
    assert stepped == pytest.approx(best, abs=0.02)


def test_one_full_batch_step_moves_along_the_class_means():
    """From (almost) zero weights the first step's weight is lr (class sum - mean / classes): predictions follow."""
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(64, 10, generator=generator), torch.arange(64) % 2
    test = torch.randn(500, 10, generator=generator)
    direction = x[y == 1].mean(0) - x[y == 0].mean(0)
    sides = (test @ direction > 0).long()
    accuracy = linear_sgd_accuracy(x, y.numpy(), test, sides.numpy(), lr=1e6, epochs=1, batch_size=64)
    assert accuracy > 0.95  # the start weights, N(0, 0.01^2), turn the direction a little


def test_the_rate_ends_at_zero_or_at_its_last_drop(clouds, monkeypatch):
    train_x, train_y, test_x, test_y = clouds
    rates = []
    step = torch.optim.SGD.step
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self: (rates.append(self.param_groups[0]["lr"]), step(self))[1])
    linear_sgd_accuracy(train_x, train_y, test_x, test_y, lr=2.0, epochs=10, batch_size=300)
    assert len(rates) == 40 and rates[0] == 2.0 and rates[20] == pytest.approx(1.0)
    assert 0 < rates[-1] < 0.004
    rates.clear()
    linear_sgd_accuracy(train_x, train_y, test_x, test_y, lr=2.0, epochs=10, batch_size=300, drop_at=(6, 8))
    assert rates == pytest.approx([2.0] * 24 + [0.2] * 8 + [0.02] * 8)


def test_a_seed_is_a_result(clouds):
    train_x, train_y, test_x, test_y = clouds
    runs = [linear_sgd_accuracy(train_x, train_y, test_x, test_y, epochs=2, seed=seed) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


def test_bad_settings_are_named(clouds):
    train_x, train_y, test_x, test_y = clouds
    for wrong in ({"lr": 0.0}, {"epochs": 0}, {"batch_size": -1}):
        with pytest.raises(ValueError, match="must be positive"):
            linear_sgd_accuracy(train_x, train_y, test_x, test_y, **wrong)
    with pytest.raises(ValueError, match="no labels"):
        linear_sgd_accuracy(train_x, None, test_x, test_y)
