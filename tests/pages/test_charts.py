import math
import re

import pytest

from nearfar.pages.charts import HEIGHT, WIDTH, Curve, chart, number, ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.25, 0.5, 0.75, 1]),
        (0, 40, [0, 10, 20, 30, 40]),
        (-3.7, -0.2, [-4, -3, -2, -1, 0]),
        (1e-4, 3e-4, [1e-4, 1.5e-4, 2e-4, 2.5e-4, 3e-4]),
    ],
)
def test_ticks_are_round(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(("low", "high"), [(0.0, 7.3), (2.1, 2.2), (-5e3, 1e4), (0.03, 0.031), (0, 1e-9)])
def test_ticks_cover_the_range_with_few_lines(low, high):
    found = ticks(low, high)
    assert found[0] <= low and found[-1] >= high and 3 <= len(found) <= 7


def test_ticks_of_a_constant():
    assert ticks(0.5, 0.5) == [0.5]


def test_numbers_are_short():
    shown = [number(x) for x in (0, 1.23456, -0.5, 1234.5, 1e-5, 2.5e7)]
    assert shown == ["0", "1.235", "\u22120.5", "1234", "1e-5", "2.5e7"]


def test_many_points_become_means_that_keep_the_mean():
    curve = Curve("x", list(range(4800)), [float(i % 2) for i in range(4800)])
    points = curve.points()
    assert len(points) == 240
    assert {y for _, y in points} == {0.5}


def test_points_that_are_not_finite_are_left_out():
    assert Curve("x", [0, 1, 2], [math.nan, 2.0, math.inf]).points() == [(1, 2.0)]


def test_nothing_to_draw_gives_nothing():
    assert chart("t", "n", [Curve("x", [], []), Curve("y", [1], [math.nan])]) == ""


def test_points_lie_inside_the_picture_and_higher_values_lie_higher():
    figure = chart("<t>", "a & b", [Curve("x", [0, 5, 10], [1.0, 9.0, 4.0]), Curve("y", [0, 10], [-2.0, 2.0])])
    assert "<h3>&lt;t&gt;</h3>" in figure and "a &amp; b" in figure
    first, second = (
        [tuple(map(float, pair.split(","))) for pair in points.split()]
        for points in re.findall(r'points="(.*?)"', figure)
    )
    assert len(first) == 3 and len(second) == 2
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in first + second)
    assert first[1][1] < first[2][1] < second[1][1] < first[0][1] < second[0][1]
    assert first[0][0] < first[1][0] < first[2][0] == second[1][0]


def test_one_single_point_is_drawn_in_the_middle():
    figure = chart("t", "", [Curve("x", [0.0], [3.0])])
    assert "x: 3 at epoch 0" in figure and "nan" not in figure
