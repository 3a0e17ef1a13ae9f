import pytest
import yaml

from nearfar.views import View, ViewPlan, compose, fit_views, plan

# SCE, Table 2, read off the paper: the columns' rows in order.
TABLE_2 = {
    "weak": (0.5, 0.0, None, None, None, None, 0.0, 0.0, 0.0),
    "strong": (0.5, 0.8, 0.4, 0.4, 0.4, 0.1, 0.2, 0.5, 0.0),
    "strong-alpha": (0.5, 0.8, 0.4, 0.4, 0.2, 0.1, 0.2, 1.0, 0.0),
    "strong-beta": (0.5, 0.8, 0.4, 0.4, 0.2, 0.1, 0.2, 0.1, 0.2),
    "strong-gamma": (0.5, 0.8, 0.4, 0.4, 0.2, 0.1, 0.2, 0.5, 0.2),
}
FIELDS = (
    "flip",
    "jitter",
    "brightness",
    "contrast",
    "saturation",
    "hue",
    "grayscale",
    "blur",
    "solarize",
)


@pytest.mark.parametrize("name", TABLE_2)
@pytest.mark.parametrize("size", [32, 224])
def test_the_five_sets_are_those_of_table_2(name, size):
    views = plan(name, size, 3).views
    assert len(views) == 2
    assert views[0] == views[1]
    for field, value in zip(FIELDS, TABLE_2[name], strict=True):
        assert value is None or getattr(views[0], field) == value, field


def test_the_cifar_sets_are_those_of_their_papers():
    saclr = plan("saclr-cifar", 32, 3).views[0]
    assert saclr.scale == (0.2, 1.0)
    assert (saclr.brightness, saclr.contrast, saclr.saturation, saclr.hue) == (0.4, 0.4, 0.4, 0.1)
    assert (saclr.jitter, saclr.grayscale, saclr.blur, saclr.flip) == (0.8, 0.1, 0.0, 0.5)
    alpha, beta = plan("sigclr-cifar", 32, 3).views
    assert (alpha.blur, alpha.solarize, beta.blur, beta.solarize) == (1.0, 0.0, 0.1, 0.2)
    assert alpha.scale == beta.scale == (0.08, 1.0)
    small, large = plan("simclr", 32, 3).views[0], plan("simclr", 224, 3).views[0]
    assert (small.brightness, small.hue, small.blur) == (0.4, 0.1, 0.0)
    assert (large.brightness, large.hue, large.blur) == (0.8, 0.2, 0.5)


def test_the_views_of_lejepa_are_those_of_its_released_settings():
    large, small = (compose([name], 224, 3).views[0] for name in ("lejepa", "local-lejepa"))
    assert (large.size, large.scale) == (224, (0.3, 1.0))
    assert (small.size, small.scale) == (98, (0.05, 0.3))
    for view in (large, small):
        assert tuple(getattr(view, field) for field in FIELDS) == TABLE_2["strong-gamma"]
    fitted = fit_views(["lejepa", "local-lejepa"], 96, 3, "photographs")
    assert fitted == ("photographs", "photographs-small")


def test_multi_crop_sizes_are_the_papers_at_224_and_in_proportion_elsewhere():
    assert [view.size for view in plan("multi-crop", 224, 3).views] == [224] * 2 + [96] * 6
    lorac = plan("lorac", 224, 3).views
    assert [view.size for view in lorac] == [224] * 3 + [96] * 5
    assert [view.scale for view in lorac] == [(0.14, 1.0)] * 3 + [(0.05, 0.14)] * 5
    sce = plan("sce-multi-crop", 224, 3).views
    assert [view.size for view in sce] == [224, 224, 192, 160, 128, 96]
    assert [view.scale for view in sce[2:]] == [
        (0.172, 0.86),
        (0.143, 0.715),
        (0.114, 0.571),
        (0.086, 0.429),
    ]
    assert [view.size for view in plan("lorac", 32, 3).views] == [32] * 3 + [14] * 5
    assert {view.size for view in plan("multi-crop", 8, 1).views} == {8}


