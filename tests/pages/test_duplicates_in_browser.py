"""The slider of the page of duplicates, what it keeps, and pictures of differences, in a
browser.
"""

import os
import shutil

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

import nearfar
from nearfar.embeddings import Opening, resolve
from nearfar.neighbours.duplicates import find_links
from nearfar.neighbours.groups import group_links
from nearfar.neighbours.links import NEAR_DUPLICATE
from tests.pages.conftest import browser  # noqa: F401

pytestmark = pytest.mark.usefixtures("known_speed")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on random images, the last ten of which are copies of the first with more and more
    noise.
    """
    chance = np.random.default_rng(0)
    images = np.kron(
        chance.integers(0, 256, (50, 4, 4), dtype=np.uint8), np.ones((1, 4, 4), dtype=np.uint8)
    )
    noise = chance.normal(0, 1, (10, 16, 16)) * np.arange(10)[:, None, None]
    images[40:] = (images[:10] + noise).clip(0, 255)
    np.save(folder := tmp_path_factory.mktemp("data") / "images.npy", images)
    options = dict(
        epochs=1,
        batch_size=16,
        held_out=8,
        encoder="small",
        method="simclr",
    )
    return nearfar.pretrain(folder, out=tmp_path_factory.mktemp("runs") / "run", **options)


def test_the_slider_makes_the_groups_that_the_command_makes(run, browser, tmp_path):  # noqa: F811
    known = resolve(run).open(Opening())
    farthest = max(link.distance for link in find_links(known.images, known.features, 2.0))
    usual = 0.5 * farthest * (1 + 1e-6)  # so that rounding does not leave the last link out
    run.duplicates(distance=usual, out=tmp_path / "page.html")
    links = find_links(known.images, known.features, 2 * usual)
    likenesses = [link.distance for link in links if link.kind == NEAR_DUPLICATE]
    browser.console()
    browser.visit(tmp_path / "page.html")
    count = (
        "[...document.querySelectorAll('#%s section')].map((one) => "
        "one.querySelectorAll('li').length)"
    )
    for place in sorted({0, 1, 5, len(likenesses) // 2, len(likenesses)}):
        browser.run(f"(slider.value = {place}, slider.dispatchEvent(new Event('input')), 0)")
        at = 0 if place == 0 else likenesses[place - 1]
        at = usual if place == sum(far <= usual for far in likenesses) else at
        copies, near_duplicates = group_links(links, len(known.images), at)
        assert sorted(browser.run(count % "copies")) == sorted(map(len, copies))
        expected = sorted(
            len({min(next((c for c in copies if row in c), [row])) for row in group})
            for group in near_duplicates
        )
        assert sorted(browser.run(count % "near-duplicates")) == sorted(
            min(size, 24) for size in expected
        )
        assert f"--distance {'' if at else '0'}" in browser.run(
            "document.getElementById('command').textContent"
        )
    assert browser.console() == []


ODD = os.fsdecode(b"000 '\xff%41\n.png")  # which is no text in UTF-8
ENTER = "\ue007"
COUNT = (
    "[...document.querySelectorAll('#copies section')].map((one) => "
    "one.querySelectorAll('li').length)"
)
STATE = (
    "[...document.querySelectorAll('#copies button')].map((one) => [one.ariaLabel, "
    "one.ariaPressed])"
)


@pytest.fixture
def copies(tmp_path):
    """A photograph, two files with its bytes, a JPEG of it and its other orientations; one more
    with a white patch.
    """
    folder, photographs = tmp_path / "images", load_sample_images().images
    folder.mkdir()
    for number in range(12):
        pixels = photographs[number % 2][200 + 10 * number :][:96, 200 + 20 * number :][:, :96]
        Image.fromarray(pixels).save(folder / f"{number:03}.png")
    own = Image.open(folder / "000.png")
    own.save(folder / "000.png", compress_level=0)  # the largest file, and therefore the first
    shutil.copy(folder / "000.png", folder / "000 again.png")
    shutil.copy(folder / "000.png", folder / ODD)
    own.save(folder / "000.jpg", quality=80)
    for turn in Image.Transpose:
        own.transpose(turn).save(folder / f"turn {turn:d}.png")
    patched = Image.open(folder / "001.png")
    patched.paste((255, 255, 255), (0, 48, 24, 96))  # at the left, below the middle
    patched.save(folder / "001 patched.png")
    return folder


def test_click_and_keys_choose_what_is_kept_and_the_list_follows(copies, browser, tmp_path):  # noqa: F811
    duplicates = nearfar.duplicates(copies, orientations=True, out=tmp_path / "page.html")
    kinds = dict(zip(map(os.path.basename, duplicates["path"]), duplicates["kind"], strict=True))
    assert sum(kind in ("turned", "mirrored") for kind in kinds.values()) == 7
    browser.console()
    browser.visit(tmp_path / "page.html")
    assert browser.run(COUNT) == [11]
    first, again, odd = "000.png", "000 again.png", "000 '\\xff%41\\n.png"
    state = {
        f"Keep {first}": "true",
        f"Keep {again}": "false",
        f"Keep {odd}": "false",
        "Keep 000.jpg": "true",
    }
    assert dict(browser.run(STATE)) == state  # none of the turned and mirrored ones
    saved = """(() => { window.saved = null; HTMLAnchorElement.prototype.click = () => {};
        const keep = (blob) => blob.arrayBuffer().then((b) => { window.saved = [...new Uint8Array(b)]; });
        URL.createObjectURL = (blob) => { keep(blob); return "#"; };
        document.getElementById("save").click(); })()"""

    def listed():
        browser.run(saved)
        browser.wait("window.saved")
        return sorted(bytes(browser.run("saved")).split(b"\0")[:-1])

    assert listed() == sorted((tmp_path / "page.list").read_bytes().split(b"\0")[:-1])
    assert listed() == [os.fsencode(copies / name) for name in (ODD, again)]
    press = (
        "[...document.querySelectorAll('#copies button')].find((one) => one.ariaLabel "
        "=== `Keep ${arguments[0]}`)"
    )
    for name in (again, "000.jpg", first):
        browser.run(f"{press}.focus()", name)
        browser.press(ENTER)
    assert listed() == [os.fsencode(copies / name) for name in (ODD, "000.jpg", first)]
    browser.run(f"{press}.click()", again)  # the last that shows it upright
    assert "always kept" in browser.run("document.getElementById('live').textContent")
    assert listed() == [os.fsencode(copies / name) for name in (ODD, "000.jpg", first)]
    assert "xargs -0 rm -- < to-remove.list" in browser.run(
        "document.getElementById('removing').textContent"
    )
    for width in (1400, 400):
        browser.call("window/rect", width=width, height=900)
        assert browser.run(
            "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        )
    assert browser.console() == []


def test_the_picture_of_a_difference_shows_where_it_is(copies, browser, tmp_path):  # noqa: F811
    options = dict(orientations=True, distance=2)
    nearfar.duplicates(copies, out=tmp_path / "page.html", **options)
    browser.visit(tmp_path / "page.html")
    browser.run("document.querySelectorAll('img').forEach((one) => { one.loading = 'eager'; })")
    browser.wait("[...document.querySelectorAll('canvas')].every((one) => one.width > 1)")
    strength = """[...document.querySelectorAll('#%s canvas')].map((one) => [one.ariaLabel,
        ...[[0, 48], [48, 48], [0, 0], [48, 0]].map(([x, y]) => {
        const d = one.getContext('2d').getImageData(x, y, 24, 48).data;
        return d.reduce((sum, v, i) => sum + (i %% 4 < 3 ? v : 0), 0) / (d.length * 3 / 4); })])"""
    same = browser.run(strength % "copies")
    assert (
        len(same) == 10 and max(max(row[1:]) for row in same) < 25
    )  # of 255: noise of JPEG, four times as strong
    [row] = [row for row in browser.run(strength % "near-duplicates") if "001" in row[0]]
    assert row[1] > 150 and max(row[2:]) < 25
    assert browser.console() == []
