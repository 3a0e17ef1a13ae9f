"""Images that stay on the GPU for a run: the same pixels and the same run as batches that are
sent.
"""

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.data import open_images
from nearfar.training.resident import keep_resident
from tests.standin.test_runs import begin
from tests.steps import same_runs


def with_free_memory(monkeypatch, device, free):
    module = torch.get_device_module(device)
    monkeypatch.setattr(module, "mem_get_info", lambda device=None: (free, 2**40))


@pytest.mark.parametrize("value_range", [None, (0, 4095)], ids=["8 bits", "16 bits"])
def test_images_on_the_device_are_those_of_the_set(value_range, device, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 4096, (50, 12, 12), dtype=np.uint16)
    stored = pixels if value_range else (pixels // 16).astype(np.uint8)
    np.save(tmp_path / "images.npy", stored)
    images = open_images(tmp_path / "images.npy", image_size=12, value_range=value_range)
    resident = keep_resident(images.subset([4, 30, 7, 7, 49]), device)
    taken = resident.take(torch.tensor([3, 0, 4]).to(device))
    assert taken.device.type == device.type
    levels = 4095 if value_range else 1
    of_file = torch.from_numpy(stored[[7, 4, 49]].astype(np.float32)) / levels
    assert taken.dtype == (torch.float32 if value_range else torch.uint8)
    # stored in 65 536 levels
    assert torch.allclose(taken.cpu().squeeze(1).float(), of_file, rtol=0, atol=1 / 65535)


def test_images_stay_where_four_times_their_bytes_are_free(device, images_file, monkeypatch):
    images = open_images(images_file, image_size=8)
    pixels = images.gather(torch.arange(len(images))).nbytes
    with_free_memory(monkeypatch, device, 4 * pixels)
    assert keep_resident(images, device) is not None
    assert keep_resident(images, torch.device("cpu")) is None
    with_free_memory(monkeypatch, device, 4 * pixels - 1)
    assert keep_resident(images, device) is None


def test_images_that_are_decoded_anew_are_sent(device, tmp_path):
    for number in range(3):
        Image.new("L", (8, 8), number).save(tmp_path / f"{number}.png")
    assert keep_resident(open_images(tmp_path, image_size=8, cache=False), device) is None


@pytest.mark.usefixtures("no_pages")
@pytest.mark.slow
def test_a_run_is_the_same_whether_images_stay_or_are_sent(
    device, images_file, tmp_path, monkeypatch
):
    runs = []
    torch.use_deterministic_algorithms(True)
    try:
        for free in (2**30, 0):
            with_free_memory(monkeypatch, device, free)
            runs.append(begin(images_file, tmp_path / str(free), "gpu", epochs=1))
    finally:
        torch.use_deterministic_algorithms(False)
    same_runs(*runs)
