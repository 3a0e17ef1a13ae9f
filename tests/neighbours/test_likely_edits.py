"""Likely pairs: they are compared as long as an edited copy is among them now and then."""

import pytest

from nearfar.neighbours.edited_copies import AT_ONCE, Edited, _among_likely, _Comparing
from nearfar.neighbours.edits import Edit


class Counting(_Comparing):
    """Comparisons of images of which the copies are known."""

    def __init__(self, images, copied):
        self.groups, self.local, self.copied = range(images), {}, copied

    def take_local_features(self, rows, title=None):
        new = [row for row in rows if row not in self.local]
        self.local |= dict.fromkeys(new)
        return len(new)

    def __call__(self, first, second, is_mirrored):
        return Edited(first, second, Edit()) if first in self.copied else None


@pytest.mark.parametrize(("images", "most"), [(4000, 400), (600, 100)])
def test_they_end_when_a_tenth_of_the_images_was_looked_at_in_vain(images, most, caplog):
    caplog.set_level("INFO", "nearfar")
    compare = Counting(images, ())
    pairs = [(row, row + 1) for row in range(0, images, 2)]
    assert list(_among_likely(compare, pairs)) == []
    assert most <= len(compare.local) < most + 2 * AT_ONCE
    assert f"the {len(compare.local) // 2} likeliest of {images // 2}" in caplog.text


def test_they_go_on_while_there_are_copies_and_end_afterwards():
    compare = Counting(4000, range(0, 2000, 300))
    pairs = [(row, row + 1) for row in range(0, 4000, 2)]
    assert [pair.first for pair in _among_likely(compare, pairs)] == list(range(0, 2000, 300))
    assert 2200 <= len(compare.local) < 2200 + 4 * AT_ONCE


def test_images_that_many_pairs_share_are_looked_at_once(caplog):
    caplog.set_level("INFO", "nearfar")
    compare = Counting(1000, ())
    pairs = [(0, row) for row in range(1, 90)]
    assert list(_among_likely(compare, pairs)) == []
    assert len(compare.local) == 90
    assert not caplog.text  # no pair was left out
