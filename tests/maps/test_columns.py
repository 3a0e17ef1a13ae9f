import base64
import re
import unicodedata

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from matplotlib.colors import to_rgb

from nearfar.maps.columns import (
    GREY,
    PALETTE,
    described,
    join_columns,
    label_column,
    neighbour_columns,
    packed,
    read_table,
)
from nearfar.neighbours import nearest_rows
from nearfar.tools.result import write_table

NAMES = ["b.png", "c.png", "a.png"]


def named(column):
    return [column.classes[code].name for code in column.values]


def test_text_is_classes_the_most_frequent_first_and_missing_last():
    (column,) = described(
        {"camera": np.array(["B", None, "A", "A", "", "A", "B", "C"], dtype=object)}, 8
    )
    assert [group.name for group in column.classes] == ["A", "B", "C", "none"]
    assert named(column) == ["B", "none", "A", "A", "none", "A", "B", "C"]
    assert len({group.colour for group in column.classes}) == 4


def test_numbers_are_a_scale_and_few_whole_ones_classes():
    scale, few, flag = described(
        {"a": np.arange(100), "b": np.arange(100) % 3, "c": np.arange(100) == 4}, 100
    )
    assert scale.classes is None and (scale.low, scale.high) == pytest.approx((0.99, 98.01))
    assert named(few)[:4] == ["0", "1", "2", "0"]
    assert named(flag)[3:6] == ["no", "yes", "no"]
    gaps, empty = described({"a": [1.0, np.nan, np.inf, 3.0], "b": [np.nan] * 4}, 4)
    assert np.isnan(gaps.values).tolist() == [False, True, True, False]
    assert np.isnan(empty.values).all() and empty.low < empty.high


def test_numbers_keep_their_digits():
    ids = np.arange(123456789, 123456889)
    columns = described(
        {"id": ids, "real": ids / 10, "half": (ids / 10).astype(np.float16), "huge": ids * 1e300},
        100,
    )
    assert (
        columns[0].values.tolist() == ids.tolist()
        and columns[1].values.tolist() == (ids / 10).tolist()
    )
    assert columns[2].values.dtype == np.float32 and np.isfinite(columns[3].values).all()


def test_rare_classes_are_drawn_together():
    (column,) = described({"id": [f"{i}" for i in range(600)] + ["0", ""]}, 602)
    assert len(column.classes) == 502 and column.classes[0].name == "0"
    assert named(column).count("all others") == 100 and named(column)[-1] == "none"


@pytest.mark.parametrize(
    ("values", "says"), [([1, 2], "one value for each"), ([1j] * 3, "numbers or text")]
)
def test_columns_that_cannot_be_drawn(values, says):
    with pytest.raises(ValueError, match=says):
        described({"a": np.array(values)}, 3)


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32, np.float64, ">f4"])
def test_numbers_are_packed_little_endian(kind):
    given = packed(np.array([1, 258], dtype=kind))
    assert np.frombuffer(base64.b64decode(given["bytes"]), "<" + given["type"]).tolist() == [1, 258]


