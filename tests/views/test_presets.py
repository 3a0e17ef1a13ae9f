"""Presets for kinds of images: what each must not do, and that every method gets the views it
needs.
"""

import math
from pathlib import Path

import pytest

from nearfar.methods import method_class, method_names
from nearfar.views import PRESETS, compose, fit_views


def views_of(preset, image_size=128):
    return [compose([preset + role], image_size, 3).views[0] for role in ("", "-weak", "-small")]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", method_names())
def test_every_method_gets_its_views_in_their_part(preset, method):
    own = method_class(method).from_recipe("small").views
    names = fit_views(own, 128, 3, preset)
    views = compose(names, 128, 3).views
    assert len(views) == len(own)
    for name, view in zip(own, views, strict=True):
        assert view.size == (55 if name.startswith(("small", "local")) else 128)
        assert (view.jitter == 0) == name.startswith("weak")


@pytest.mark.parametrize("preset", ["documents", "grayscale"])
def test_what_has_a_reading_direction_is_never_mirrored_or_turned(preset):
    for view in views_of(preset):
        assert view.flip == view.flip_vertical == view.rot90 == 0
        assert view.degrees <= 10


def test_what_has_an_upper_side_keeps_it_and_the_rest_is_seen_in_all_orientations():
    for preset, turned in {
        "photographs": 0,
        "scans": 0,
        "microscope": 0.75,
        "textures": 0.75,
    }.items():
        assert all(
            (view.flip, view.flip_vertical, view.rot90) == (0.5, 0, turned)
            for view in views_of(preset)
        )


def test_textures_keep_their_scale():
    """Pixels of the image for each pixel of a view, along one side, are the same in large and small
    views.
    """
    magnification = [math.sqrt(view.scale[0]) / view.size for view in views_of("textures", 224)]
    assert all(view.scale[0] == view.scale[1] for view in views_of("textures"))
    assert max(magnification) / min(magnification) < 1.02


def test_the_documentation_says_when_to_take_which():
    table = (Path(__file__).parents[2] / "docs" / "views.md").read_text(encoding="utf-8")
    for name, preset in PRESETS.items():
        assert f"| `{name}` | {preset.when} |" in table
