"""Every test of this folder runs without a network and with a cache of its own."""

import socket
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path_factory):
    def refuse(*args, **kwargs):
        raise AssertionError("a test tried to reach the network")

    connect = socket.socket.connect

    def local(self, address):  # worker processes talk through local sockets
        return connect(self, address) if self.family == socket.AF_UNIX else refuse()

    monkeypatch.setattr(socket.socket, "connect", local)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def paint():
    """paint(path, number, size=8, mode="RGB") writes a random image seeded by `number` and returns
    its array.
    """

    def write(
        path: Path, number: int, size: int | tuple[int, int] = 8, mode: str = "RGB"
    ) -> np.ndarray:
        width, height = (size, size) if isinstance(size, int) else size
        shape = (height, width, 3) if mode == "RGB" else (height, width)
        pixels = np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels, mode).save(path)
        return pixels

    return write


@pytest.fixture
def peak():
    """peak() is the most bytes that Python and numpy held at a time since the test began."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.fixture
def decodes(monkeypatch):
    """A list that grows by one for every image decoded while building a cache."""
    from nearfar.data import cache

    seen = []
    real = cache.decode

    def counted(data, form):
        seen.append(form.size)
        return real(data, form)

    monkeypatch.setattr(cache, "decode", counted)
    return seen
