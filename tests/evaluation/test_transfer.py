import pytest
import torch

from nearfar.evaluation import transfer_accuracy


def test_transfer_is_near_the_bayes_rule_and_shrinks_noise(clouds):
    train_x, train_y, test_x, test_y = clouds
    best = (test_x[:, :4].argmax(1).numpy() == test_y).mean()
    splits = (train_x[:800], train_y[:800]), (train_x[800:], train_y[800:]), (test_x, test_y)
    result = transfer_accuracy(*splits)
    assert result.accuracy == pytest.approx(best, abs=0.015)
    assert result.mean_per_class == pytest.approx(best, abs=0.02)
    noise = torch.randn(3200, 600, generator=torch.Generator().manual_seed(3))
    noisy = [(torch.cat([x, part], 1), y) for (x, y), part in zip(splits, noise.split([800, 400, 2000]), strict=True)]
    shrunk = transfer_accuracy(*noisy, strengths=(0.001, 10.0))
    assert shrunk.strength == 0.001
    assert shrunk.accuracy > transfer_accuracy(*noisy, strengths=(10.0,)).accuracy


def test_the_last_fit_uses_the_validation_images_too():
    train = torch.eye(3)[[0, 1]], ["a", "b"]
    validation = torch.eye(3)[[0, 1, 2]], ["a", "b", "c"]
    test = torch.eye(3), ["a", "b", "c"]
    assert transfer_accuracy(train, validation, test, strengths=(10.0,)).accuracy == 1.0


def test_one_class_is_refused():
    one = torch.eye(2), ["a", "a"]
    with pytest.raises(ValueError, match="two classes"):
        transfer_accuracy(one, one, one)
    with pytest.raises(ValueError, match="validation images have no labels"):
        transfer_accuracy(one, (one[0], None), one)
