"""Subsets and held-out parts."""

import tracemalloc

import numpy as np
import pytest
import torch

from nearfar.data import open_images


@pytest.fixture
def images():
    pixels = np.random.default_rng(0).integers(0, 256, (20, 4, 4, 3), dtype=np.uint8)
    return open_images((pixels, np.arange(20) % 3))


def test_subset_renumbers_and_keeps_the_normalisation(images):
    part = images.subset([7, 2, 11])
    assert (part.pixels == images.pixels[[7, 2, 11]]).all()
    assert part.labels.tolist() == [1, 2, 2] and part.names == ["000007", "000002", "000011"]
    assert (part.mean, part.std) == (images.mean, images.std)
    again = part.subset(np.array([2, -3]))
    assert again.names == ["000011", "000007"] and (again.pixels == images.pixels[[11, 7]]).all()
    assert (again.gather(torch.tensor([1, 1])) == images.pixels[[7, 7]]).all()


def test_consecutive_subsets_are_not_copied(images):
    assert images.subset(range(3, 9)).pixels.data_ptr() == images.pixels[3].data_ptr()
    assert len(images.subset([]).pixels) == 0


def test_split_holdout_divides_and_depends_on_the_seed_only(images):
    rest, held = images.split_holdout(6, seed=3)
    assert (len(rest), len(held)) == (14, 6)
    assert sorted(rest.names + held.names) == images.names and rest.names == sorted(rest.names)
    assert images.split_holdout(6, seed=3)[1].names == held.names
    assert images.split_holdout(6, seed=4)[1].names != held.names
    assert len(images.split_holdout(0, seed=3)[1]) == 0
    with pytest.raises(ValueError, match="split_holdout"):
        images.split_holdout(20, seed=0)


def test_a_batch_of_a_large_array_takes_the_memory_of_a_batch(peak):
    """With channels last too, whose pixels do not lie one after the other once the channels come
    first.
    """
    images = open_images(np.zeros((2000, 16, 16, 3), np.uint8))
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    assert images.gather(torch.tensor([5, 3, 1999])).shape == (3, 3, 16, 16)
    assert peak() - before < 100_000


def test_sizes_before_the_resize_come_from_the_table(tmp_path, paint):
    sizes = [(8, 12), (20, 10), (9, 9)]
    for number, (width, height) in enumerate(sizes):
        paint(tmp_path / f"{number}.png", number, (width, height))
    images = open_images(tmp_path, image_size=8)
    for file in tmp_path.glob("*.png"):
        file.unlink()  # nothing is read of them
    assert images.native_sizes(range(3)).tolist() == [[12, 8], [10, 20], [9, 9]]
    assert images.subset([2, 0]).native_sizes([1]).tolist() == [[12, 8]]
