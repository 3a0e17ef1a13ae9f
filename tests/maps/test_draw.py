import matplotlib.style
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image

from nearfar.data import Images
from nearfar.maps import draw
from nearfar.maps.columns import GREY, PALETTE
from nearfar.maps.draw import draw_map


@pytest.fixture(scope="module")
def points():
    return torch.randn(300, 2, generator=torch.Generator().manual_seed(0))


def share(path, colour):
    """Share of the picture's pixels that have exactly this colour."""
    picture = np.array(Image.open(path).convert("RGB"))
    wanted = np.round(255 * np.array(to_rgb(colour))).astype(np.uint8)
    return (picture == wanted).all(-1).mean()


def test_each_class_is_drawn_in_its_own_colour(tmp_path, points):
    draw_map(tmp_path / "map.png", points, np.arange(300) % 3, ["a", "b", "c"])
    shares = [share(tmp_path / "map.png", colour) for colour in PALETTE[:4]]
    assert min(shares[:3]) > 0.001 and max(shares[:3]) < 2 * min(shares[:3])
    assert shares[3] == 0
    assert share(tmp_path / "map.png", GREY) == 0


@pytest.mark.parametrize("style", ["dark_background", "seaborn-v0_8-poster", "of one's own"])
def test_the_style_of_the_callers_own_figures_changes_no_map(tmp_path, points, style):
    labels = np.arange(300) % 3
    draw_map(tmp_path / "plain.png", points, labels, ["a_b", "b", "c"])
    own = {"text.usetex": True, "savefig.dpi": 40, "savefig.bbox": "tight", "font.size": 30}
    with matplotlib.style.context(own if style == "of one's own" else style):
        before = dict(matplotlib.rcParams)
        draw_map(tmp_path / "styled.png", points, labels, ["a_b", "b", "c"])
        assert dict(matplotlib.rcParams) == before
    pictures = [np.array(Image.open(tmp_path / f"{name}.png")) for name in ("plain", "styled")]
    assert np.array_equal(*pictures)


def test_names_of_classes_are_drawn_as_they_are(tmp_path, points, monkeypatch):
    import matplotlib.axes

    drawn = []
    legend = matplotlib.axes.Axes.legend
    monkeypatch.setattr(
        matplotlib.axes.Axes, "legend", lambda *a, **k: drawn.append(legend(*a, **k)) or drawn[-1]
    )
    draw_map(tmp_path / "map.png", points, np.arange(300) % 3, ["$x_$", "_background", "$1-$5"])
    texts = drawn[0].get_texts()
    assert [text.get_text() for text in texts] == ["$x_$", "_background", "$1-$5"]
    assert not any(text.get_parse_math() for text in texts)


def test_with_more_than_twenty_classes_all_is_gray(tmp_path, points):
    draw_map(tmp_path / "map.png", points, np.arange(300) % 21)
    assert share(tmp_path / "map.png", GREY) > 0.003
    assert max(share(tmp_path / "map.png", colour) for colour in PALETTE) == 0


def test_of_many_points_some_are_drawn_and_a_line_says_so(tmp_path, points, monkeypatch, log):
    labels = (points[:, 0] > 0).long().numpy()
    draw_map(tmp_path / "all.png", points, labels, ["a", "b"])
    assert not log.lines
    monkeypatch.setattr(draw, "MOST_POINTS", 60)
    draw_map(tmp_path / "some.png", points, labels, ["a", "b"])
    (line,) = log.lines
    assert "60 of 300" in line
    for colour in PALETTE[:2]:
        assert 0 < share(tmp_path / "some.png", colour) < 0.5 * share(tmp_path / "all.png", colour)


def test_images_are_drawn_over_points(tmp_path, points):
    pixels = (
        torch.tensor([10, 200, 30], dtype=torch.uint8)
        .view(1, 3, 1, 1)
        .expand(300, 3, 8, 8)
        .contiguous()
    )
    images = Images(pixels, names=[str(i) for i in range(300)])
    draw_map(tmp_path / "map.png", points, images=images)
    assert share(tmp_path / "map.png", "#0ac81e") > 0.02


def test_one_point_alone_can_be_drawn(tmp_path):
    draw_map(tmp_path / "map.png", torch.zeros(1, 2), np.array([-1]))
    assert share(tmp_path / "map.png", GREY) > 0
