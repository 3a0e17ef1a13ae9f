"""Linear probes against the best rule and other optimisers, and their settings."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from scipy.special import log_softmax

from nearfar.evaluation import (
    PROBES,
    Probe,
    default_probe,
    linear_accuracy,
    linear_predict,
    linear_sgd_accuracies,
    probe_settings,
)
from nearfar.evaluation.linear import choose_strength, fit, standardise, train_heads
from nearfar.methods import method_class, method_names


def bayes(test_x, test_y):
    """Accuracy of the best possible rule for the clouds: the nearest true mean, here the largest of
    4 coordinates.
    """
    return (test_x[:, :4].argmax(1).numpy() == test_y).mean()


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
    noise = torch.randn(len(train_x), 800, generator=torch.Generator().manual_seed(3))
    strengths = [
        choose_strength(standardise(x)[0], train_y, seed=0)
        for x in (torch.cat([train_x, noise], 1), train_x)
    ]
    assert strengths[0] < strengths[1]
    assert linear_accuracy(*clouds) == pytest.approx(bayes(test_x, test_y), abs=0.015)


def test_scale_and_shift_of_each_feature_do_not_matter_and_constant_ones_become_zero(clouds):
    train_x, train_y, test_x, _ = clouds
    scale, shift = torch.logspace(-3, 3, 12), torch.linspace(-5, 5, 12)
    plain = linear_predict(train_x, train_y, test_x)
    moved = linear_predict(train_x * scale + shift * scale, train_y, test_x * scale + shift * scale)
    assert (plain == moved).mean() > 0.998
    train, test = standardise(torch.tensor([[1.0, 3.3], [2.0, 3.3]]), torch.tensor([[4.0, 9.0]]))
    np.testing.assert_allclose([*train, *test], [[-1, 0], [1, 0], [5, 0]], atol=1e-5)


def test_a_handful_of_images_works_and_one_class_is_refused():
    x = torch.eye(4)
    assert linear_accuracy(x, ["a", "a", "b", "b"], x, ["a", "a", "b", "b"]) == 1.0
    with pytest.raises(ValueError, match="two classes"):
        linear_accuracy(x, ["a"] * 4, x, ["a"] * 4)


def settings(lr, **changes):
    return Probe("a test", lr if isinstance(lr, tuple) else (lr,), **changes)


@pytest.mark.parametrize("drops", [(), (0.6, 0.8)])
def test_sgd_probe_is_near_the_bayes_rule_on_gaussian_classes(clouds, drops):
    probe = settings(0.3, epochs=30, drop_at=drops)
    assert linear_sgd_accuracies(*clouds, probe).top1 == pytest.approx(bayes(*clouds[2:]), abs=0.02)


def one_head(probe, lr, x, y, classes, seed):
    """The same by torch's layer, loss and optimiser."""
    generator = torch.Generator().manual_seed(seed)
    layer = torch.nn.Linear(x.shape[1], classes)
    with torch.no_grad():
        layer.weight.copy_(0.01 * torch.randn(classes, x.shape[1], generator=generator))
        layer.bias.zero_()
    optimizer = torch.optim.SGD(
        layer.parameters(), lr=lr, momentum=0.9, weight_decay=probe.weight_decay
    )
    steps = probe.epochs * -(-len(x) // probe.batch_size)
    if probe.drop_at:
        at = [round(share * probe.epochs) * steps // probe.epochs for share in probe.drop_at]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, at)
    else:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(probe.epochs):
        for index in torch.randperm(len(x), generator=generator).split(probe.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(layer(x[index]), y[index]).backward()
            optimizer.step()
            schedule.step()
    return layer


@pytest.mark.parametrize("drops", [(), (0.6, 0.8)])
def test_every_head_of_a_sweep_is_the_fit_that_torch_makes_alone(clouds, drops):
    x, y = clouds[0][:330], torch.from_numpy(clouds[1][:330])
    probe = settings((0.05, 1.0, 30.0), weight_decay=1e-3, epochs=5, batch_size=100, drop_at=drops)
    weight, bias = train_heads(probe, x, y, 4, seed=3)
    for number, lr in enumerate(probe.lrs):
        alone = one_head(probe, lr, x, y, 4, seed=3)
        scale = float(alone.weight.detach().abs().max())
        torch.testing.assert_close(
            weight[number], alone.weight.detach(), rtol=1e-3, atol=1e-4 * scale
        )
        torch.testing.assert_close(bias[number], alone.bias.detach(), rtol=1e-3, atol=1e-4 * scale)


def test_held_out_training_images_choose_the_rate(clouds):
    useless = settings((1e-7, 0.3, 1e-6), epochs=10)
    alone = settings(0.3, epochs=10)
    assert linear_sgd_accuracies(*clouds, useless) == linear_sgd_accuracies(*clouds, alone)
    train_x, train_y, test_x, test_y = clouds
    changed = linear_sgd_accuracies(train_x, train_y, test_x, (test_y + 1) % 4, useless).top1
    assert (
        changed < 0.25
    )  # wrong test labels choose nothing: the rate stays the one that fits the training images


def test_steps_may_end_within_an_epoch(clouds, bars):
    probe = settings(0.3, steps=7, batch_size=300)
    train_heads(probe, clouds[0], torch.from_numpy(clouds[1]), 4)
    assert bars == [("training the linear layer", done, 7) for done in (4, 7)]


def test_the_papers_settings():
    """SACLR A.1.4, SCE 4.1 and 4.3 (0.1 for 256 images, so 0.4 for 1024), MoCo 4.1, LORAC 6.1."""
    assert PROBES["saclr-imagenet"].lrs == (0.3,) and PROBES["saclr-imagenet"].weight_decay == 1e-6
    assert PROBES["sce"].lrs == PROBES["moco"].lrs == PROBES["saclr-cifar"].lrs == (30.0,)
    assert PROBES["sce"].drop_at == (0.6, 0.8) and PROBES["saclr-cifar"].drop_at == ()
    ours = PROBES["sce-imagenet"]
    assert (ours.lrs, ours.epochs, ours.batch_size) == ((0.1 * 1024 / 256,), 90, 1024)
    assert (
        PROBES["lorac"].lrs == (1.2,)
        and PROBES["moco"].batch_size == PROBES["sce-cifar"].batch_size == 256
    )
    # Released: cl_iclr25's run_linear.sh has 90 epochs on CIFAR, SCE's configuration for ImageNet a
    # batch of 512.
    assert (
        PROBES["saclr-cifar"].epochs,
        PROBES["saclr-imagenet"].epochs,
        PROBES["sce"].batch_size,
    ) == (90, 100, 512)


def test_the_recipe_chooses_the_settings():
    assert default_probe("linear-sgd sce-imagenet", 224) == "sce-imagenet"
    assert default_probe("knn linear-sgd simsiam-cifar", 32) == "simsiam-cifar"
    assert (
        default_probe("", 32) == "saclr-cifar" and default_probe("linear", 224) == "saclr-imagenet"
    )
    protocols = [
        recipe.protocol for name in method_names() for recipe in method_class(name).recipes.values()
    ]
    named = {protocol.split("linear-sgd ")[1] for protocol in protocols if "linear-sgd" in protocol}
    assert len(named) >= 6 and named <= set(PROBES)


def test_a_seed_is_a_result(clouds):
    runs = [
        linear_sgd_accuracies(*clouds, settings(30.0, epochs=2), seed=seed) for seed in (0, 0, 1)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_bad_settings_are_named():
    for wrong in ([0.0], [1.0, -1.0], []):
        with pytest.raises(ValueError, match="above 0"):
            probe_settings("sce", wrong)
    with pytest.raises(ValueError, match="did you mean 'saclr-cifar'"):
        probe_settings("saclr-cifr")


def test_views_that_are_the_images_change_nothing(clouds):
    train_x, train_y, test_x, _ = clouds
    views, probe = train_x.expand(3, -1, -1), Probe("mine", lrs=(0.1, 1.0), epochs=7)
    plain, seen = (
        linear_predict(train_x, train_y, test_x, train_views=rows) for rows in (None, views)
    )
    assert (plain == seen).mean() > 0.99  # the same minimum, on three times the rows
    by_sgd = [linear_sgd_accuracies(*clouds, probe, train_views=rows) for rows in (None, views)]
    assert by_sgd[0] == by_sgd[1]


def test_views_are_fitted_and_the_images_themselves_are_not(clouds):
    train_x, train_y, test_x, test_y = clouds
    gone = torch.zeros_like(train_x)
    unlabelled = np.where(np.arange(len(train_y)) % 5 == 0, -1, train_y)
    views = torch.stack([train_x, train_x + 0.01])
    best = bayes(test_x, test_y)
    right = linear_predict(gone, unlabelled, test_x, train_views=views) == test_y
    assert right.mean() == pytest.approx(best, abs=0.03)
    by_sgd = linear_sgd_accuracies(gone, unlabelled, test_x, test_y, train_views=views).top1
    assert by_sgd == pytest.approx(best, abs=0.05)


def test_each_epoch_takes_the_next_view():
    probe = Probe("mine", lrs=(0.5,), epochs=3, batch_size=4)
    x, y = torch.randn(2, 8, 5), torch.arange(8) % 2
    others = x.clone()
    others[1] = 0
    weights = [train_heads(replace(probe, epochs=1), views, y, 2)[0] for views in (x, others)]
    assert torch.equal(*weights)  # of the first view alone
    weights = [train_heads(probe, views, y, 2)[0] for views in (x, others)]
    assert not torch.allclose(*weights)
