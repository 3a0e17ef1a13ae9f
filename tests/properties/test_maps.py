"""Places on a map: each image has that of its own content, whatever was at its name before."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nearfar
from tests.properties.given import FEW, numbered_png

COUNT = 12


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    """A run on a folder of images, with its map, and the place of each image."""
    home = tmp_path_factory.mktemp("mapped")
    (home / "photos").mkdir()
    for n in range(COUNT):
        (home / "photos" / f"{n:02d}.png").write_bytes(numbered_png(n, 16))
    run = nearfar.pretrain(
        home / "photos",
        out=home / "run",
        epochs=1,
        batch_size=4,
        held_out=0,
        encoder="tiny",
        precision="32-true",
    )
    nearfar.map(run, epochs=2)
    return run, home / "photos", places_of(run)


def places_of(run):
    """The place of each image on the map of a run, in the order of their names."""
    out = run.path / "places.parquet"
    nearfar.embed(run, out=out, map=True)
    rows = pq.read_table(out, columns=["name", "x", "y"]).to_pydict()
    out.unlink()
    assert rows["name"] == [f"{n:02d}.png" for n in range(COUNT)]
    return np.stack([rows["x"], rows["y"]], 1)


@FEW
@given(numbers=st.lists(st.integers(0, COUNT + 3), min_size=COUNT, max_size=COUNT))
def test_an_image_that_was_replaced_has_the_place_of_what_it_is_now(numbers, mapped):
    """The first of equal images has the place that its content had, and all others one place."""
    run, photos, places = mapped
    try:
        for n, number in enumerate(numbers):
            (photos / f"{n:02d}.png").write_bytes(numbered_png(number, 16))
        now = places_of(run)
    finally:
        for n in range(COUNT):
            (photos / f"{n:02d}.png").write_bytes(numbered_png(n, 16))
    for number in set(numbers):
        at = [n for n, other in enumerate(numbers) if other == number]
        known = number < COUNT
        if known:
            assert np.array_equal(now[at[0]], places[number])
        others = now[at[known:]]
        if len(others):
            np.testing.assert_allclose(others, others[:1].repeat(len(others), 0), rtol=1e-3)
            assert not (others == places[at[known:]]).all(1).any()
