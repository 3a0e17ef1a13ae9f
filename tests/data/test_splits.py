"""Images that a source gives to train on: splits by the names of folders, files and rows, and
images of no split.
"""

import logging

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nearfar.data import list_splits, open_images, scan
from nearfar.data.sources.splits import choose_splits, class_folders, folder_splits
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
        f"'{files[1].rpartition('/')[0]}' in '{tmp_path}' is named for a test or "
        f"validation split, and is read"
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


def gray(number):
    """An encoded image of one gray, by which its row is known."""
    return encoded(np.full((8, 8), number, dtype=np.uint8))


WORDS = ["train", "test", "Training", "val", "train", "dev"]
ROWS = {"train": [0, 2, 4], "validation": [3, 5], "test": [1], None: [0, 2, 4]}


def rows_with(words, first=0):
    rows = range(first, first + len(words))
    return {
        "image": [gray(row) for row in rows],
        "split": words,
        "label": [f"class {row % 2}" for row in rows],
    }


def one_file(folder, words):
    pq.write_table(pa.table(rows_with(words)), folder / "all.parquet")
    return folder / "all.parquet"


def two_files(folder, words):
    half = len(words) // 2
    for name, part, first in (("a", words[:half], 0), ("b", words[half:], half)):
        pq.write_table(pa.table(rows_with(part, first)), folder / f"{name}.parquet")
    return folder


def table_of_datasets(folder, words):
    return datasets.Dataset.from_dict(rows_with(words))


def table_of_numbers(folder, words):
    return table_of_datasets(folder, words).class_encode_column("split")


SOURCES = [one_file, two_files, table_of_datasets, table_of_numbers]


@pytest.mark.parametrize("make", SOURCES)
def test_a_column_of_splits_divides_tables_of_encoded_images(make, tmp_path):
    source = make(tmp_path, WORDS)
    assert list_splits(source) == ["train", "validation", "test"]
    for _ in range(2):  # the second time from the cache
        for split, rows in ROWS.items():
            images = open_images(source, split=split, cache_dir=tmp_path / "cache")
            assert values(images) == rows
            assert [images.class_names[label] for label in images.labels] == [
                f"class {row % 2}" for row in rows
            ]
            assert all(name.startswith(f"{split or 'train'}/") for name in images.names)
    assert len(open_images(source, split="all", cache_dir=tmp_path / "cache")) == len(WORDS)
    assert values(open_images(source, split="validation", few=1)) == [3]


@pytest.mark.parametrize("make", SOURCES)
def test_rows_in_no_split_are_counted_and_a_held_out_word_alone_is_said(make, tmp_path, caplog):
    images = open_images(
        make(tmp_path, ["train", "test", "odd", "train", "train", "none"]), cache=False
    )
    assert len(images) == 3 and "2 left out" in images.line
    (tmp_path / "second").mkdir()
    with caplog.at_level("INFO", logger="nearfar"):
        whole = open_images(make(tmp_path / "second", ["a", "test", *make.__name__]), cache=False)
    assert len(whole) == 2 + len(make.__name__) and whole.splits == []
    assert "'test' in" in caplog.text and "is read with the rest" in caplog.text


def test_the_name_of_a_file_comes_before_its_column_of_splits(tmp_path):
    file = one_file(tmp_path, WORDS).rename(tmp_path / "photos-test.parquet")
    assert list_splits(file) == ["test"]
    assert len(open_images(file, cache=False)) == len(WORDS)


def table_of_paths(folder, column, words):
    """A CSV with a space behind each comma, as people write them."""
    lines = [f"path, label, {column}"]
    for row, word in enumerate(words):
        (folder / f"{row}.png").write_bytes(gray(row))
        lines.append(f"{row}.png, class {row % 2}, {word}")
    (folder / "rows.csv").write_text("\n".join(lines))
    return folder / "rows.csv"


def table_of_images(folder, column, words):
    rows = rows_with(words)
    rows[column] = rows.pop("split")
    pq.write_table(pa.table(rows), folder / "rows.parquet")
    return folder / "rows.parquet"


