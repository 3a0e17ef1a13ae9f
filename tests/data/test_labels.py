"""One rule for labels in every source: however they are stored, the classes are the same."""

import io
from decimal import Decimal

import datasets
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from nearfar.data import open_images
from nearfar.data.sources.rows import ParquetFiles

NONE = None


def png(number):
    file = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def as_parquet(folder, column):
    pq.write_table(
        pa.table({"image": [png(n) for n in range(len(column))], "label": column}),
        folder / "x.parquet",
    )
    return open_images(folder / "x.parquet")


def classes_of(images):
    """The class of each image as a text, "" for a missing label."""
    if images.labels is None:
        return None
    names = images.class_names
    return [
        "" if label < 0 else str(label) if names is None else names[label]
        for label in images.labels
    ]


STORED = {
    "truth values": ([True, False, True, None], ["True", "False", "True", ""]),
    "floats with gaps": ([1.0, 2.0, None, float("nan")], ["1", "2", "", ""]),
    "texts": (["cat", "dog", "", "cat"], ["cat", "dog", "", "cat"]),
    "a dictionary": (
        pa.array(["cat", "dog", None, "cat"]).dictionary_encode(),
        ["cat", "dog", "", "cat"],
    ),
    "digits in texts": (["3", "10", "3", "2"], ["3", "10", "3", "2"]),
    "digits with zeros in front": (["001", "1", "001", "2"], ["001", "1", "001", "2"]),
    "lists of one": ([[3], [2], [3], None], ["3", "2", "3", ""]),
    "one-hot rows": ([[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]], ["2", "0", "1", "2"]),
    "one-hot floats": ([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0], None], ["1", "0", "0", ""]),
    "-1 and 1": ([-1, 1, -1, 1], ["-1", "1", "-1", "1"]),
    "-1 and 1 as floats": ([-1.0, 1.0, None, 1.0], ["-1", "1", "", "1"]),
    "negative ratings": ([-2, -1, 0, 1], ["-2", "-1", "0", "1"]),
    "-1 for missing": ([-1, 0, 2, 1], ["", "0", "2", "1"]),
}


@pytest.mark.parametrize("kind", STORED)
def test_labels_in_parquet_however_they_are_stored(kind, tmp_path):
    column, expected = STORED[kind]
    assert classes_of(as_parquet(tmp_path, column)) == expected


@pytest.mark.parametrize("kind", [name for name in STORED if name != "a dictionary"])
@pytest.mark.parametrize("as_object", ["list", "Dataset"])
def test_labels_of_items_however_they_are_stored(kind, as_object):
    column, expected = STORED[kind]
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), np.uint8)
    items = list(zip(pixels, column, strict=True))
    if as_object == "Dataset":

        class Items(torch.utils.data.Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, number):
                return items[number]

        items_given = Items()
    assert classes_of(open_images(items if as_object == "list" else items_given)) == expected


@pytest.mark.parametrize("wrap", [np.array, torch.tensor, lambda x: np.array([x]), lambda x: [x]])
def test_numbers_in_arrays_and_tensors(wrap):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8), np.uint8)
    items = [(image, wrap(label)) for image, label in zip(pixels, [3, 0, 3], strict=True)]
    assert open_images(items).labels.tolist() == [3, 0, 3]


@pytest.mark.parametrize("kind", [name for name in STORED if name != "a dictionary"])
def test_labels_beside_an_array(kind):
    column, expected = STORED[kind]
    pixels = np.zeros((4, 8, 8), np.uint8)
    assert classes_of(open_images((pixels, column))) == expected


