"""Copies among drawings that differ in nothing but their transparency."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nearfar
from tests.pictures import encoded
from tests.properties.given import FEW, folder_of


@FEW
@given(st.lists(st.integers(0, 3), min_size=2, max_size=6), st.sampled_from(["RGBA", "LA"]))
def test_white_drawings_on_transparent_ground_are_copies_where_they_are_the_same(numbers, mode):
    files = {}
    for n, number in enumerate(numbers):
        alpha = np.random.default_rng(number).integers(0, 2, (16, 16), dtype=np.uint8) * 255
        white = [np.full_like(alpha, 255)] * (len(mode) - 1)
        files[f"{n}.png"] = encoded(np.stack([*white, alpha], -1), compress_level=n)
    with folder_of(files) as folder, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # where pages are written
        copies = nearfar.duplicates(folder)
        groups = defaultdict(set)
        for group, kind, name in zip(copies["group"], copies["kind"], copies["name"], strict=True):
            if kind in ("first", "same file", "same pixels"):
                groups[group].add(numbers[int(name.removesuffix(".png"))])
    several = {number for number in numbers if numbers.count(number) > 1}
    assert sorted(groups.values(), key=min) == [{number} for number in sorted(several)]
