"""Which images a source gives to train on: splits by the names of folders, files and rows, and what is in none."""

import logging

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nearfar.data import list_splits, open_images, scan
from tests.pictures import encoded, tar


def shard(path, number):
    """A tar or Parquet file with one image whose pixels are all `number`."""
    content = encoded(np.full((8, 8, 3), number, dtype=np.uint8))
    if path.suffix == ".tar":
        tar(path, [("a.png", content)])
    else:
        pq.write_table(pa.table({"image": [{"bytes": content, "path": None}]}), path)


def values(images):
    """The first value of each image."""
    return images.pixels[:, 0, 0, 0].tolist()


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="nearfar")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("ending", [".tar", ".parquet"])
@pytest.mark.parametrize(
    ("train", "test", "split"),
    [
        ("imagenet1k-train-0000", "imagenet1k-validation-00", "validation"),
        ("cats_train", "cats_test", "test"),
        ("photos.Train.00001-of-00002", "photos.VAL.00001-of-00002", "validation"),
        ("train2017", "val2017", "validation"),
        ("test-bench-train-0", "test-bench-test-0", "test"),  # the last word that is one
    ],
)
def test_split_words_count_anywhere_in_the_name_of_a_shard(
    tmp_path, train, test, split, ending, lines
):
    shard(tmp_path / (train + ending), 10)
    shard(tmp_path / (test + ending), 20)
    assert list_splits(tmp_path) == ["train", split]
    assert values(open_images(tmp_path)) == [10] and values(open_images(tmp_path, split=split)) == [
        20
    ]
    assert lines() == [
        f"'{tmp_path}' is divided into train, {split}: train is read where no split is asked for"
    ]


@pytest.mark.parametrize("stray", ["preview.png", "extra/cat/0.png", "extra/0.png"])
def test_a_stray_image_is_listed_and_left_out(tmp_path, paint, stray):
    for number, name in enumerate(["train/ant/0.png", "train/cat/1.png", "test/cat/2.png", stray]):
        paint(tmp_path / name, number)
    images = open_images(tmp_path)
    assert images.names == ["train/ant/0.png", "train/cat/1.png"] and images.labels.tolist() == [
        0,
        1,
    ]
    assert images.skipped == [(stray, "in none of the splits train, test")]
    assert scan(tmp_path)["name"].to_pylist() == images.names
    assert open_images(tmp_path, split="test").names == ["test/cat/2.png"]


@pytest.mark.parametrize(
    "files", [["images/0.png", "test/1.png"], ["images/a/0.png", "images/val/1.png"]]
)
def test_test_images_are_read_with_the_rest_only_with_a_word(tmp_path, paint, files, lines):
    for number, name in enumerate(files):
        paint(tmp_path / name, number)
    assert len(open_images(tmp_path)) == 2
    [line] = lines()
    assert line.startswith(
        f"'{files[1].rpartition('/')[0]}' in '{tmp_path}' is named for a test or validation split, and is read"
    )


def test_splits_below_class_folders(tmp_path, paint):
    for number, name in enumerate(
        ["cup/train/0.png", "cup/test/1.png", "pot/train/2.png", "pot/test/3.png"]
    ):
        paint(tmp_path / name, number)
    images = open_images(tmp_path)
    assert list_splits(tmp_path) == ["train", "test"] and images.names == [
        "cup/train/0.png",
        "pot/train/2.png",
    ]
    assert images.labels.tolist() == [0, 1] and images.class_names == ["cup", "pot"]
    assert open_images(tmp_path, split="test").labels.tolist() == [0, 1]


def test_rows_of_a_table_in_no_split_are_listed_and_left_out(tmp_path, paint, lines):
    for number in range(4):
        paint(tmp_path / f"{number}.png", number)
    table = tmp_path / "photos.csv"
    table.write_text("path,split\n0.png,train\n1.png,test\n2.png,\n3.png,train\n")
    images = open_images(table)
    assert images.names == ["train/0.png", "train/3.png"]
    assert images.skipped == [("2.png", "in none of the splits train, test")]
    table.write_text("path,split\n0.png,first\n1.png,test\n")
    assert len(open_images(table)) == 2
    assert lines()[1:] == [
        f"'test' in '{table}' is named for a test or validation split, and is read with the rest: "
        "to leave it out, name the folders or files to read"
    ]