def test_labels_in_a_table_of_paths_are_those_of_parquet(tmp_path, paint):
    for n in range(4):
        paint(tmp_path / f"{n}.png", n)
    for kind, written in {
        "truth values": ["True", "False", "True", ""],
        "floats with gaps": ["1.0", "2.0", "", "nan"],
        "texts": ["cat", "dog", "", "cat"],
        "digits with zeros in front": ["001", "1", "001", "2"],
        "-1 and 1": ["-1", "+1", "-1", "1"],
        "-1 for missing": ["-1", "0", "2", "1"],
    }.items():
        rows = "".join(f"{n}.png,{label}\n" for n, label in enumerate(written))
        (tmp_path / "t.csv").write_text("Path,Label\n" + rows)
        assert classes_of(open_images(tmp_path / "t.csv")) == STORED[kind][1], kind
    pandas.DataFrame(
        {"file": [f"{n}.png" for n in range(4)], "target": pandas.Categorical(list("abab"))}
    ).to_parquet(tmp_path / "t.parquet")
    assert classes_of(open_images(tmp_path / "t.parquet")) == list("abab")


@pytest.mark.parametrize(
    "column", [[0.25, 0.5, 1.5, 2.0], [[0, 1], [1, 2, 3], [0, 0], [5]], [[4.5, 1, 2, 3]] * 4]
)
def test_measurements_and_boxes_are_no_labels_and_a_line_says_so(column, tmp_path, caplog):
    with caplog.at_level("INFO", "nearfar"):
        assert as_parquet(tmp_path, column).labels is None
    assert "are used: labels must be " in caplog.text
    items = [(np.zeros((8, 8), np.uint8) + n, np.array(value)) for n, value in enumerate(column)]
    assert open_images(items).labels is None
    with pytest.raises(ValueError, match="labels must be"):
        open_images(tmp_path / "x.parquet", label_column="label")


def digits(numbers, names):
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=names)}
    )
    cells = [{"bytes": png(n), "path": None} for n in range(len(numbers))]
    return datasets.Dataset.from_dict({"image": cells, "label": numbers}, features)


def test_class_lists_that_differ_between_splits_and_shards_are_joined(tmp_path):
    train, test = digits([0, 1, 2], ["ant", "bee", "cat"]), digits([0, 1, -1], ["cat", "eel"])
    both = datasets.DatasetDict({"train": train, "test": test})
    names = ["ant", "bee", "cat", "eel"]
    for source in (both, tmp_path):
        assert classes_of(open_images(source, split="train")) == ["ant", "bee", "cat"]
        read = open_images(source, split="test")
        assert read.labels.tolist() == [2, 3, -1] and read.class_names == names
        train.to_parquet(tmp_path / "train-0.parquet")
        test.to_parquet(tmp_path / "test-0.parquet")
    shards = tmp_path / "shards"
    shards.mkdir()
    train.to_parquet(shards / "a.parquet")
    test.to_parquet(shards / "b.parquet")
    assert classes_of(open_images(shards)) == ["ant", "bee", "cat", "cat", "eel", ""]
    joined = open_images([tmp_path / "shards/a.parquet", tmp_path / "shards/b.parquet"])
    assert classes_of(joined) == ["ant", "bee", "cat", "cat", "eel", ""]


def test_numbers_in_one_split_and_texts_in_the_other_are_refused(tmp_path, complaint):
    for name, labels in {"train": [0, 1, 2], "test": ["ant", "bee", "ant"]}.items():
        table = pa.table({"image": [png(n) for n in range(3)], "label": labels})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    message = complaint("check", tmp_path)
    assert "test string, such as 'ant'" in message
    np.savez(
        tmp_path / "x.npz",
        x_train=np.zeros((2, 8, 8), np.uint8),
        x_test=np.zeros((2, 8, 8), np.uint8),
        y_train=[1, 2],
        y_test=["a", "b"],
    )
    with pytest.raises(ValueError, match=r"train, such as 1, .*test"):
        open_images(tmp_path / "x.npz")


def test_folders_of_one_name_below_the_classes_are_no_classes(tmp_path, paint):
    for n in range(6):
        paint(tmp_path / "a" / ("cat" if n % 2 else "dog") / "images" / f"{n}.png", n)
        paint(tmp_path / "b" / "images" / ("001" if n % 2 else "1") / f"{n}.png", n)
    for n, name in enumerate(["train/ant/images/0.png", "train/bee/images/1.png"]):
        paint(tmp_path / "c" / name, n)
        paint(tmp_path / "c" / "val" / "images" / f"{n}.png", n)
    assert classes_of(open_images(tmp_path / "a")) == ["cat"] * 3 + ["dog"] * 3
    assert classes_of(open_images(tmp_path / "b")) == ["001"] * 3 + ["1"] * 3
    assert classes_of(open_images(tmp_path / "c")) == ["ant", "bee"]


