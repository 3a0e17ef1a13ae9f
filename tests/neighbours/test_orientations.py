"""The eight orientations of an image are a group."""

from itertools import product

import numpy as np
import pytest

from nearfar.neighbours.copies import composed, inverse, turned

IMAGE = np.arange(12).reshape(3, 4)
ALL = range(8)


def test_all_eight_differ_and_the_first_is_the_image():
    shown = [turned(IMAGE, turn).tolist() for turn in ALL]
    assert shown[0] == IMAGE.tolist() and all(shown.count(image) == 1 for image in shown)


@pytest.mark.parametrize(("turn", "before"), product(ALL, ALL))
def test_two_after_another_are_a_third(turn, before):
    assert composed(turn, before) in ALL
    twice = turned(turned(IMAGE, before), turn)
    assert np.array_equal(twice, turned(IMAGE, composed(turn, before)))


@pytest.mark.parametrize("turn", ALL)
def test_each_is_undone(turn):
    assert np.array_equal(turned(turned(IMAGE, turn), inverse(turn)), IMAGE)
    assert composed(inverse(turn), turn) == composed(turn, inverse(turn)) == 0
