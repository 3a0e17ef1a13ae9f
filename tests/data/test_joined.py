"""Several sources as one: pixels, names, labels, statistics, and a cache for each."""

import numpy as np
import pytest
import torch

from nearfar.data import Batches, difference, list_splits, open_images, scan


def held(images, rows):
    return images.gather(torch.tensor(rows))


@pytest.fixture
def places(tmp_path, paint):
    """The folders a (five images in two classes) and b (three, in two), and a table c.csv with two
    more.
    """
    for i in range(5):
        paint(tmp_path / "a" / ("cat" if i % 2 else "dog") / f"{i}.png", i)
    for i in range(3):
        paint(tmp_path / "b" / ("ant" if i % 2 else "cat") / f"{i}.png", 10 + i)
    for i in range(2):
        paint(tmp_path / "loose" / f"{i}.png", 20 + i)
    (tmp_path / "c.csv").write_text("path,label,site\nloose/0.png,dog,3\nloose/1.png,,4\n")
    return [str(tmp_path / "a"), tmp_path / "b", tmp_path / "c.csv"]


def test_labels_are_there_only_where_all_sources_have_some(places, tmp_path, paint):
    paint(tmp_path / "plain" / "x.png", 30)
    assert open_images([places[0], tmp_path / "plain"]).labels is None
    rng = np.random.default_rng(0)
    for name in ("m", "n"):
        np.savez(
            tmp_path / f"{name}.npz",
            images=rng.integers(0, 256, (3, 8, 8, 3), dtype=np.uint8),
            labels=[4, 2, 4],
        )
    numbers = open_images([tmp_path / "m.npz", tmp_path / "n.npz"])
    assert numbers.labels.tolist() == [4, 2, 4] * 2 and numbers.class_names is None
    assert (
        open_images([places[0], tmp_path / "m.npz"]).labels is None
    )  # names and numbers do not go together


def test_names_that_would_clash_have_the_end_of_their_sources_path(tmp_path, paint):
    for place in ("one/x", "two/x", "one/y"):
        paint(tmp_path / place / "0.png", 0)
        (tmp_path / place / "broken.png").write_text("no picture")
    images = open_images([tmp_path / "one/x", tmp_path / "two/x", tmp_path / "one/y"])
    assert images.names == ["one/x/0.png", "two/x/0.png", "one/y/0.png"]
    assert [name for name, _ in images.skipped] == [
        "one/x/broken.png",
        "two/x/broken.png",
        "one/y/broken.png",
    ]
    with pytest.raises(ValueError, match="given twice"):
        open_images([tmp_path / "one/x", tmp_path / "one/../one/x"])


def test_size_and_channels_suit_all(tmp_path, paint):
    for i in range(3):
        paint(tmp_path / "grey" / f"{i}.png", i, mode="L")
        paint(tmp_path / "colour" / f"c{i}.png", i)
        paint(tmp_path / "wide" / f"w{i}.png", i, size=12)
    both = open_images([tmp_path / "grey", tmp_path / "colour"])
    assert (both.image_size, both.channels) == (8, 3)
    assert torch.equal(both.pixels[:3], open_images(tmp_path / "grey", channels=3).pixels)
    assert open_images(
        [tmp_path / "grey", tmp_path / "wide"], channels=1, image_size=10
    ).pixels.shape == (6, 1, 10, 10)
    assert (
        open_images([tmp_path / "colour", tmp_path / "wide"]).image_size == 224
    )  # as for sizes in one folder
    assert open_images([tmp_path / "grey", "digits"]).channels == 1
    np.save(tmp_path / "five.npy", np.zeros((2, 8, 8, 5), dtype=np.uint8))
    with pytest.raises(ValueError, match=r"'colour' has 3 .*'five\.npy' has 5"):
        open_images([tmp_path / "colour", tmp_path / "five.npy"])


def test_splits_that_all_sources_have(tmp_path, paint):
    for i, name in enumerate(
        ["a/train/0.png", "a/test/1.png", "b/train/2.png", "b/test/3.png", "plain/4.png"]
    ):
        paint(tmp_path / name, i)
    both = [tmp_path / "a", tmp_path / "b"]
    assert list_splits(both) == ["train", "test"] and list_splits([*both, tmp_path / "plain"]) == []
    images = open_images(both)
    assert images.names == ["train/0.png", "train/2.png"] and images.split == "train"
    assert open_images(both, split="test").names == ["test/1.png", "test/3.png"]
    assert open_images([*both, tmp_path / "plain"]).names == ["train/0.png", "train/2.png", "4.png"]
    with pytest.raises(ValueError, match="no split 'test'"):
        open_images([*both, tmp_path / "plain"], split="test")


def test_a_label_column_is_that_of_the_sources_that_have_columns(places, tmp_path):
    images = open_images(places, label_column="site")
    assert images.labels is None  # names of folders, and numbers
    with pytest.raises(ValueError, match=r"a \+ b has columns.* 'site'"):
        open_images(places[:2], label_column="site")


def test_batches_of_stored_pixels_and_of_crops_from_the_files(places):
    images, unstored = open_images(places), open_images(places, cache=False)
    pixels, index = next(Batches(images, 10, 0).epoch(0))
    assert torch.equal(pixels, images.pixels[index]) and not unstored.stored
    assert torch.equal(held(unstored, [9, 1, 5]), images.pixels[[9, 1, 5]])
    crops = [(8, (1.0, 1.0), (1.0, 1.0))]
    [(views, index)] = list(Batches(unstored, 10, 0, crops=crops, workers=0).epoch(0))
    assert torch.equal(views[0], images.pixels[index])


def test_a_change_is_told_with_its_source(places, paint):
    before = scan(places)
    assert difference(before, scan(places)) == difference(before, open_images(places).table) == ""
    assert difference(before, scan(places[:2])).startswith("2 images removed: first ")
    paint(places[1] / "cat" / "9.png", 40)
    assert difference(before, scan(places)) == "1 image added: first b/cat/9.png"
