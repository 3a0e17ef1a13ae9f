"""Schedules give the numbers of their formulas, and reach the losses."""

import math

import pytest

from nearfar.methods import method_class
from nearfar.methods.method import Cosine, Ramp, Switch


def test_cosine():
    momentum = Cosine(0.996, 1.0)
    assert momentum(0, 100) == 0.996
    assert momentum(50, 100) == pytest.approx(0.998, abs=1e-12)
    assert momentum(100 / 3, 100) == pytest.approx(0.997, abs=1e-12)  # cos 60 degrees = 1/2
    assert momentum(100, 100) == 1.0
    assert momentum(120, 100) == 1.0
    assert [Cosine(0.3)(epoch, 10) for epoch in (0, 4.5, 10)] == [0.3, 0.3, 0.3]


def test_ramp():
    lam = Ramp(4.0)
    assert [lam(epoch, 4) for epoch in (0, 0.99, 1, 2.5, 3, 3.99)] == [1.0, 1.0, 2.0, 3.0, 4.0, 4.0]
    assert lam(4, 4) == 4.0


def test_switch():
    beta = Switch(math.inf, 2.0)
    assert [beta(epoch, 10) for epoch in (0, 4.99, 5, 10)] == [math.inf, math.inf, 2.0, 2.0]
    assert [Switch("a", "b", 0.25)(epoch, 10) for epoch in (2.4, 2.5)] == ["a", "b"]
    assert [Switch(0, 1, 0.0)(0, 10), Switch(0, 1, 1.0)(9.99, 10)] == [1, 0]
    assert [Switch(True, False, at_epoch=1)(epoch, 200) for epoch in (0, 0.99, 1, 7)] == [
        True,
        True,
        False,
        False,
    ]


def test_prototypes_stay_for_the_first_epoch_and_rows_are_stored_from_the_fifteenth(
    build, fake_embeddings
):
    model = build("swav", stored=12)
    seen = []
    for epoch in (0, 0.9, 1, 14.9, 15):
        model.set_schedules(epoch, 200)
        embeddings = fake_embeddings(model, 6, 0)["projection"].requires_grad_()
        model.zero_grad()
        model.loss(embeddings).backward()
        seen.append((model.loss.prototypes.grad is not None, model.loss.queued))
    assert seen == [(False, 0), (False, 0), (True, 0), (True, 0), (True, 6)]


def test_the_weights_of_sce_follow_lam_where_they_are_its_rest(build):
    whole, given = build("sce", lam=0.2, final_lam=0.8), build("sce", final_lam=1.0, mu=0.3)
    seen = []
    for epoch in (0, 100, 200):
        for model in (whole, given):
            model.set_schedules(epoch, 200)
            seen.append((model.loss.lam, model.loss.mu, model.loss.eta))
    expected = [0.2, 0.8, 0.8, 0.5, 0.3, 0.5, 0.5, 0.5, 0.5, 0.75, 0.3, 0.25]
    expected += [0.8, 0.2, 0.2, 1.0, 0.3, 0.0]
    assert [number for numbers in seen for number in numbers] == pytest.approx(expected)
    assert not build("sce").setup.schedules
    with pytest.raises(ValueError, match="final_lam"):
        build("sce", final_lam=1.5)


@pytest.mark.parametrize(
    ("method", "options", "numbers"),
    [
        ("byol", {}, [0.996, 0.998, 1.0]),
        ("moco-v3", {}, [0.99, 0.995, 1.0]),
        ("sce", {}, [0.99, 0.995, 1.0]),
        ("sce", method_class("sce").recipes["stl10"].hyperparameters, [0.996, 0.996, 0.996]),
        ("moco-v2", {}, [0.99, 0.99, 0.99]),
        ("moco-v2", {"final_momentum": 1.0}, [0.99, 0.995, 1.0]),
        ("lorac", {}, [0.99, 0.99, 0.99]),
        ("ressl", {}, [0.99, 0.99, 0.99]),
        ("ressl", {"final_momentum": 1.0}, [0.99, 0.995, 1.0]),
        ("jcl", {}, [0.99, 0.99, 0.99]),
    ],
)
def test_momentum_of_the_momentum_encoder(method, options, numbers):
    momentum = method_class(method)(**options).setup(10).momentum
    assert [momentum(epoch, 200) for epoch in (0, 100, 200)] == pytest.approx(numbers, abs=1e-12)
