"""Likely pairs: they are compared as long as an edited copy is among them now and then."""

import cv2
import pytest
import torch
from scipy.cluster.hierarchy import DisjointSet
from torch.nn.functional import normalize

from nearfar.data import Images
from nearfar.neighbours.edited_copies import AT_ONCE, _among_likely, _near, find_edited
from nearfar.neighbours.edits import Edit


class Copied:
    """Edits of images of which the copies are known; notes which images were compared."""

    def __init__(self, copied=()):
        self.copied, self.compared = copied, set()

    def __call__(self, pair):
        self.compared |= {*pair[:2]}
        return Edit() if pair[0] in self.copied else None


def among(edits, images, pairs):
    return [pair.first for pair in _among_likely(edits, DisjointSet(range(images)), pairs)]


@pytest.mark.parametrize(("images", "most"), [(8000, 800), (2000, 300)])
def test_they_end_when_a_tenth_of_the_images_was_looked_at_in_vain(images, most, caplog):
    caplog.set_level("INFO", "nearfar")
    edits = Copied()
    assert among(edits, images, [(row, row + 1) for row in range(0, images, 2)]) == []
    parts = -(-most // (2 * AT_ONCE))
    assert f"the {parts * AT_ONCE} likeliest of {images // 2}" in caplog.text
    assert most <= len(edits.compared) < most + 2 * AT_ONCE


def test_they_go_on_while_there_are_copies_and_end_afterwards():
    edits = Copied(range(0, 4000, 600))
    assert among(edits, 8000, [(row, row + 1) for row in range(0, 8000, 2)]) == [*edits.copied]
    assert 4400 <= len(edits.compared) < 4400 + 4 * AT_ONCE


def test_images_that_many_pairs_share_are_looked_at_once(caplog):
    caplog.set_level("INFO", "nearfar")
    edits = Copied()
    assert among(edits, 1000, [(0, row) for row in range(1, 90)]) == []
    assert len(edits.compared) == 90
    assert not caplog.text  # no pair was left out


def test_two_that_are_in_one_group_by_then_are_none():
    edits = Copied(range(4))
    pairs = [(0, 1), (1, 2), (0, 2), (2, 3), (1, 3)]
    assert among(edits, 4, pairs) == [0, 1, 2]


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


@pytest.mark.parametrize("thorough", [False, True])
def test_threads_that_compare_leave_opencv_one_thread_meanwhile(thorough):
    chance, rows, seen = torch.Generator().manual_seed(0), torch.arange(4), []
    pixels = torch.randint(256, (4, 3, 48, 48), dtype=torch.uint8, generator=chance)

    def read(row):
        seen.append(cv2.getNumThreads())
        return pixels[row].numpy()

    before = cv2.getNumThreads()
    cv2.setNumThreads(3)
    try:
        images = Images(pixels, names=list("abcd"))
        vectors = pixels.flatten(1).float()
        assert find_edited(images, vectors, rows, rows, [], read, thorough=thorough) == []
        assert len(seen) >= 4 and {*seen} == {1} and cv2.getNumThreads() == 3
    finally:
        cv2.setNumThreads(before)
