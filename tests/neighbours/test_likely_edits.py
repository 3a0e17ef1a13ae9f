"""Likely pairs: they are compared as long as an edited copy is among them now and then."""

import cv2
import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import DisjointSet
from torch.nn.functional import normalize

from nearfar.data import Images
from nearfar.neighbours.edited_copies import AT_ONCE, Edited, _among_likely, _Comparing, _near
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


@pytest.mark.parametrize(("images", "most"), [(8000, 800), (2000, 300)])
def test_they_end_when_a_tenth_of_the_images_was_looked_at_in_vain(images, most, caplog):
    caplog.set_level("INFO", "nearfar")
    compare = Counting(images, ())
    pairs = [(row, row + 1) for row in range(0, images, 2)]
    assert list(_among_likely(compare, pairs)) == []
    assert most <= len(compare.local) < most + 2 * AT_ONCE
    assert f"the {len(compare.local) // 2} likeliest of {images // 2}" in caplog.text


def test_they_go_on_while_there_are_copies_and_end_afterwards():
    compare = Counting(8000, range(0, 4000, 600))
    pairs = [(row, row + 1) for row in range(0, 8000, 2)]
    assert [pair.first for pair in _among_likely(compare, pairs)] == list(range(0, 4000, 600))
    assert 4400 <= len(compare.local) < 4400 + 4 * AT_ONCE


def test_images_that_many_pairs_share_are_looked_at_once(caplog):
    caplog.set_level("INFO", "nearfar")
    compare = Counting(1000, ())
    pairs = [(0, row) for row in range(1, 90)]
    assert list(_among_likely(compare, pairs)) == []
    assert len(compare.local) == 90
    assert not caplog.text  # no pair was left out


def test_a_pair_that_stands_out_comes_before_images_of_one_kind():
    """Sixty images that are all alike, nearer than an image and its edit, which resemble no other."""
    chance = torch.Generator().manual_seed(0)
    kind = torch.eye(128)[0] + 0.01 * torch.randn(60, 128, generator=chance)
    edit = torch.eye(128)[1] + 0.02 * torch.randn(2, 128, generator=chance)
    wholes = normalize(torch.cat([kind, edit]), dim=1)
    nearest = (wholes @ wholes.T).fill_diagonal_(-1)
    assert nearest[:60].amax(1).min() > nearest[60, 61]
    rows, parts = torch.arange(62), wholes[:, None].expand(-1, 5, -1)
    assert _near(rows, (wholes, parts), rows, (wholes, parts))[0] == (60, 61)
    archive = rows[:-1], (wholes[:-1], parts[:-1])
    assert _near(*archive, rows[50:], (wholes[50:], parts[50:]))[0] == (60, 61)


def test_threads_that_take_local_features_leave_opencv_one_thread_meanwhile():
    seen, pixels = [], np.zeros((3, 8, 8), np.uint8)

    def read(row):
        seen.append(cv2.getNumThreads())
        return pixels

    before = cv2.getNumThreads()
    cv2.setNumThreads(3)
    try:
        images = Images(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), names=list("abcd"))
        assert _Comparing(images, DisjointSet(), read).take_local_features([0, 1, 2, 3]) == 4
        assert seen == [1] * 4 and cv2.getNumThreads() == 3
    finally:
        cv2.setNumThreads(before)
