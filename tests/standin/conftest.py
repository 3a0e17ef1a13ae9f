"""In these tests the stand-in is the GPU that torch finds."""

import pytest

from tests.standin.device import available


@pytest.fixture(autouse=True)
def gpu():
    with available():
        yield