OTHER_COLUMNS = {  # name: words for two rows each of train, validation and test
    "Split": ["train ", "Val", "TEST"],
    "data set": ["train", "valid", "test"],
    "subset": ["training", "dev", "testing"],
    "Usage": ["Training", "PublicVal", "PrivateTest"],
    "partition": ["train_images", "val2017", "test-seen"],
    "is_train": [True, False, False],
    "is_valid": [0, 1, 0],
    "isTest": ["no", "no", "yes"],
}


@pytest.mark.parametrize("make", [table_of_paths, table_of_images])
@pytest.mark.parametrize("column", OTHER_COLUMNS)
def test_splits_stand_in_a_column_of_any_usual_name(column, make, tmp_path, lines):
    words = OTHER_COLUMNS[column]
    source = make(tmp_path, column, [word for word in words for _ in range(2)])
    held_out = {"is_train": ["test"], "isTest": ["test"], "is_valid": ["validation"]}
    rows = {"validation": [2, 3], "test": [4, 5]}
    rows |= {"is_train": {"test": [2, 3, 4, 5]}}.get(column, {})
    for split in held_out.get(column, ["validation", "test"]):
        assert values(open_images(source, split=split, cache_dir=tmp_path / "cache")) == rows[split]
    train = {"is_valid": [0, 1, 4, 5], "isTest": [0, 1, 2, 3]}.get(column, [0, 1])
    images = open_images(source, cache_dir=tmp_path / "cache")
    assert values(images) == train
    assert images.label_names == [f"class {row % 2}" for row in train]
    line = f"'{source}' is divided by its column '{column}'"
    assert (line in lines()) == (column != "Split")


@pytest.mark.parametrize("make", [table_of_paths, table_of_images])
@pytest.mark.parametrize("words", [[0, 1, 2], ["a", "b", "c"], ["train", "hold-out", "later"]])
def test_a_column_of_splits_that_names_none_is_said(words, make, tmp_path, lines):
    source = make(tmp_path, "split", words)
    assert len(open_images(source, cache_dir=tmp_path / "cache")) == len(words)
    [line] = [line for line in lines() if "column 'split'" in line]
    assert "all rows are read" in line and all(str(word) in line for word in words[:2])


@pytest.mark.parametrize(
    "names", [("TrainImages", "TestImages"), ("trainA", "testA"), ("iTrain", "myTest")]
)
def test_words_of_splits_are_seen_in_camel_case(names, tmp_path, paint):
    for number, name in enumerate(names):
        paint(tmp_path / name / f"{number}.png", number)
    assert list_splits(tmp_path) == (["train", "test"] if "Train" not in names[0][1:] else [])


def test_most_folders_beside_those_of_splits_must_be_named_for_one():
    """Of as many, most images; of as many images too, they are no splits: Train has trains."""
    names = ["Train/0.png", "Test/1.png", "Garden/2.png", "Holiday/3.png"]
    assert folder_splits(names, "x") == {"": names}
    more = [*names, "Train/4.png"]
    assert folder_splits(more, "x") == {
        "train": ["Train/0.png", "Train/4.png"],
        "test": ["Test/1.png"],
        "": ["Garden/2.png", "Holiday/3.png"],
    }
    most = [*names, "Val/4.png", "Garden/5.png", "Garden/6.png"]  # three folders of five
    assert list(folder_splits(most, "x")) == ["train", "validation", "test", ""]


def test_classes_are_all_folders_but_that_of_the_split():
    assert class_folders("train/ant/0.png", "train") == ("ant",)
    assert class_folders("ant/train/red/0.png", "train") == ("ant", "red")
    assert class_folders("train/e\u0301/0.png", "") == ("train", "\u00e9")
    assert class_folders("0.png", "") == class_folders("test/0.png", "test") == ()


def test_the_splits_that_are_read():
    names = ["train", "validation", "test", ""]
    assert choose_splits(names, None, "x") == ["train"]
    assert choose_splits(names[1:], None, "x") == names[1:]
    assert choose_splits(names, "all", "x") == names
    assert choose_splits(names, "val", "x") == ["validation"]
    assert choose_splits(["train", "extra"], "extra", "x") == ["extra"]
    for wanted in ("extra", "unlabeled"):
        with pytest.raises(ValueError, match=f"'{wanted}'; it has train, validation, test "):
            choose_splits(names, wanted, "x")
    with pytest.raises(ValueError, match="leave split out"):
        choose_splits([""], "test", "x")
