"""A headless Chromium."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.browser import CHROMEDRIVER, CHROMIUM, Browser, opened


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None or CHROMEDRIVER is None:
        pytest.skip("Chromium and chromedriver are not installed")
    with opened(tmp_path_factory.mktemp("profile")) as window:
        yield window
