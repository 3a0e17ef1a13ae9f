"""Memory of decoding: shared by all threads, and little for each pixel."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearfar.data import open_images, resources
from nearfar.data.resources import SharedMemory, own_memory, peak_memory
from nearfar.data.value_range import LARGEST


def test_threads_share_and_more_than_all_is_lent_to_one_alone():
    memory, together, most, lock = SharedMemory(100), [], [], threading.Lock()

    def work(wanted):
        with memory.lent(wanted):
            with lock:
                together.append(wanted)
                most.append(list(together))
            threading.Event().wait(0.002)
            with lock:
                together.remove(wanted)

    threads = [
        threading.Thread(target=work, args=(wanted,))
        for wanted in [40, 50, 10, 70, 500, 30, 1000] * 3
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.free == 100 and len(most) == 21
    assert all(sum(at_once) <= 100 or len(at_once) == 1 for at_once in most)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_all_of_it():
    memory = SharedMemory(100)
    with memory.lent(100):
        child = os.fork()
        if child == 0:
            os._exit(0 if memory.free == 100 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_all_decoding_asks_for_memory(tmp_path, monkeypatch):
    for i in range(6):
        Image.fromarray(np.full((50, 40 + i), i, np.uint16)).save(tmp_path / f"{i}.png")
    requests, real = [], resources._MEMORY.lent
    monkeypatch.setattr(
        resources._MEMORY, "lent", lambda wanted: requests.append(wanted) or real(wanted)
    )
    open_images(tmp_path, workers=1)
    assert requests[-6:] == [16 * 50 * (40 + i) for i in range(6)]


@pytest.mark.parametrize("size", [0, -1, LARGEST + 1, 10**21])
def test_impossible_sizes(tmp_path, paint, size):
    paint(tmp_path / "a.png", 0)
    for ask in (
        lambda: open_images(tmp_path, image_size=size),
        lambda: open_images(tmp_path, few=1, image_size=size),
    ):
        with pytest.raises(ValueError, match=rf"`image_size` must be .*{LARGEST}"):
            ask()


def test_the_peak_of_memory_rises_with_what_is_filled():
    before = peak_memory()
    filled = np.ones(int(1e6 * (before + 100)), np.uint8)  # MB
    assert peak_memory() > before + 50 and filled[-1] == 1


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="of Linux")
def test_files_that_are_mapped_are_not_memory_of_a_process_for_itself(tmp_path):
    (tmp_path / "file").write_bytes(bytes(200_000_000))
    before = own_memory()
    mapped = np.memmap(tmp_path / "file", np.uint8, "r")
    assert mapped.max() == 0  # each page is read
    assert abs(own_memory() - before) < 20
    filled = np.ones(200_000_000, np.uint8)
    assert 180 < own_memory() - before < 220 and filled[-1] == 1
