"""Tars read in passing: every image once in a pass, exactly again from any step, whatever is
damaged.
"""

import shutil
import tarfile

import huggingface_hub
import numpy as np
import pytest
import torch

from nearfar.data import StreamBatches, difference, open_images, open_stream, streams
from nearfar.data.sources import encoded, tars
from tests.pictures import png, tar

CROPS = [(8, (0.3, 1.0), (0.75, 1.33)), (4, (0.1, 0.3), (1.0, 1.0))]


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """Three tars of 23, 5 and 16 images with texts beside them; pieces of 4 images, and a head of
    6.
    """
    monkeypatch.setattr(streams, "CHUNK", 4)
    monkeypatch.setattr(streams, "HEAD", 6)
    number = 0
    for shard, (count, form) in enumerate(
        [(23, tarfile.PAX_FORMAT), (5, tarfile.GNU_FORMAT), (16, tarfile.USTAR_FORMAT)]
    ):
        members = []
        for _ in range(count):
            # names that need headers of their own
            before = "" if form == tarfile.USTAR_FORMAT else "ü" * 70
            members += [
                (f"{before}{number:03d}.cls", b"3"),
                (f"{before}{number:03d}.png", png(number)),
            ]
            number += 1
        tar(tmp_path / "tars" / f"{shard}.tar", members, form)
    return tmp_path / "tars"


def seen(batches, epoch=0, start=0):
    return [(index.tolist(), views) for views, index in batches.epoch(epoch, start)]


def test_a_stream_has_the_size_and_statistics_of_its_head(shards):
    stream, images = open_stream(shards), open_images(shards)
    assert len(stream) == len(images) == 44 and stream.image_size == 8 and stream.channels == 3
    head = images.subset(range(6))
    assert stream.head.names == head.names and torch.equal(stream.head.pixels, head.pixels)
    values = head.pixels.double() / 255
    assert np.allclose(stream.mean, values.mean((0, 2, 3))) and np.allclose(
        stream.std, values.movedim(1, 0).flatten(1).std(1, unbiased=False)
    )
    rest, held_out = stream.split_holdout(5, seed=0)
    assert len(rest) == 39 and held_out.names == images.names[:5]
    with pytest.raises(ValueError, match="0 to 6 images"):
        stream.split_holdout(7, seed=0)


@pytest.mark.parametrize("workers", [0, 2])
def test_two_processes_see_every_image_of_a_pass_once(shards, workers):
    stream, _ = open_stream(shards).split_holdout(5, seed=0)
    images = open_images(shards)
    options = dict(workers=workers, buffer=8)
    ranks = [StreamBatches(stream, 6, 3, rank, 2, **options) for rank in range(2)]
    orders = []
    for epoch in range(2):
        both = [seen(batches, epoch) for batches in ranks]
        assert [len(batches) for batches in both] == [6, 6] == [len(batches) for batches in ranks]
        numbers = [number for batches in both for index, _ in batches for number in index]
        assert len(set(numbers)) == 36 and set(numbers) <= set(
            range(5, 44)
        )  # 39 but for an incomplete batch
        for index, views in both[0] + both[1]:
            assert len(index) == 3 and torch.equal(views, images.pixels[index])
        orders.append(numbers)
    assert orders[0] != orders[1] and orders[0] != sorted(orders[0])


def test_a_stream_goes_on_from_any_step_as_if_it_had_not_stopped(shards):
    stream = open_stream(shards)
    for workers, starts in ((0, (0, 1, 4, 7)), (2, (3,))):
        options = dict(crops=CROPS, workers=workers, buffer=9)
        whole = seen(StreamBatches(stream, 5, 1, 1, 2, **options), 2)
        for start in starts:
            rest = seen(StreamBatches(stream, 5, 1, 1, 2, **options), 2, start)
            assert [index for index, _ in rest] == [index for index, _ in whole[start:]]
            for (_, views), (_, before) in zip(rest, whole[start:], strict=True):
                assert all(
                    torch.equal(view, expected)
                    for view, expected in zip(views, before, strict=True)
                )
    assert [tuple(view.shape) for view in whole[0][1]] == [(2, 3, 8, 8), (2, 3, 4, 4)]


