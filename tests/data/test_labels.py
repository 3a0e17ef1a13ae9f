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
from nearfar.data.labels import (
    OneHot,
    check_alike,
    joined_labels,
    label_columns,
    label_of,
    labels_of,
    negative_is_class,
    numbered,
    plain_labels,
    texts_of,
    whole_number,
)
from nearfar.data.sources.rows import ParquetFiles
from nearfar.evaluation.vectors import find_vectors

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


def test_a_masked_label_is_a_missing_one():
    """A masked text was the class "--"."""
    for values in (["a", "b", "b"], [1, 2, 2]):
        labels = np.ma.masked_array(values, mask=[False, True, False])
        images = open_images((np.zeros((3, 4, 4), np.uint8), labels))
        assert images.labels.tolist()[1] == -1
        assert len(set(images.labels.tolist())) == 3


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


@pytest.mark.parametrize("kind", ["paths", "arrays", "vectors.npz", "vectors.parquet", "wide"])
def test_of_two_columns_of_labels_the_one_that_is_used_is_said(tmp_path, kind, caplog):
    labels, others, file = ["a", "b"] * 4, ["x"] * 8, tmp_path / "data.csv"
    vectors = np.random.default_rng(0).random((8, 9)).astype("f4")
    (tmp_path / "0.png").write_bytes(png(0))
    if kind == "paths":
        rows = (f"0.png,{other},{label}" for label, other in zip(labels, others, strict=True))
        file.write_text("\n".join(["path,target,label", *rows]))
    elif kind == "wide":
        table = pa.table({f"e{place}": vectors[:, place] for place in range(9)})
        file = tmp_path / "data.parquet"
        pq.write_table(
            table.append_column("target", [others]).append_column("label", [labels]), file
        )
    elif kind == "vectors.parquet":
        columns = {"embedding": vectors.tolist(), "target": others, "label": labels}
        file = tmp_path / "data.parquet"
        pq.write_table(pa.table(columns), file)
    else:
        file = tmp_path / "data.npz"
        key, rows = ("features", vectors) if "vec" in kind else ("x", np.zeros((8, 9, 9), "u1"))
        np.savez(file, **{key: rows, "target": others, "label": labels})
    with caplog.at_level("INFO", logger="nearfar"):
        assert find_or_open(file, "vec" in kind or kind == "wide") == labels
        lines = [line for line in caplog.messages if "takes another one: target" in line]
        assert len(lines) == 1 and "column 'label'" in lines[0] and file.name in lines[0]
        caplog.clear()
        assert find_or_open(file, "vec" in kind or kind == "wide", "target") == others
    assert not any("takes another one" in line for line in caplog.messages)


def find_or_open(file, vectors, label_column=None):
    if vectors:
        return find_vectors(file, label_column).labels
    return classes_of(open_images(file, label_column=label_column))


def test_a_place_in_an_image_is_no_label(tmp_path):
    (tmp_path / "0.png").write_bytes(png(0))
    (tmp_path / "boxes.csv").write_text("path,x,y,w,h\n0.png,3,4,5,6\n0.png,5,5,5,6\n")
    assert open_images(tmp_path / "boxes.csv").labels is None
    (tmp_path / "named.csv").write_text("path,x,y\n0.png,a,4\n0.png,b,5\n")
    assert classes_of(open_images(tmp_path / "named.csv")) == ["4", "5"]


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


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (3, "3"),
        (np.array([[3.0]]), "3"),
        (torch.tensor(3), "3"),
        (np.float16(3), "3"),
        (2**63 - 1, "9223372036854775807"),
        (True, "True"),
        (np.bool_(False), "False"),
        (" cat\n", "cat"),
        (b"a\tb", "a\tb"),
        ([0, 1, 0], OneHot(1, 3)),
        (np.eye(1, 4), OneHot(0, 4)),
        (NONE, NONE),
        (pandas.NA, NONE),
        (pandas.NaT, NONE),
        (float("nan"), NONE),
        ("NaN", NONE),
        ("  ", NONE),
    ],
)
def test_a_value_is_a_label_or_a_missing_one(value, label):
    assert label_of(value, "it") == label


