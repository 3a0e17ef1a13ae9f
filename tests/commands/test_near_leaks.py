"""A test image is a near leak where any other image is at least twice as far as its training image."""

import numpy as np
import pytest
from PIL import Image

import nearfar

NEAREST = 0.002  # distance (1 - cosine) between a test image and its training image
SHARES = (0.2, 0.45, 0.55, 0.7, 0.95)  # of the distance to the next image


def turned(row, axis, distance):
    """Return the unit vector at this distance (1 - cosine) from a row, towards an axis."""
    return (1 - distance) * row + np.sqrt(1 - (1 - distance) ** 2) * axis


@pytest.fixture
def photos(tmp_path):
    """Vectors by name, and images without copies: for each share a training image, a test image
    near it, and a training image that is farther from both by this share; 40 others are far away.
    """
    chance, axes = np.random.default_rng(0), np.eye(64)
    vectors = {}
    for number, share in enumerate(SHARES):
        first, second, third = axes[3 * number : 3 * number + 3]
        vectors[f"train/near-{share}.png"] = first
        vectors[f"test/near-{share}.png"] = turned(first, second, NEAREST)
        vectors[f"train/next-{share}.png"] = turned(first, third, NEAREST / share)
    for number in range(40):
        vectors[f"train/{number:02d}.png"] = axes[15 + number]
    for name in vectors:
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(chance.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    given = tmp_path / "vectors.npz"
    np.savez(given, name=list(vectors), embedding=np.stack(list(vectors.values())))
    return given, tmp_path / "photos"


def test_a_near_leak_is_at_most_half_as_far_as_the_next_image(photos, tmp_path):
    issues = nearfar.check(*photos, out=tmp_path / "page.html")
    leaks = [row for row, problem in enumerate(issues["problem"]) if problem == "near leak"]
    assert {issues["name"][row] for row in leaks} == {
        "test/near-0.2.png",
        "test/near-0.45.png",
    }
    assert "leak" not in issues["problem"]