def lab(colour):
    """CIE L*a*b* under D65."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = (
        np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
        @ linear
    )
    f = np.cbrt(xyz / [0.9505, 1.0, 1.089])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_colours_differ_well_beyond_what_the_eye_just_notices_and_stand_out_on_light_and_dark():
    points = np.array([lab(colour) for colour in PALETTE])
    apart = np.linalg.norm(points[:, None] - points[None], axis=2) + 1e3 * np.eye(20)
    assert apart[:10, :10].min() > 25 and apart.min() > 15  # about 2.3 is just noticeable in CIE76
    assert all(
        abs(lab(colour) - lab(paper)).max() > 25
        for colour in (*PALETTE, GREY)
        for paper in ("#ffffff", "#14161a")
    )


def test_classes_of_labels_are_those_that_occur_and_none_comes_last():
    column = label_column(np.array([7, 2, 7, 30]), list("abcdefgh"))
    assert [(group.name, group.colour) for group in column.classes] == list(
        zip(["c", "h", "30"], PALETTE, strict=False)
    )
    assert column.values.tolist() == [1, 0, 1, 2]
    gaps = label_column(np.array([-1, 0, 1, -1]), ["a", "b"])
    assert [(group.name, group.colour) for group in gaps.classes][1:] == [
        ("b", PALETTE[1]),
        ("no label", GREY),
    ]
    assert gaps.values.tolist() == [2, 0, 1, 2]
    assert named(label_column(np.array([-1, -1]), None)) == ["no label"] * 2


def test_of_more_classes_than_a_map_numbers_the_most_frequent_have_their_names():
    labels = np.concatenate([np.arange(-1, 70_000), np.full(3, 69_999), [5]])
    column = label_column(labels, [f"class {number}" for number in range(70_000)])
    names = named(column)
    assert names[0] == "none" and names[6] == names[-1] == "class 5"
    assert names[70_000:-1] == ["class 69999"] * 4
    assert names.count("all others") == 70_000 - 500


def test_outlierness_and_density_by_plain_loops():
    features = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    features[0] = -features[1:].mean(0)  # apart from all others
    columns = neighbour_columns(nearest_rows(features, k=5))
    unit = (features / features.norm(dim=1, keepdim=True)).double().numpy()
    for i in range(40):
        distance = sorted(1 - unit[i] @ unit[j] for j in range(40) if j != i)[:5]
        assert np.isclose(columns["outlierness"][i], distance[4], atol=1e-5)
        assert np.isclose(columns["density"][i], -np.log10(np.mean(distance)), atol=1e-4)
    assert columns["outlierness"].argmax() == columns["density"].argmin() == 0
    copies = neighbour_columns(nearest_rows(torch.ones(6, 3), k=5))
    assert (copies["outlierness"] == 0).all() and np.allclose(copies["density"], 6)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_are_joined_by_name_in_the_order_of_the_images(tmp_path, kind):
    file = tmp_path / f"about.{kind}"
    if kind == "csv":
        file.write_text(
            "path,year,site,score\na.png,2001,north,0.5\nelse.png,2002,south,1\nb.png,2003,,2\n"
        )
    else:
        columns = {"path": ["a.png", "else.png", "b.png"], "year": [2001, 2002, 2003]}
        columns |= {
            "site": ["north", "south", None],
            "score": [0.5, 1, 2],
            "embedding": [[1.0], [2.0], [3.0]],
        }
        pyarrow.parquet.write_table(pyarrow.table(columns), file)
    joined = join_columns(read_table(file), NAMES)
    assert list(joined) == ["year", "site", "score"]
    assert np.array_equal(joined["year"], [2003, np.nan, 2001], equal_nan=True)
    assert joined["site"].tolist() == ["", "", "north"]
    assert np.array_equal(joined["score"], [2, np.nan, 0.5], equal_nan=True)


def test_whole_numbers_without_gaps_stay_whole(tmp_path):
    (tmp_path / "a.csv").write_text("name,year,good\na.png,1,true\nb.png,2,false\nc.png,3,true\n")
    joined = join_columns(read_table(tmp_path / "a.csv"), NAMES)
    assert joined["year"].dtype.kind == "i" and joined["year"].tolist() == [2, 3, 1]
    assert joined["good"].tolist() == ["no", "yes", "yes"]


def test_of_several_rows_of_a_name_the_first_counts_and_that_is_said(tmp_path, caplog):
    (tmp_path / "a.csv").write_text(
        "name,x\na.png,1\na.png,2\nb.png,3\nc.png,4\nelse.png,5\nelse.png,6\n"
    )
    with caplog.at_level("INFO", "nearfar"):
        assert join_columns(read_table(tmp_path / "a.csv"), NAMES)["x"].tolist() == [3, 4, 1]
    assert "left out 2 rows" in caplog.text


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("a.txt", "name\n", r"\.csv, \.tsv or \.jsonl"),
        ("none.csv", None, "there is no such file"),
        ("a.csv", "x,y\n1,2\n", r"column 'name'.* x, y"),
        ("a.csv", "name,x,name\n1,2,3\n", r"a\.csv': .*same name"),
        ("a.csv", "name,x,x\n1,2,3\n", r"a\.csv': .*same name"),
        ("a.parquet", "name\n", "`columns`.*cannot read .*a.parquet"),
        ("a.csv", "name,x\nb0.png,1\n", r"'b0.png' .*did you mean 'b.png'"),
    ],
)
def test_files_that_cannot_be_joined(tmp_path, file, text, says):
    if text is not None:
        (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=says):
        join_columns(read_table(tmp_path / file), NAMES)


def test_a_name_that_was_written_for_a_spreadsheet_is_found(tmp_path):
    names = ["=1+1.png", "-rf.png", "@x", "=quoted", "'=quoted", "plain", "'plain"]
    write_table(tmp_path / "own.csv", {"name": names, "rank": list(range(7))})
    text = (tmp_path / "own.csv").read_text()
    assert (
        not re.search(r"^[=+@-]", text, re.MULTILINE)
        and "\n'=1+1.png,0" in text
        and "\n'plain,6" in text
    )
    assert join_columns(read_table(tmp_path / "own.csv"), names)["rank"].tolist() == list(range(7))


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        ("csv", "Image Path;x\n{here}/ö/a.png;1\nö\\b.png;2\n"),
        ("tsv", " file name \tx\nö/a\t1\nö/b.png\t2\n"),
        ("jsonl", '{{"image": "./ö/a.png", "x": 1}}\n{{"image": "somewhere/ö/b.png", "x": 2}}\n'),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_and_files_are_found_as_people_write_them(
    ending, text, encoding, form, tmp_path, caplog
):
    names = [unicodedata.normalize(form, name) for name in ("ö/a.png", "ö/b.png", "ö/c.png")]
    paths = [f"{tmp_path}/{name}" for name in names]
    file = tmp_path / f"columns.{ending}"
    file.write_bytes(text.format(here=tmp_path).encode(encoding))
    with caplog.at_level("INFO", "nearfar"):
        joined = join_columns(read_table(file), names, paths)
    assert np.array_equal(joined["x"], [1, 2, np.nan], equal_nan=True)
    assert f"first {names[2]}" in caplog.text
