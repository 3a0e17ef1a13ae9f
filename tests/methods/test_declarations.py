"""Every listed method is a declaration: frozen, documented, with recipes and views, and no code of
its own.
"""

import inspect
import re
from dataclasses import fields, is_dataclass

import pytest
import torch

from nearfar.methods import Method, Pairing, Recipe, describe, method_class
from nearfar.views import compose, fit_views


def test_is_a_frozen_dataclass_with_paper_and_recipes(name):
    method = method_class(name)
    assert (
        issubclass(method, Method) and is_dataclass(method) and method.__dataclass_params__.frozen
    )
    assert re.search(r"\b(20\d\d)\b|Stochastic Approximation|SigCLR", method.paper)
    assert "small" in method.recipes
    for key, recipe in method.recipes.items():
        assert isinstance(recipe, Recipe) and recipe.source
        built = method.from_recipe(key)
        built.setup(num_images=10)  # what a recipe sets is there, and in range
        for number, value in recipe.hyperparameters.items():
            assert getattr(built, number) == value


def test_declares_views_and_setup_and_overrides_nothing_else(name):
    allowed = {"paper", "recipes", "views", "setup"} | {
        field.name for field in fields(method_class(name))
    }
    for cls in inspect.getmro(method_class(name)):
        if cls is Method:
            break
        assert {key for key in vars(cls) if not key.startswith("_")} <= allowed, cls
        assert "__post_init__" not in vars(cls)
    assert type(method_class(name).from_recipe().setup(10).pairing) is Pairing
    assert not hasattr(Method, "compute")


def test_every_hyperparameter_is_documented(name):
    cls = method_class(name)
    summary = inspect.getdoc(cls).partition("\n")[0]
    assert summary.endswith(".") and len(summary) < 120
    assert list(describe(cls)["meanings"]) == [field.name for field in fields(cls)]


def test_needs_are_told(name):
    needs = set(describe(method_class(name))["needs"])
    momentum_encoders = {
        "byol",
        "jcl",
        "lorac",
        "lorac-bs",
        "moco-m",
        "moco-v1",
        "moco-v2",
        "moco-v3",
        "ressl",
        "sce",
    }
    assert ("momentum encoder" in needs) == (name in momentum_encoders)
    assert ("queue" in needs) == (name in momentum_encoders - {"byol", "moco-v3"} | {"nnclr"})
    assert ("predictor" in needs) == (name in {"byol", "moco-v3", "nnclr", "simsiam"})
    assert ("second projector" in needs) == (name == "wcl")
    assert ("index" in needs) == (name in {"sogclr", "isogclr"})


@pytest.mark.parametrize(
    ("size", "channels"), [(8, 1), (28, 1), (16, 3), (32, 3), (64, 3), (224, 3)]
)
def test_views_exist_for_images_of_any_size(name, size, channels):
    names = method_class(name).from_recipe().views
    views = compose(fit_views(names, size, channels), size, channels).views
    assert len(views) == len(names)
    assert all(view.size <= size for view in views)
    if size >= 64:
        small = [view in ("small", "local-6", "local-5", "local-4", "local-3") for view in names]
        assert [view.size < size for view in views] == small


OWN = {
    "dclw": {"weighted": True},
    "lorac-bs": {"batchwise": True},
    "moco-m": {"beta": float("inf")},
    "moco-v1": {"temperature": 0.07},
}


def test_defaults_are_those_of_the_loss(name):
    """A loss made with nothing but what it requires has the numbers of the method's."""
    loss = method_class(name)().setup(num_images=20).loss
    required = {"num_images": 20, "dim": 128}
    parameters = inspect.signature(type(loss)).parameters
    plain = type(loss)(**{key: required[key] for key in parameters if key in required})

    def numbers(module):
        kept = {
            key: value
            for key, value in vars(module).items()
            if not key.startswith("_") and key != "training"
        }
        return kept | {key: tuple(value.shape) for key, value in module.state_dict().items()}

    assert numbers(loss) == numbers(plain) | OWN.get(name, {})
    same_start = [key for key, _ in plain.named_buffers()] + ["bias", "log_scale"]
    for key, value in plain.state_dict().items():
        assert key not in same_start or torch.equal(value, loss.state_dict()[key])
