import itertools

import numpy as np
import pytest

from nearfar.pages.map import Square, levels, z_order_keys


@pytest.fixture
def coordinates():
    return np.random.default_rng(0).normal(size=(700, 2)) * (3, 1) + (10, -4)


def cell_of(place, square, depth):
    column, row = (np.array(place) - (square.left, square.bottom)) / square.side * 2**depth
    return min(int(row), 2**depth - 1), min(int(column), 2**depth - 1)


def test_keys_interleave_the_bits_of_both_coordinates(coordinates):
    square = Square.around(coordinates)
    for place, key in zip(coordinates[:50], z_order_keys(coordinates, square), strict=False):
        row, column = cell_of(place, square, 16)
        bits = [(column >> bit & 1) | (row >> bit & 1) << 1 for bit in range(16)]
        assert key == sum(two << 2 * bit for bit, two in enumerate(bits))


def test_each_occupied_cell_has_one_of_its_points_and_their_number(coordinates):
    square = Square.around(coordinates)
    pyramid = levels(coordinates, square)
    assert [level.depth for level in pyramid] == list(range(2, 2 + len(pyramid))) and len(pyramid) > 2
    for level in pyramid:
        cells = [cell_of(place, square, level.depth) for place in coordinates]
        found = {cells[i]: count for i, count in zip(level.points, level.counts, strict=True)}
        assert found == {cell: cells.count(cell) for cell in set(cells)}
        assert len(found) == len(level.points)


def test_zooming_in_keeps_every_representative(coordinates):
    pyramid = levels(coordinates, Square.around(coordinates))
    for coarse, fine in itertools.pairwise(pyramid):
        assert set(coarse.points.tolist()) < set(fine.points.tolist())
    assert len(coordinates) / len(pyramid[-2].points) > 2 >= len(coordinates) / len(pyramid[-1].points)


def test_at_the_finest_level_the_point_nearest_to_the_mean_stands_for_a_cell(coordinates):
    square = Square.around(coordinates)
    finest = levels(coordinates, square)[-1]
    cells = np.array([cell_of(place, square, finest.depth) for place in coordinates])
    for i in finest.points:
        members = coordinates[(cells == cells[i]).all(axis=1)]
        far = np.square(members - members.mean(axis=0)).sum(axis=1)
        assert np.square(coordinates[i] - members.mean(axis=0)).sum() == far.min()


@pytest.mark.parametrize("count", [1, 5])
def test_points_at_one_place_have_one_cell(count):
    coordinates = np.full((count, 2), 7.0)
    for level in levels(coordinates, Square.around(coordinates)):
        assert level.counts.tolist() == [count]
