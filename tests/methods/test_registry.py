"""Methods are found by name, users' own beside those of the package."""

from dataclasses import dataclass, make_dataclass

import numpy as np
import pytest
import torch
from torch import nn

import nearfar
from nearfar.methods import (
    Head,
    Method,
    Model,
    Pairing,
    Setup,
    SimCLR,
    describe,
    method_class,
    method_name,
    method_names,
    register_method,
    registry,
)
from nearfar.methods.method import Cosine
from nearfar.methods.pairing import two_views

LISTED = """barlow-twins byol dcl dclw isogclr jcl lejepa lorac lorac-bs moco-m moco-v1 moco-v2 moco-v3 nnclr ressl
    saclr sce sigclr simclr simsiam sogclr swav vicreg wcl wmse"""


class Spread(nn.Module):
    """Mean squared distance of two views, times a share."""

    def __init__(self, share=1.0):
        super().__init__()
        self.share = share

    def forward(self, first, second):
        return (first - second).square().sum(-1).mean() * self.share


@dataclass(frozen=True, kw_only=True)
class Triplets(Method):
    """Three views of an image in a ring.

    Args:
        projector: widths of the projector.
        share: of every term.
    """

    paper = "nobody, 2026"
    views = ("strong", "strong", "weak")

    share: float = 0.5

    def setup(self, num_images):
        terms = tuple((("projection", view), ("projection", (view + 1) % 3)) for view in range(3))
        pairing = Pairing(terms=terms, join="sum")
        return Setup(loss=Spread(self.share), pairing=pairing, projector=Head(self.projector))


@pytest.fixture
def own(monkeypatch):
    """A registry in which names of this test may be entered."""
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))


@pytest.mark.parametrize("hiding", ["recipe", "setup_for", "hyperparameters", "on_metrics"])
def test_a_field_that_hides_a_part_or_an_argument_is_refused(hiding, own):
    """`recipe` was a TypeError, and a run with `hyperparameters` could never be read again."""
    kind = make_dataclass(
        "Hiding", [(hiding, int, 3)], bases=(Triplets,), frozen=True, kw_only=True
    )
    with pytest.raises(ValueError, match=f"field {hiding}"):
        nearfar.pretrain(np.zeros((40, 8, 8), np.uint8), method=kind(), epochs=1)
    if hiding in ("recipe", "setup_for"):
        with pytest.raises(ValueError, match=f"field {hiding}"):
            register_method("hiding")(kind)


def test_all_systems_of_the_papers_are_there():
    assert method_names() == LISTED.split()


def test_an_unknown_name_gives_the_nearest_or_the_way_to_the_list():
    for wrong, near in [
        ("simclear", "simclr"),
        ("MoCo-V2", "moco-v2"),
        ("barlow_twins", "barlow-twins"),
    ]:
        with pytest.raises(ValueError, match=rf"'{wrong}': did you mean '{near}'\?"):
            method_class(wrong)
    with pytest.raises(ValueError, match=r"'xyzzy': .*nearfar methods"):
        method_class("xyzzy")


def test_names_and_classes_are_inverse(name):
    cls = method_class(name)
    assert method_name(cls) == method_name(cls()) == name
    assert method_name(Triplets) is None


def test_an_own_method_is_trained_by_name(own, build):
    register_method("triplets")(Triplets)
    assert "triplets" in method_names() and method_class("triplets") is Triplets
    assert method_name(Triplets(share=2.0)) == "triplets"
    facts = describe(Triplets)
    assert facts["defaults"] == {"projector": (512, 128), "share": 0.5} and facts["needs"] == []
    assert facts["meanings"]["share"] == "of every term."

    model = build("triplets", projector=(16,), share=2.0)
    views = [torch.randn(5, 1, 4, 4) for _ in model.method.views]
    a, b, c = (model.online(view) for view in views)
    expected = 2 * sum((x - y).square().sum(1).mean() for x, y in ((a, b), (b, c), (c, a)))
    loss = model.compute_loss(model(views), None)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(
        (parameter.grad != 0).any()
        for key, parameter in model.named_parameters()
        if key.endswith("weight")
    )


def test_a_name_is_given_once(own):
    with pytest.raises(
        ValueError, match=r"already a method 'simclr', nearfar\.methods\.simclr\.SimCLR"
    ):
        register_method("simclr")(Triplets)
    assert method_class("simclr") is SimCLR
    again = dataclass(frozen=True, kw_only=True)(
        type("SimCLR", (SimCLR,), {"__module__": SimCLR.__module__})
    )
    assert register_method("simclr")(again) is again  # a notebook's cell run twice
    assert method_class("simclr") is again


def test_a_setup_that_forgets_to_return_is_named():
    @dataclass(frozen=True, kw_only=True)
    class Forgotten(Triplets):
        def setup(self, num_images):
            super().setup(num_images)

    with pytest.raises(TypeError, match=r"Forgotten\.setup must return a Setup"):
        Forgotten().setup_for(10, None)


class NotADataclass(Triplets):
    pass


@dataclass(frozen=True, kw_only=True)
class NoViews(Method):
    def setup(self, num_images):
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class NoSmall(Triplets):
    recipes = {"imagenet": SimCLR.recipes["imagenet"]}


@pytest.mark.parametrize(
    ("word", "thing", "message"),
    [
        ("mine", nn.Linear, r"nearfar\.methods\.Method"),
        ("mine", Triplets(), "is not a subclass"),
        ("mine", NotADataclass, "NotADataclass is not a frozen"),
        ("mine", NoViews, "NoViews does not define views"),
        ("mine", NoSmall, "NoSmall has no recipe 'small'"),
        ("My Method", Triplets, "got 'My Method'"),
        ("", Triplets, "got ''"),
    ],
)
def test_what_is_no_method_is_refused(own, word, thing, message):
    with pytest.raises(ValueError, match=message):
        register_method(word)(thing)
    assert method_names() == LISTED.split()


def test_a_pairing_needs_the_networks_that_it_names(build):
    prediction = Pairing(terms=((("prediction", 0), ("projection", 1)),))
    with pytest.raises(
        ValueError,
        match=r"'prediction', .*only 'projection'$",
    ):
        Setup(loss=Spread(), pairing=prediction, projector=Head((4,)))
    key = Pairing(terms=((("projection", 0), ("key", 1)),))
    with pytest.raises(ValueError, match=r"'key', .*'projection' and 'prediction'$"):
        Setup(loss=Spread(), pairing=key, projector=Head((4,)), predictor=Head((4,)))
    for part in ({"momentum": Cosine(0.9)}, {"queue_size": 5}):
        with pytest.raises(ValueError, match=r"pairing (uses|has) no 'key'"):
            Setup(loss=Spread(), pairing=two_views(), projector=Head((4,)), **part)

    @dataclass(frozen=True, kw_only=True)
    class TwoViews(Triplets):
        views = ("strong", "weak")

    with pytest.raises(ValueError, match=r"view 2, .*0 to 1"):
        Model(TwoViews(), nn.Identity(), 10)


def test_a_method_from_a_recipe():
    assert SimCLR.from_recipe() == SimCLR(temperature=0.2)
    assert SimCLR.from_recipe("imagenet", temperature=0.3) == SimCLR(
        temperature=0.3, projector=(2048, 128), output_norm=True
    )
    with pytest.raises(
        ValueError,
        match=r"'stl10': .*imagenet",
    ):
        SimCLR.from_recipe("stl10")
    with pytest.raises(ValueError, match=r"'temprature': did you mean 'temperature'\?"):
        SimCLR.from_recipe(temprature=0.1)
