"""Schedules give the numbers of their formulas, and reach the losses."""

import math

import pytest

from nearfar.methods import method_class
from nearfar.methods.method import Constant, Cosine, Ramp, Switch


def test_constant():
    assert [Constant(0.3)(epoch, 10) for epoch in (0, 4.5, 10)] == [0.3, 0.3, 0.3]


def test_cosine():
    momentum = Cosine(0.996, 1.0)
    assert momentum(0, 100) == 0.996
    assert momentum(50, 100) == pytest.approx(0.998, abs=1e-12)
    assert momentum(100 / 3, 100) == pytest.approx(0.997, abs=1e-12)  # cos 60 degrees = 1/2
    assert momentum(100, 100) == 1.0
    assert momentum(120, 100) == 1.0
    assert Cosine(0.99, 0.99)(37.5, 100) == pytest.approx(0.99, abs=1e-15)


def test_ramp():
    lam = Ramp(4.0)
    assert [lam(epoch, 4) for epoch in (0, 0.99, 1, 2.5, 3, 3.99)] == [1.0, 1.0, 2.0, 3.0, 4.0, 4.0]
    assert lam(4, 4) == 4.0


def test_switch():
    beta = Switch(math.inf, 2.0)
    assert [beta(epoch, 10) for epoch in (0, 4.99, 5, 10)] == [math.inf, math.inf, 2.0, 2.0]
    assert [Switch("a", "b", 0.25)(epoch, 10) for epoch in (2.4, 2.5)] == ["a", "b"]
    assert [Switch(0, 1, 0.0)(0, 10), Switch(0, 1, 1.0)(9.99, 10)] == [1, 0]
    assert [Switch(True, False, at_epoch=1)(epoch, 200) for epoch in (0, 0.99, 1, 7)] == [True, True, False, False]


@pytest.mark.parametrize("fraction", [-0.01, 1.01])
def test_switch_refuses_a_fraction_out_of_range(fraction):
    with pytest.raises(ValueError, match="between 0 and 1"):
        Switch(0, 1, fraction)


@pytest.mark.parametrize("method", ["lorac", "lorac-bs"])
def test_prior_is_off_for_the_first_half_of_the_epochs(method, build):
    model = build(method, beta=4.0)
    seen = []
    for epoch in (0, 99.9, 100, 199):
        model.set_schedules(epoch, 200)
        seen.append(model.loss.beta)
    assert seen == [math.inf, math.inf, 4.0, 4.0]


def test_covariance_of_the_keys_counts_more_with_every_epoch(build):
    model = build("jcl", lam=2.0)
    seen = []
    for epoch in (0, 0.5, 1, 198, 199):
        model.set_schedules(epoch, 200)
        seen.append(model.loss.lam)
    assert seen == [0.01, 0.01, 0.02, 1.99, 2.0]


def test_prototypes_stay_for_the_first_epoch_and_rows_are_stored_from_the_fifteenth(build, fake_embeddings):
    model = build("swav", stored=12)
    seen = []
    for epoch in (0, 0.9, 1, 14.9, 15):
        model.set_schedules(epoch, 200)
        embeddings = fake_embeddings(model, 6, 0)["projection"].requires_grad_()
        model.zero_grad()
        model.loss(embeddings).backward()
        seen.append((model.loss.prototypes.grad is not None, model.loss.queued.item()))
    assert seen == [(False, 0), (False, 0), (True, 0), (True, 0), (True, 6)]


@pytest.mark.parametrize(
    ("method", "start", "half_way", "end"),
    [
        ("byol", 0.996, 0.998, 1.0),
        ("moco-v3", 0.99, 0.995, 1.0),
        ("sce", 0.99, 0.995, 1.0),
        ("moco-v1", 0.99, 0.99, 0.99),
        ("moco-v2", 0.99, 0.99, 0.99),
        ("moco-m", 0.99, 0.99, 0.99),
        ("lorac", 0.99, 0.99, 0.99),
        ("ressl", 0.99, 0.99, 0.99),
        ("jcl", 0.99, 0.99, 0.99),
    ],
)
def test_momentum_of_the_momentum_encoder(method, start, half_way, end):
    momentum_encoder = method_class(method)().setup(10).momentum
    assert [momentum_encoder(epoch, 200) for epoch in (0, 100, 200)] == pytest.approx([start, half_way, end], abs=1e-12)


def test_momentum_of_sce_is_constant_on_small_images():
    method = method_class("sce")
    for name, momentum in [("cifar", 0.99), ("cifar100", 0.99), ("stl10", 0.996), ("tiny-imagenet", 0.996)]:
        momentum_encoder = method(**method.recipes[name].hyperparameters).setup(10).momentum
        assert [momentum_encoder(epoch, 200) for epoch in (0, 100, 200)] == pytest.approx([momentum] * 3, abs=1e-12)


@pytest.mark.parametrize("method", ["moco-v1", "moco-v2", "ressl"])
def test_a_momentum_rises_where_it_has_an_end(method):
    constant, rising = (method_class(method)(**options).setup(10).momentum for options in ({}, {"final_momentum": 1.0}))
    assert [constant(epoch, 100) for epoch in (0, 50, 100)] == [0.99, 0.99, 0.99]
    assert [rising(epoch, 100) for epoch in (0, 50, 100)] == pytest.approx([0.99, 0.995, 1.0], abs=1e-12)
