"""The slider of the page of duplicates, in a browser."""

import numpy as np
import pytest
from rich.console import Console

import nearfar
from nearfar.neighbours.duplicates import ALIKE, find_links, groups_at
from nearfar.run_features import open_featured
from tests.pages.conftest import browser  # noqa: F401


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on random images, the last ten of which are copies of the first with more and more noise."""
    chance = np.random.default_rng(0)
    images = np.kron(chance.integers(0, 256, (50, 4, 4), dtype=np.uint8), np.ones((1, 4, 4), dtype=np.uint8))
    noise = chance.normal(0, 1, (10, 16, 16)) * np.arange(10)[:, None, None]
    images[40:] = (images[:10] + noise).clip(0, 255)
    np.save(folder := tmp_path_factory.mktemp("data") / "images.npy", images)
    options = dict(epochs=1, batch_size=16, held_out=8, encoder="small", method="simclr", console=Console(quiet=True))
    return nearfar.pretrain(folder, out=tmp_path_factory.mktemp("runs") / "run", **options)


def test_the_slider_makes_the_groups_that_the_command_makes(run, browser, tmp_path, quiet):  # noqa: F811
    known = open_featured(run, None, None, None, quiet)
    usual = 0.5 * max(link.distance for link in find_links(known.images, known.features, 2.0))
    run.duplicates(distance=usual, out=tmp_path / "page.html", console=quiet)
    links = find_links(known.images, known.features, 2 * usual)
    likenesses = [link.distance for link in links if link.kind == ALIKE]
    browser.console()
    browser.visit(tmp_path / "page.html")
    count = "[...document.querySelectorAll('#%s section')].map((one) => one.querySelectorAll('li').length)"
    for place in sorted({0, 1, 5, len(likenesses) // 2, len(likenesses)}):
        browser.run(f"(slider.value = {place}, slider.dispatchEvent(new Event('input')), 0)")
        at = 0 if place == 0 else likenesses[place - 1]
        at = usual if place == sum(far <= usual for far in likenesses) else at
        copies, alike = groups_at(links, len(known.images), at)
        assert sorted(browser.run(count % "copies")) == sorted(map(len, copies))
        expected = sorted(len({min(next((c for c in copies if row in c), [row])) for row in group}) for group in alike)
        assert sorted(browser.run(count % "alike")) == sorted(min(size, 24) for size in expected)
        assert f"--distance {'' if at else '0'}" in browser.run("document.getElementById('command').textContent")
    assert browser.console() == []
