"""Likely pairs: they are compared as long as local features agree now and then."""

import pytest

from nearfar.neighbours.edited_copies import AT_ONCE, _among_likely, _Comparing


class Counting(_Comparing):
    """Comparisons that find nothing, whose local features agree at these pairs."""

    def __init__(self, images, agreeing):
        self.groups, self.local, self.agreed, self.agreeing = range(images), {}, 0, agreeing

    def take_local_features(self, rows, title=None):
        new = [row for row in rows if row not in self.local]
        self.local |= dict.fromkeys(new)
        return len(new)

    def __call__(self, first, second, is_mirrored):
        self.agreed += first in self.agreeing
        return None


@pytest.mark.parametrize(("images", "most"), [(4000, 400), (600, 100)])
def test_they_end_when_a_tenth_of_the_images_was_looked_at_in_vain(images, most):
    compare = Counting(images, ())
    pairs = [(row, row + 1) for row in range(0, images, 2)]
    assert list(_among_likely(compare, pairs)) == []
    assert most <= len(compare.local) < most + 2 * AT_ONCE


def test_they_go_on_while_features_agree_and_end_afterwards():
    compare = Counting(4000, range(0, 2000, 300))
    pairs = [(row, row + 1) for row in range(0, 4000, 2)]
    assert list(_among_likely(compare, pairs)) == []
    assert 2200 <= len(compare.local) < 2200 + 4 * AT_ONCE


def test_images_that_many_pairs_share_are_looked_at_once():
    compare = Counting(1000, ())
    pairs = [(0, row) for row in range(1, 90)]
    assert list(_among_likely(compare, pairs)) == []
    assert len(compare.local) == 90
