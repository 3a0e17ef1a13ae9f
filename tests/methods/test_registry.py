"""Every file of the folder is a method that says what it is."""

import re
from dataclasses import fields, is_dataclass

import pytest

from nearfar.methods import Recipe, describe, fitted_views, method_class, method_names
from nearfar.methods.method import Method
from nearfar.views import plan

LISTED = """barlow-twins byol dcl dclw isogclr jcl lorac lorac-bs moco-m moco-v1 moco-v2 moco-v3 nnclr ressl saclr sce
    sigclr simclr simsiam sogclr swav vicreg wmse"""


def test_all_systems_of_the_papers_are_there():
    assert method_names() == LISTED.split()


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("simclear", "simclr"), ("MoCo-V2", "moco-v2"), ("barlow_twins", "barlow-twins"), ("lorac-b", "lorac-bs")],
)
def test_an_unknown_name_gives_the_nearest(wrong, near):
    with pytest.raises(ValueError, match=rf"there is no method '{wrong}': did you mean '{near}'\?"):
        method_class(wrong)


def test_a_name_far_from_all_gives_the_way_to_the_list():
    with pytest.raises(ValueError, match="nearfar methods"):
        method_class("xyzzy")


@pytest.mark.parametrize("file", ["model", "schedules", "recipe", "description", "method"])
def test_wiring_is_no_method(file):
    with pytest.raises(ValueError, match="there is no method"):
        method_class(file)


def test_is_a_frozen_dataclass_with_paper_and_recipes(name):
    method = method_class(name)
    assert issubclass(method, Method) and is_dataclass(method) and method.__dataclass_params__.frozen
    assert re.search(r"\b(20\d\d)\b|Stochastic Approximation|SigCLR", method.paper)
    assert "small" in method.recipes
    for recipe in method.recipes.values():
        assert isinstance(recipe, Recipe) and recipe.source
        method(**recipe.hyperparameters).setup(num_images=10)  # what a recipe sets is there, and in range


def test_docstring_documents_every_number(name):
    docs = method_class(name).__doc__
    summary, _, rest = docs.partition("\n")
    assert summary.endswith(".") and len(summary) < 120
    block = re.search(r"\n {4}Args:\n(.*?)(?:\n\n|\Z)", rest, re.DOTALL)
    documented = re.findall(r"^ {8}(\w+): \S", block[1], re.MULTILINE)
    assert sorted(documented) == sorted(field.name for field in fields(method_class(name)))


def test_needs_are_told(name):
    told = set(describe(method_class(name))["needs"])
    momentum_encoders = {"byol", "jcl", "lorac", "lorac-bs", "moco-m", "moco-v1", "moco-v2", "moco-v3", "ressl", "sce"}
    assert ("momentum encoder" in told) == (name in momentum_encoders)
    assert ("queue" in told) == (name in momentum_encoders - {"byol", "moco-v3"} | {"nnclr"})
    assert ("predictor" in told) == (name in {"byol", "moco-v3", "nnclr", "simsiam"})
    assert ("index" in told) == (name in {"sogclr", "isogclr"})


@pytest.mark.parametrize(("size", "channels"), [(8, 1), (28, 1), (16, 3), (32, 3), (64, 3), (224, 3)])
def test_views_exist_for_images_of_any_size(name, size, channels):
    method = method_class(name)
    crops = method(**method.recipes["small"].hyperparameters).crops()
    views = plan(fitted_views(crops, size, channels), size, channels).views
    assert len(views) == len(crops)
    assert all(view.size <= size for view in views)
    if size >= 64:
        small = [crop in ("small", "local-6", "local-5", "local-4", "local-3") for crop in crops]
        assert [view.size < size for view in views] == small


def test_views_of_sce():
    sce = method_class("sce")
    assert sce().crops() == ("strong", "weak")
    assert sce(symmetric=True).crops() == ("strong-alpha", "strong-beta")
    assert sce(small_views=5).crops()[2:] == ("local-6", "local-5", "local-4", "local-3", "local-6")
