"""The page of `check` in a browser, on vectors with labels that are long, few and many."""

import numpy as np
import pytest

import nearfar
from tests.pages.conftest import browser  # noqa: F401


def planted(classes):
    """Twelve rows of each class, the label of one of which is that of the next class."""
    chance, of = np.random.default_rng(0), np.repeat(np.arange(classes), 12)
    rows = np.eye(classes, max(classes, 16))[of] + chance.normal(
        0, 0.05, (len(of), max(classes, 16))
    )
    words = np.array(
        [
            f"a rather long label of many words {number} <and_no_space_at_its_end_{number}>"
            for number in range(classes)
        ]
    )
    of[5] = (of[5] + 1) % classes
    return rows.astype(np.float32), words[of]


@pytest.mark.parametrize("classes", [0, 1, 2, 300])
@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.slow
def test_the_page_fits_the_window_and_has_every_class(classes, width, browser, tmp_path):  # noqa: F811
    rows, labels = planted(max(classes, 1))
    issues = nearfar.check((rows, labels) if classes else rows, out=tmp_path / "page.html")
    browser.call("window/rect", width=width, height=900)
    browser.console()
    browser.visit(tmp_path / "page.html")
    assert browser.console() == []
    root = "document.documentElement"
    assert browser.run(f"{root}.scrollWidth <= {root}.clientWidth")
    count = browser.run("document.querySelectorAll('.classes tbody tr').length")
    assert count == (len(issues.classes["label"]) if classes else 0)
    assert browser.run("document.querySelector('details')?.open ?? null") == {
        0: None,
        300: False,
    }.get(classes, True)
    captions = browser.run(
        "[...document.querySelectorAll('figcaption')].map((one) => one.textContent)"
    )
    assert len(captions) == issues["name"].count("000005") == (classes > 1)
    assert all("<and_no_space_at_its_end_1>" in caption for caption in captions)
