"""What confirms a copy by its pixels."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_images

from nearfar.data import open_images
from nearfar.neighbours import COPY, altered, components, pixel_difference, small_images


@pytest.fixture(scope="module")
def photographs():
    """Forty crops of two photographs, 192 px."""
    pictures, places = load_sample_images().images, np.random.default_rng(0).integers(0, 230, (40, 2))
    return open_images(np.stack([pictures[i % 2][y : y + 192, x : x + 192] for i, (y, x) in enumerate(places)]))


def test_the_difference_is_none_for_the_same_and_root_two_for_unrelated_images():
    noise = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 255
    assert pixel_difference(noise, noise).tolist() == [0, 0]
    assert pixel_difference(noise[:1], noise[1:]).item() == pytest.approx(2**0.5, rel=0.02)
    assert pixel_difference(noise, noise / 10)[0] > 1  # another contrast is another image


def test_plain_images_are_copies_only_where_they_have_the_same_colour():
    plain = torch.full((1, 3, 16, 16), 200.0)
    assert pixel_difference(plain, plain + 0.3).item() <= COPY < pixel_difference(plain, plain + 2).item()


@pytest.mark.parametrize("grey", [False, True])
def test_altered_images_are_copies_and_other_crops_are_not(photographs, grey):
    pixels = photographs.gather(torch.arange(40))
    pixels = pixels[:, :1] if grey else pixels
    shrunk = [small_images(open_images(one.clone()), torch.arange(40)) for one in (pixels, *altered(pixels))]
    assert not any(torch.equal(pixels, one) for one in altered(pixels))
    for one in shrunk[1:]:
        assert pixel_difference(shrunk[0], one).max() < COPY
    first, second = torch.triu_indices(40, 40, 1)
    assert pixel_difference(shrunk[0][first], shrunk[0][second]).min() > COPY


def test_components_are_named_by_their_smallest_number():
    assert components(7, [(1, 4), (4, 2), (6, 5)]).tolist() == [0, 1, 1, 3, 1, 5, 5]
    assert components(3, []).tolist() == [0, 1, 2]
