"""Tables of paths and of images: every row is read or listed, in order, with its own label."""

import csv
import io
import unicodedata

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import assume, given
from hypothesis import strategies as st

from nearfar.data import open_images
from nearfar.data.labels import NO_NUMBER, whole_number
from nearfar.data.table import printable
from tests.properties.given import folder_of, numbered_png, numbers_of, trees

_TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=8)
ENCODINGS = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])


def written(rows, header, separator=",", end="\n", encoding="utf-8"):
    """A table of texts in bytes, as the csv module writes it."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=separator, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([header, *rows])
    return file.getvalue().encode(encoding)


def utf8(paths):
    """The paths that text can hold."""
    return [path for path in paths if path.encode(errors="replace").decode() == path]


def alike(labels):
    """For each label the first that is equal to it; None for a missing one."""
    plain = [unicodedata.normalize("NFC", label.strip()) for label in labels]
    return [None if text.lower() in ("", "nan") else plain.index(text) for text in plain]


@given(
    trees(endings=(".png",)),
    st.lists(_TEXT, min_size=8, max_size=8),
    st.sampled_from(",;\t"),
    st.sampled_from(["\n", "\r\n"]),
    ENCODINGS,
)
def test_a_table_of_paths_keeps_order_names_and_labels(paths, labels, separator, end, encoding):
    paths = [path for path in utf8(paths) if path.strip() == path and "\\" not in path]
    labels = labels[: len(paths)]
    assume(paths and not any(whole_number(text.strip()) is not None for text in labels))
    table = written(
        zip(paths, labels, strict=True), ["file_name", "label"], separator, end, encoding
    )
    files = {path: numbered_png(n) for n, path in enumerate(paths)}
    with folder_of(files | {"the table.csv": table}) as folder:
        images = open_images(folder / "the table.csv")
        assert numbers_of(images) == list(range(len(paths))) and images.skipped == []
        assert images.names == list(map(printable, paths))
        expected = alike(labels)
        assert (images.labels is None) == (set(expected) == {None})
        if images.labels is not None:
            known = images.labels.tolist()
            assert [None if n < 0 else known.index(n) for n in known] == expected


@given(st.lists(st.integers(-3, 9) | st.sampled_from(["", "NaN", "None"]), min_size=1, max_size=7))
def test_numbers_in_a_table_are_the_labels_that_they_are(labels):
    present = [label for label in labels if isinstance(label, int)]
    files = {f"{n}.png": numbered_png(n) for n in range(len(labels))}
    rows = [(name, str(label)) for name, label in zip(files, labels, strict=True)]
    with folder_of(files | {"t.csv": written(rows, ["path", "label"])}) as folder:
        images = open_images(folder / "t.csv")
        assert len(images) == len(labels)
        if not present:  # texts like others
            return
        if images.labels is None:
            assert set(present) <= {-1}  # which is missing where no other is negative
            return
        for label, number in zip(labels, images.labels.tolist(), strict=True):
            if isinstance(label, str) or (label == -1 and number == -1):
                assert number == -1 and (isinstance(label, str) or min(present) == -1)
            elif images.class_names is not None:
                assert images.class_names[number] == str(label)
            else:
                assert number == label


CELLS = st.sampled_from(["whole", "whole", "whole", "damaged", "empty", "missing"])
KINDS = st.sampled_from(["struct", "binary", "large_binary"])


FLOATS = st.sampled_from([None, "bbox", "landmarks", "embedding", "clip"])


def cell(kind, number, state):
    content = {"whole": numbered_png(number), "damaged": numbered_png(number)[:50], "empty": b""}
    if state == "missing":
        return None
    return {"bytes": content[state], "path": None} if kind == "struct" else content[state]


@given(
    st.lists(st.tuples(CELLS, st.none() | _TEXT), min_size=1, max_size=8),
    KINDS,
    st.booleans(),
    FLOATS,
)
def test_rows_of_a_parquet_file_are_read_or_listed(rows, kind, as_dictionary, floats):
    assume(any(state == "whole" for state, _ in rows))
    labels = [label for _, label in rows]
    types = {
        "struct": pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        "binary": pa.binary(),
        "large_binary": pa.large_binary(),
    }
    cells = pa.array([cell(kind, n, state) for n, (state, _) in enumerate(rows)], types[kind])
    column = pa.array(labels, pa.string())
    table = pa.table(
        {"image": cells, "label": column.dictionary_encode() if as_dictionary else column}
    )
    if floats is not None:  # beside images
        numbers = np.random.default_rng(0).random((len(rows), 8)).tolist()
        table = table.append_column(floats, pa.array(numbers, pa.list_(pa.float32())))
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=3)
    texts = ["" if label is None else label for label in labels]
    assume(not any(whole_number(text.strip()) is not None for text in texts))
    assume(not any(text.strip().lower() in NO_NUMBER - {"", "nan"} for text in texts))
    with folder_of({"images.parquet": file.getvalue()}) as folder:
        images = open_images(folder / "images.parquet")
        whole = [n for n, (state, _) in enumerate(rows) if state == "whole"]
        assert numbers_of(images) == whole
        assert len(images) + len(images.skipped) == len(rows)
        assert images.names == [f"{n:06d}" for n in whole]
        expected = alike(texts)
        if images.labels is None:
            assert {expected[n] for n in whole} == {None}
            return
        known = images.labels.tolist()
        for place, n in enumerate(whole):
            if expected[n] is None:
                assert known[place] == -1
            for other, m in enumerate(whole[:place]):
                same = expected[n] == expected[m]
                assert (known[place] == known[other]) == same


@given(
    st.lists(
        st.sampled_from(["train", "val", "test", "Training", "other", ""]), min_size=1, max_size=9
    )
)
def test_splits_of_a_column_share_no_row_and_lose_none(words):
    files = {f"{n}.png": numbered_png(n) for n in range(len(words))}
    rows = zip(files, words, strict=True)
    with folder_of(files | {"t.csv": written(rows, ["path", "split"])}) as folder:
        whole = open_images(folder / "t.csv", split="all")
        assert sorted(numbers_of(whole)) == list(range(len(words)))
        read = []
        for split in whole.splits or ["all"]:
            images = open_images(folder / "t.csv", split=split)
            read += numbers_of(images)
            outside = [why for _, why in images.skipped]
        assert len(set(read)) == len(read) and len(read) + len(outside) == len(words)


LISTS = st.lists(st.sampled_from(["ant", "bee", "cat", "dog", "eel"]), min_size=1, unique=True)


@given(
    st.lists(
        st.tuples(LISTS, st.lists(st.integers(-1, 4), min_size=1, max_size=4)),
        min_size=2,
        max_size=3,
    )
)
def test_shards_with_other_lists_of_classes_keep_the_class_of_each_image(shards):
    files, expected = {}, []
    for n, (names, labels) in enumerate(shards):
        labels = [min(label, len(names) - 1) for label in labels]
        kind = {"image": datasets.Value("binary"), "label": datasets.ClassLabel(names=names)}
        cells = [numbered_png(len(expected) + k) for k in range(len(labels))]
        file = io.BytesIO()
        columns = {"image": cells, "label": labels}
        datasets.Dataset.from_dict(columns, datasets.Features(kind)).to_parquet(file)
        files[f"part-{n}.parquet"] = file.getvalue()
        expected += [None if label < 0 else names[label] for label in labels]
    with folder_of(files) as folder:
        images = open_images(folder)
        assert numbers_of(images) == list(range(len(expected)))
        if images.labels is None:
            assert set(expected) == {None}
            return
        known = [images.class_names[n] if n >= 0 else None for n in images.labels.tolist()]
        assert known == expected
