"""Batches: a pure function of seed, epoch and step; shared out over processes; clean ends."""

import threading

import numpy as np
import pytest
import torch

from nearfar.data import Batches, open_images


@pytest.fixture
def images():
    return open_images(np.arange(23, dtype=np.uint8).repeat(16).reshape(23, 4, 4))


def everything(batches, epoch, start=0):
    return [(pixels, index.tolist()) for pixels, index in batches.epoch(epoch, start)]


def threads():
    return [
        thread for thread in threading.enumerate() if thread.name.startswith("ThreadPoolExecutor")
    ]


def test_an_epoch_shows_each_image_once_with_its_index(images):
    batches = Batches(images, 5, seed=1)
    seen = everything(batches, 0)
    assert len(seen) == len(batches) == 4 and [len(index) for _, index in seen] == [5, 5, 5, 5]
    assert len({i for _, index in seen for i in index}) == 20
    for pixels, index in seen:
        assert pixels.dtype == torch.uint8 and tuple(pixels.shape) == (len(index), 1, 4, 4)
        assert pixels[:, 0, 0, 0].tolist() == index


def test_the_order_depends_on_seed_and_epoch_only(images):
    def order(seed, epoch, batch_size=1):
        return [
            i for _, index in everything(Batches(images, batch_size, seed), epoch) for i in index
        ]

    assert order(1, 0) == order(1, 0) == order(1, 0, batch_size=23)
    assert len({tuple(order(seed, epoch)) for seed in range(4) for epoch in range(4)}) == 16


@pytest.mark.parametrize("start", range(5))
def test_starting_later_gives_the_rest(images, start):
    batches = Batches(images, 5, seed=2)
    assert [index for _, index in everything(batches, 3, start)] == [
        i for _, i in everything(batches, 3)
    ][start:]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_processes_share_each_batch(images, world_size):
    whole = everything(Batches(images, 7, seed=4), 1)
    parts = [everything(Batches(images, 7, 4, rank, world_size), 1) for rank in range(world_size)]
    for step, (pixels, index) in enumerate(whole):
        assert [i for part in parts for i in part[step][1]] == index
        assert (torch.cat([part[step][0] for part in parts]) == pixels).all()
        sizes = [len(part[step][1]) for part in parts]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_size": 24}, "got 0, 1, 24 and 23"),
        ({"batch_size": 0}, "got 0, 1, 0 and 23"),
        ({"batch_size": 3, "world_size": 4}, "got 0, 4, 3 and 23"),
        ({"batch_size": 8, "rank": 2, "world_size": 2}, "got 2, 2, 8 and 23"),
    ],
)
def test_impossible_arguments(images, arguments, words):
    with pytest.raises(ValueError, match=words):
        Batches(images, seed=0, **arguments)


def test_leaving_early_leaves_no_thread(images):
    for pixels, _ in Batches(images, 2, seed=0).epoch(0):
        assert len(pixels) == 2
        break
    assert threads() == []
    stream = Batches(images, 2, seed=0).epoch(0)
    next(stream)
    assert len(threads()) == 1
    stream.close()
    assert threads() == []


def test_errors_while_gathering_reach_the_loop(images, monkeypatch):
    real, calls = images.gather, []

    def failing(index):
        calls.append(index)
        if len(calls) == 3:
            raise OSError("the disk is gone")
        return real(index)

    monkeypatch.setattr(images, "gather", failing)
    seen = 0
    with pytest.raises(OSError, match="the disk is gone"):
        for _ in Batches(images, 2, seed=0).epoch(0):
            seen += 1
    assert seen == 2 and threads() == []


@pytest.mark.parametrize("rank, world_size, start", [(0, 1, 0), (1, 2, 2)])
def test_positions_are_those_of_the_batches(images, rank, world_size, start):
    """For images that lie elsewhere: the same steps, and the same work beside them."""
    batches = Batches(images, 8, 3, rank, world_size)
    seen = []
    batches.beside = seen.append
    gathered = [index.tolist() for _, index in batches.epoch(2, start)]
    assert [index.tolist() for index in batches.positions(2, start)] == gathered
    steps = list(range(2 * len(batches) + start, 3 * len(batches)))
    assert seen == steps * 2