@pytest.mark.parametrize(
    "value",
    [
        *(0.5, [0.5], float("inf"), 1j, 2**63, -(2**63), {"a": 1}, b"\x00"),
        *([], [1, 1], [0, 2], [0.5, 0.5], [[1, 0], [0, 0]], [[1], [1, 2]]),
    ],
)
def test_anything_else_is_none_and_the_message_has_it(value):
    with pytest.raises(ValueError, match=r"labels must .* column 'x' holds "):
        label_of(value, "column 'x'")


def test_labels_of_one_hot_rows_have_one_length_and_no_texts_beside_them():
    rows = [OneHot(2, 3), None, OneHot(0, 3)]
    assert texts_of(rows, "it") == ["2", None, "0"]
    with pytest.raises(ValueError, match="column 'x' holds lists"):
        labels_of([[0, 1], [1, 0, 0]], "column 'x'")
    for other in (OneHot(2, 4), "2"):
        with pytest.raises(ValueError, match="column 'x' holds lists"):
            texts_of([*rows, other], "column 'x'")


def test_texts_that_are_whole_numbers():
    texts = ["3", "+3", "-3", "3.0", "0", "-0", "9223372036854775807"]
    assert [whole_number(text) for text in texts] == [3, 3, -3, 3, 0, 0, 2**63 - 1]
    for text in ("003", "1e3", "3.5", "a3", "3a", "", "9223372036854775808"):
        assert whole_number(text) is None


@pytest.mark.parametrize(
    ("labels", "known", "numbers", "names"),
    [
        (["b", "a", NONE, "b"], NONE, [1, 0, NONE, 1], ["a", "b"]),
        (["3", "10", NONE, "3.0", "+3"], NONE, [3, 10, NONE, 3, 3], NONE),
        (["-1", "0", "2"], NONE, [NONE, 0, 2], NONE),
        (["-1", "1", "-1"], NONE, [0, 1, 0], ["-1", "1"]),
        (["5", "-2", "-1"], NONE, [2, 0, 1], ["-2", "-1", "5"]),
        (["1", "N/A", "2"], NONE, [1, NONE, 2], NONE),
        (["1", "cat", "2"], NONE, [0, 2, 1], ["1", "2", "cat"]),
        (["true", "False", NONE], NONE, [1, 0, NONE], ["False", "True"]),
        ([NONE, NONE], NONE, [NONE, NONE], NONE),
        (["cat", "bee", NONE], ["cat", "bee"], [0, 1, NONE], ["cat", "bee"]),
        (["eel", "bee", "dog"], ["cat", "bee"], [3, 1, 2], ["cat", "bee", "dog", "eel"]),
        (["1", "0", NONE], ["cat", "bee"], [1, 0, NONE], ["cat", "bee"]),
        (["7", "5"], ["3", "5"], [2, 1], ["3", "5", "7"]),
        ([NONE], ["cat"], [NONE], ["cat"]),
    ],
)
def test_the_numbers_and_names_of_classes(labels, known, numbers, names):
    column, classes = numbered(labels, known)
    assert column.to_pylist() == numbers and classes == names
    assert column.type == pa.int64()  # where all are missing too


def test_minus_one_is_a_class_beside_other_negative_ones_or_one_alone():
    assert negative_is_class([-1, 1, -1]) and negative_is_class([-2, 5, -1])
    for values in ([], [-1], [-1, 0, 1], [-1, 1, 2], [0, 1]):
        assert not negative_is_class(values)


@pytest.mark.parametrize("labels", [["2"], ["-1", "0"], ["0", "cow"]])
def test_numbers_beside_names_that_they_do_not_count_are_refused(labels):
    with pytest.raises(ValueError, match="beside 'cat'; write them alike"):
        numbered(labels, ["cat", "bee"])