def test_what_is_damaged_is_listed_and_replaced(shards, tmp_path):
    members = [(f"{i}.png", png(i)) for i in range(12)]
    members[7] = ("7.png", png(7)[:60])
    members[2] = ("2.png", b"broken")
    tar(tmp_path / "one.tar", members)
    content = bytearray((tmp_path / "one.tar").read_bytes())
    with tarfile.open(tmp_path / "one.tar") as file:
        place = file.getmembers()[9].offset
    content[place : place + 512] = b"\xff" * 512
    (tmp_path / "one.tar").write_bytes(content)
    stream = open_stream(tmp_path / "one.tar")
    assert len(stream) == 11 and [name for name, _ in stream.skipped] == ["one.tar", "one/2"]
    assert stream.head.names == [f"one/{i}" for i in (0, 1, 3, 4, 5)]
    rest, held_out = stream.split_holdout(3, seed=0)  # the image that cannot be read goes with them
    assert held_out.names == ["one/0", "one/1", "one/3"] and len(rest) == 7
    wrong = []
    batches = StreamBatches(
        rest, 7, 0, workers=0, failed=lambda name, reason: wrong.append((name, reason))
    )
    [(index, _)] = seen(batches)
    assert (
        sorted(set(index)) == [4, 5, 6, 8, 9, 10] and len(index) == 7
    )  # numbers among those that are there
    assert [name for name, _ in wrong] == ["one/7"] and wrong[0][1]
    assert dict(stream.skipped)["one/2"] == "not an image of a known format"


def test_the_index_is_kept_and_made_again_for_other_tars(shards, monkeypatch):
    monkeypatch.setattr(encoded, "SETTLED", -(10**12))
    looked = []
    real = tars.examples
    monkeypatch.setattr(
        tars, "examples", lambda path, *rest: looked.append(path) or real(path, *rest)
    )
    assert len(open_stream(shards)) == 44
    first = len(looked)
    assert first and len(open_stream(shards)) == 44 and len(looked) == first
    tar(shards / "1.tar", [("a.png", png(99))])
    stream = open_stream(shards)
    assert len(stream) == 40
    tar(shards / "2.tar", [("a.png", png(98))])
    with pytest.raises(ValueError, match=r"2\.tar' has changed"):
        seen(StreamBatches(stream, 8, 0, workers=0))


def test_one_byte_inside_of_a_tar_is_noticed_and_a_copy_is_the_same(tmp_path, monkeypatch):
    tar(tmp_path / "0.tar", [(f"{i}.png", png(i)) for i in range(60)])
    before = open_stream(tmp_path / "0.tar").table
    (tmp_path / "copy").mkdir()
    copy = shutil.copyfile(tmp_path / "0.tar", tmp_path / "copy" / "0.tar")
    content = bytearray(copy.read_bytes())
    assert difference(before, open_stream(copy).table) == ""
    content[len(content) // 2] ^= 1
    copy.write_bytes(content)
    assert difference(before, open_stream(copy).table) == "1 image changed: first 0.tar"
    monkeypatch.setattr(streams, "_READ_WHOLE", 0)
    by_ends = open_stream(copy).table
    assert difference(by_ends, open_stream(tmp_path / "0.tar").table) == ""


def test_tars_on_the_hub_are_read_where_they_are(shards, tmp_path, monkeypatch):
    """With a stand-in for the Hub's file system, which lists and opens files as that does."""

    class Hub:
        def find(self, root, detail):
            assert root == "hf://datasets/owner/set" and detail
            names = ["README.md", *(f"data/train-{path.name}" for path in sorted(shards.iterdir()))]
            return {f"datasets/owner/set/{name}": {"size": 7, "blob_id": name} for name in names}

        def open(self, path, mode):
            assert path.startswith("hf://datasets/owner/set/data/train-") and mode == "rb"
            return open(shards / path.rpartition("train-")[2], mode)

    monkeypatch.setattr(huggingface_hub, "HfFileSystem", Hub)
    stream, local = open_stream("hf:owner/set"), open_stream(shards)
    assert len(stream) == len(local) and stream.split == "train"
    assert stream.table["digest"].to_pylist()[1] == "7 data/train-1.tar"
    for (index, views), (other, others) in zip(
        seen(StreamBatches(stream, 8, 0, workers=0)),
        seen(StreamBatches(local, 8, 0, workers=0)),
        strict=True,
    ):
        assert index == other and torch.equal(views, others)
    monkeypatch.setattr(Hub, "find", lambda *given, **named: {})
    with pytest.raises(ValueError, match="and hf:owner/set is none"):
        open_stream("hf:owner/set")


def test_only_tars_are_streams(tmp_path, paint):
    paint(tmp_path / "folder" / "a.png", 0)
    for source in (tmp_path / "folder", "digits", [tmp_path / "folder"]):
        with pytest.raises(ValueError, match="in WebDataset form"):
            open_stream(source)
    tar(tmp_path / "none.tar", [("a.txt", b"text")])
    with pytest.raises(ValueError, match="holds no images"):
        open_stream(tmp_path / "none.tar")