def test_pairs_are_written_with_a_plus():
    assert plan("strong+weak", 64, 3).views == (
        plan("strong", 64, 3).views[0],
        plan("weak", 64, 3).views[0],
    )
    assert plan("strong-alpha+strong-beta", 64, 3).views == plan("asymmetric", 64, 3).views
    assert compose(["weak", "strong", "small"], 64, 3).views[:2] == plan("weak+strong", 64, 3).views


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_colour_is_left_out_of_a_plan_without_three_channels(channels):
    for view in plan("strong", 32, channels).views:
        assert (view.saturation, view.hue, view.grayscale) == (0, 0, 0)
        assert (view.brightness, view.contrast) == (0.4, 0.4)


def test_views_are_fitted_to_size_and_channels():
    own = ["simclr", "weak", "strong-alpha", "small", "local-6"]
    fitted = {
        (8, 1): ("grayscale", "grayscale-weak", "grayscale", "grayscale", "grayscale"),
        (48, 1): ("grayscale", "grayscale-weak", "grayscale", "grayscale", "grayscale"),
        (49, 1): ("saclr-cifar", "weak", "saclr-cifar", "local-4", "local-4"),
        (24, 3): ("tiny", "tiny-weak", "tiny", "tiny", "tiny"),
        (25, 3): ("saclr-cifar", "weak", "saclr-cifar", "local-4", "local-4"),
        (63, 3): ("saclr-cifar", "weak", "saclr-cifar", "local-4", "local-4"),
        (64, 3): tuple(own),
        (224, 1): tuple(own),
    }
    assert {key: fit_views(own, *key) for key in fitted} == fitted
    assert not any(view.flip for view in compose(fit_views(own, 28, 1), 28, 1).views)
    assert not any(view.blur for view in compose(fit_views(own[:3], 32, 3), 32, 3).views)


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("stong", "strong"), ("strong_alpha", "strong-alpha"), ("weak+stronk", "strong")],
)
def test_an_unknown_name_is_refused_with_the_nearest(wrong, near):
    with pytest.raises(ValueError, match=f"did you mean '{near}'"):
        plan(wrong, 32, 3)


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="at least 1 pixel"):
        plan("weak", 0, 3)
    with pytest.raises(ValueError, match="at least one view"):
        ViewPlan("nothing", ())


def test_a_plan_is_written_as_plain_values_and_read_back():
    for name in ("strong", "sce-multi-crop", "grayscale"):
        views = plan(name, 32, 1)
        assert views.name == name
        assert ViewPlan.from_dict(yaml.safe_load(yaml.safe_dump(views.to_dict()))) == views
    short = ViewPlan.from_dict({"views": [{"scale": [0.5, 1], "flip": 0}, {}]})
    assert (
        short.views[0].scale == (0.5, 1)
        and short.views[1].flip == 0.5
        and short.views[1].size is None
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"views": [{}, {"scal": [0, 1]}]}, "unexpected keyword argument 'scal'"),
        ({"view": []}, "'views'"),
        ({"views": "strong"}, "'str' object"),
        ({"views": []}, "at least one view"),
        ({"views": [{}], "nam": "x"}, "unexpected keyword argument 'nam'"),
        ({"views": [{"flip": 2}]}, "probability from 0 to 1"),
        ("strong", "a view plan has"),
    ],
)
def test_plain_values_that_are_no_plan_are_refused(values, words):
    with pytest.raises(ValueError, match=words):
        ViewPlan.from_dict(values)


@pytest.mark.parametrize(
    "wrong",
    [
        {"flip": 1.2},
        {"jitter": -0.1},
        {"hue": 0.6},
        {"scale": (0.5, 0.2)},
        {"scale": (0.5, 1.5)},
        {"ratio": (0.0, 1.0)},
        {"sigma": (0.0, 1.0)},
        {"noise_std": (-0.1, 0.1)},
        {"contrast": -1.0},
        {"shear": 60.0},
        {"size": 0},
    ],
)
def test_numbers_out_of_range_are_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        View(**wrong)


@pytest.mark.parametrize("image_size", [16, 32, 96])
def test_an_unknown_name_is_named_at_every_size(image_size):
    with pytest.raises(ValueError, match=r"no view plan 'stong'.*'strong'"):
        fit_views(["stong", "weak"], image_size, 3)