@pytest.mark.parametrize(
    ("labels", "names", "joined", "classes"),
    [
        ([[4, 2], [4, -1]], [NONE, NONE], [4, 2, 4, -1], NONE),
        (
            [[1, 0, -1], [0, 1, 0]],
            [["dog", "cat"], ["cat", "ant"]],
            [1, 0, -1, 1, 2, 1],
            ["dog", "cat", "ant"],
        ),
        ([[9, -1, 5, 9], [0, 1]], [NONE, ["9", "7"]], [1, -1, 0, 1, 1, 2], ["5", "9", "7"]),
        ([[0, 1], [-1, -1]], [["7", "9"], NONE], [0, 1, -1, -1], ["7", "9"]),
    ],
    ids=["numbers", "names", "numbers and names that are numbers", "none in one source"],
)
def test_classes_of_one_name_in_several_sources_are_one(labels, names, joined, classes):
    together, known = joined_labels([np.array(part) for part in labels], names)
    assert together.tolist() == joined and known == classes
    assert together.dtype == np.int64


def test_numbers_and_names_of_several_sources_are_not_joined():
    assert joined_labels([np.array([3]), np.array([0])], [NONE, ["cat"]]) is None


def test_the_columns_that_may_hold_labels():
    numbers, texts, times = pa.int64(), pa.string(), pa.timestamp("s")
    schema = pa.schema(
        [("kind", texts), ("Label", numbers), ("class", texts), ("target", times), ("x", numbers)]
    )
    usual = label_columns(schema)
    assert sorted(usual) == ["Label", "class"]
    assert label_columns(schema, ["class"]) == ["class", "Label"]
    assert sorted(label_columns(schema, ["target"])) == ["Label", "class", "target"]
    for kind in (pa.list_(numbers), pa.large_list(pa.float32()), pa.list_(numbers, 3)):
        assert label_columns(pa.schema([("label", kind)])) == ["label"]  # one-hot rows
    assert label_columns(pa.schema([("label", pa.list_(texts))])) == []
    others = pa.schema([("kind", numbers), ("x", numbers)])
    assert label_columns(others) == label_columns(others, ["kind", "x"]) == []
    assert label_columns(others, ["kind"]) == ["kind"]


@pytest.mark.parametrize(
    ("given", "labels", "known"),
    [
        (np.array([3, -1, 2], np.int16), [3, -1, 2], [True] * 3),
        (torch.tensor([True, False]), [True, False], [True] * 2),
        (np.array([3.0, np.nan]), [3, 0], [True, False]),
        (["3", None, "2.0"], [3, 0, 2], [True, False, True]),
        (["3", None, "two"], ["3", "", "two"], [True, False, True]),
        (np.array(["b", "", "a"]), ["b", "", "a"], [True, False, True]),
        (np.eye(3, dtype=np.int64)[[2, 0]], [2, 0], [True] * 2),
    ],
)
def test_labels_of_any_kind_as_an_array(given, labels, known):
    array, are_known = plain_labels(given, "it")
    assert array.tolist() == labels and are_known.tolist() == known
    assert array.dtype.kind == np.array(labels).dtype.kind and are_known.dtype == np.bool_


def test_no_labels_at_all_are_whole_numbers():
    array, known = plain_labels([], "it")
    assert (array.shape, array.dtype, known.shape, known.dtype) == ((0,), np.int64, (0,), np.bool_)


def test_parts_with_numbers_and_parts_with_texts_are_refused():
    check_alike({"a": ["1", "2", None], "b": ["3", "n/a"]}, "x")
    check_alike({"a": ["1", "cat"], "b": ["3"], "c": [None]}, "x")  # texts, numbers among them
    with pytest.raises(ValueError, match=r"in b, such as 3, .*'ant'"):
        check_alike({"a": ["cat", "ant"], "b": ["4", "3"]}, "x")


@pytest.mark.parametrize(
    "labels", [{4, 5, 6}, frozenset("abc"), {"a": 1, "b": 2, "c": 3}, "abc", b"abc", 3]
)
def test_labels_without_an_order_of_their_own_are_refused(labels):
    """A dictionary gave its keys, a set its items in any order, and a text its letters."""
    with pytest.raises(ValueError, match="in their order"):
        open_images((np.zeros((3, 8, 8), np.uint8), labels))