def test_deeper_folders_have_no_labels_and_a_line_says_why(tmp_path, paint, caplog):
    for n, name in enumerate(["animal/cat/0.png", "animal/dog/1.png", "plant/fern/2.png"]):
        paint(tmp_path / name, n)
    with caplog.at_level("INFO", "nearfar"):
        assert open_images(tmp_path).labels is None
    assert "such as 'animal/cat/0.png'" in caplog.text


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([b"a", "é".encode(), "é".encode("cp1252")], ["a", "é", "é"]),
        ([Decimal(3), None, Decimal(1)], ["3", "", "1"]),
        (["e\u0301", "\u00e9", " \u00e9 "], ["é"] * 3),
        (pa.array(["x", "y", "x"], pa.large_string()), ["x", "y", "x"]),
        (pa.array([0, 1, 0], pa.float16()), ["0", "1", "0"]),
    ],
)
def test_labels_of_any_type_of_parquet_are_labels(tmp_path, values, classes):
    assert classes_of(as_parquet(tmp_path, values)) == classes


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([{"id": 1}, {"id": 2}], "struct<id: int64>"),
        (pa.array([1, 2], pa.timestamp("s")), "timestamp"),
        ([["a"], ["b", "c"]], "list<"),
        ([b"\x89PNG\r\n\x1a\n", b"\x89PNG\r\n\x1a\n"], "PNG"),
    ],
)
def test_a_column_of_labels_that_are_none_is_said(tmp_path, values, kind, caplog):
    with caplog.at_level("INFO", logger="nearfar"):
        assert as_parquet(tmp_path, values).labels is None
    [line] = [line for line in caplog.messages if "no labels" in line]
    assert "'label'" in line and kind in line


@pytest.mark.parametrize("other", [{"target": ["x", "y"]}, {}])
def test_tables_that_lack_the_column_of_labels_are_said(tmp_path, other, caplog):
    rows = {"image": [png(0), png(1)]}
    pq.write_table(pa.table(rows | {"label": ["x", "y"]}), tmp_path / "0.parquet")
    pq.write_table(pa.table(rows | other), tmp_path / "1.parquet")
    with caplog.at_level("INFO", logger="nearfar"):
        assert classes_of(open_images(tmp_path)) == ["x", "y", "", ""]
    [line] = [line for line in caplog.messages if line.startswith("1 of 2 tables")]
    assert f"'{tmp_path}'" in line and "'label'" in line and line.endswith("1.parquet")
    assert any("`label_column` takes another one: target" in m for m in caplog.messages) == bool(
        other
    )


def test_a_class_is_one_in_either_unicode_form_and_two_in_either_case(tmp_path, caplog):
    for number, name in enumerate(["train/e\u0301", "train/Cat", "test/\u00e9", "test/cat"]):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / f"{number}.png").write_bytes(png(number))
    with caplog.at_level("INFO", logger="nearfar"):
        assert sorted(classes_of(open_images(tmp_path, split="all"))) == ["Cat", "cat", "é", "é"]
    assert sorted(classes_of(open_images(tmp_path, split="test"))) == ["cat", "é"]
    assert "'Cat' and 'cat' are two" in caplog.text


@pytest.mark.parametrize("label_column", [None, "label"])
def test_a_column_of_labels_is_read_once(tmp_path, own_cache, monkeypatch, label_column):
    for number in range(3):
        table = {"image": [png(4 * number + i) for i in range(4)], "label": list("abab")}
        pq.write_table(pa.table(table), tmp_path / f"{number}.parquet")
    read, values = [], ParquetFiles.values
    monkeypatch.setattr(
        ParquetFiles,
        "values",
        lambda self, *place: read.append(place) or values(self, *place),
    )
    images = open_images(tmp_path, label_column=label_column)
    assert images.label_names == list("abab") * 3
    assert sorted(read) == [(f"{number}.parquet", "label") for number in range(3)]
