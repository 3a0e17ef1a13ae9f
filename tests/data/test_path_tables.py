"""Tables of paths: CSV, TSV and Parquet, their labels, splits and columns, and rows that lead
nowhere.
"""

import os

import pytest

from nearfar.data import difference, open_images, scan
from nearfar.maps.columns import read_table as read_columns


def first(pixels):
    return pixels.transpose(2, 0, 1)


def test_paths_are_relative_to_the_table_and_stand_in_its_order(tmp_path, paint, monkeypatch):
    painted = {
        name: paint(tmp_path / "pictures" / name, i)
        for i, name in enumerate(["007.png", "b.png", "ü c.png"])
    }
    table = tmp_path / "tables" / "all.csv"
    table.parent.mkdir()
    away = tmp_path / "pictures" / "b.png"
    table.write_text(
        f"site,Filename\nnorth,../pictures/ü c.png\nsouth,../pictures/007.png\n,{away}\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path / "pictures")  # from anywhere
    images = open_images(table)
    assert images.names == ["../pictures/ü c.png", "../pictures/007.png", str(away)]
    for row, name in enumerate(["ü c.png", "007.png", "b.png"]):
        assert (images.pixels[row].numpy() == first(painted[name])).all()
    assert images.labels is None and images.columns.to_pydict() == {"site": ["north", "south", ""]}
    assert os.path.realpath(images.originals[0]) == str(tmp_path / "pictures" / "ü c.png")
    assert images.subset([2, 0]).columns["site"].to_pylist() == ["", "north"]
    assert len(scan(table)) == 3 and open_images(table, few=2).names == [
        images.names[0],
        images.names[2],
    ]


def test_rows_that_lead_nowhere_are_listed_with_their_reason(tmp_path, paint):
    paint(tmp_path / "a.png", 0)
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "text.png").write_text("no picture")
    names = [
        "lost.png",
        "a.png",
        "folder.png",
        "pipe.png",
        "text.png",
        "",
        "https://example.org/a.png",
    ]
    (tmp_path / "t.csv").write_text(
        "path,note\n" + "".join(f"{name},{i}\n" for i, name in enumerate(names))
    )
    images = open_images(tmp_path / "t.csv")
    assert images.names == ["a.png"] and images.columns.to_pydict() == {"note": [1]}
    reasons = dict(images.skipped)
    assert list(reasons) == [
        "lost.png",
        "folder.png",
        "pipe.png",
        "text.png",
        "row 6",
        "https://example.org/a.png",
    ]
    assert reasons["lost.png"] == reasons["https://example.org/a.png"] == "there is no such file"
    assert (
        reasons["pipe.png"] == "there is no such file"
        and reasons["row 6"] == "this row has no path"
    )


def test_a_label_column_has_a_usual_name_or_is_named(tmp_path, paint):
    for i in range(4):
        paint(tmp_path / f"{i}.png", i)
    text = "image,Label,species,weight\n0.png,2,fern,0.5\n1.png,,moss,1.5\n2.png,7,,2\n3.png,2,fern,1\n"
    (tmp_path / "t.csv").write_text(text)
    images = open_images(tmp_path / "t.csv")
    assert images.labels.tolist() == [2, -1, 7, 2] and images.class_names is None
    images = open_images(tmp_path / "t.csv", label_column="species")
    assert images.labels.tolist() == [0, 1, -1, 0] and images.class_names == ["fern", "moss"]
    with pytest.raises(
        ValueError,
        match=r"t\.csv' .*'kind'.*: Label, species",
    ):
        open_images(tmp_path / "t.csv", label_column="kind")
    with pytest.raises(ValueError, match=r"labels must be .*'weight' holds 0\.5"):
        open_images(tmp_path / "t.csv", label_column="weight")


@pytest.mark.parametrize("ending", ["tsv", "csv"])
def test_other_separators_quotes_and_a_byte_order_mark(tmp_path, paint, ending):
    for i in range(2):
        paint(tmp_path / f"{i}.png", i)
    line = "\t" if ending == "tsv" else ";"
    text = f'file_name{line}note\n0.png{line}"one{line} \ntwo"\n1.png{line}"a ""word"""\n'
    (tmp_path / f"t.{ending}").write_text("\ufeff" + text, encoding="utf-8")
    images = open_images(tmp_path / f"t.{ending}")
    assert images.names == ["0.png", "1.png"]
    assert images.columns.to_pydict() == {"note": [f"one{line} \ntwo", 'a "word"']}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            b"title,size\na.png,3\n",
            "of paths.*: title, size",
        ),
        (b"", "cannot read '.*t.csv'"),
        (b"path,path\na.png,b.png\n", "the same name 'path'"),
        (b"path,,\na.png,1,2\n", "the same name ''"),
        (b'path,"a\nb","a\nb"\na.png,1,2\n', r"the same name 'a\\nb'"),
        (b"path\n\xff\xfe.png\n", "ÿþ.png: .*no such file"),
        (b"path,note\na.png\n", "cannot read '.*t.csv'"),
        (
            b"path\nlost.png\n",
            "t.csv' .*lost.png: .*no such file",
        ),
        (b"path\n", "no images"),
    ],
)
def test_what_is_no_table_of_paths_is_one_line(tmp_path, content, says):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(ValueError, match=says) as error:
        open_images(tmp_path / "t.csv")
    assert "\n" not in str(error.value)


def test_changed_files_and_columns_are_seen(tmp_path, paint, decodes):
    for i in range(3):
        paint(tmp_path / f"{i}.png", i)
    table = tmp_path / "t.csv"
    table.write_text("path,note\n0.png,x\n1.png,y\n")
    before = scan(table)
    open_images(table)
    count = len(decodes)
    assert open_images(table).columns["note"].to_pylist() == ["x", "y"] and len(decodes) == count
    table.write_text("path,note\n0.png,x\n1.png,other\n")
    assert open_images(table).columns["note"].to_pylist() == ["x", "other"]
    assert difference(before, scan(table)) == ""  # the images are the same
    table.write_text("path,note\n1.png,other\n0.png,x\n")
    assert difference(before, scan(table)) == "the same images in another order: first 0.png"
    table.write_text("path,note\n0.png,x\n1.png,y\n")
    painted = paint(tmp_path / "1.png", 9)
    assert difference(before, scan(table)) == "1 image changed: first 1.png"
    assert (open_images(table).pixels[1].numpy() == first(painted)).all()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1"])
@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_tables_in_the_encodings_of_spreadsheets(tmp_path, paint, encoding, ending):
    line = "\t" if ending == "tsv" else ","
    names = ["M\u00fcller.png", "caf\u00e9.png"]
    for n, name in enumerate(names):
        paint(tmp_path / name, n)
    text = f"File Name{line}Label\n" + "".join(f"{name}{line}\u00e4\n" for name in names)
    (tmp_path / f"t.{ending}").write_bytes(text.encode(encoding))
    images = open_images(tmp_path / f"t.{ending}")
    assert images.names == names and images.class_names == ["\u00e4"]


def test_paths_in_other_spellings_lead_to_their_files(tmp_path, paint):
    for n, name in enumerate(["a b/u\u0308.png", "a b/1.png", "a b/\u00e9.png"]):
        paint(tmp_path / name, n)
    address = (tmp_path / "a b/1.png").as_uri()
    written = ["a b\\1.png", "a b/\u00fc.png", address, "a b/e\u0301.png"]
    (tmp_path / "t.csv").write_text("uri\n" + "".join(f"{path}\n" for path in written))
    images = open_images(tmp_path / "t.csv")
    assert images.names == written and images.skipped == []


def test_encoded_images_in_a_column_of_paths_are_said_shortly(tmp_path, paint):
    paint(tmp_path / "a.png", 0)
    (tmp_path / "t.csv").write_text(f"image\na.png\n{'iVBORw0KGgo' * 1200}\n")
    images = open_images(tmp_path / "t.csv")
    assert images.skipped == [("row 2", "this row has no path")]


def test_spaces_around_the_cells_of_a_table_say_nothing(tmp_path, paint):
    for number in range(3):
        paint(tmp_path / f"{number}.png", number)
    (tmp_path / "a.csv").write_text(" label , path \n 1, 0.png\n2 , 1.png \n 1 , 2.png\n")
    images = open_images(tmp_path / "a.csv", label_column="label", cache=False)
    assert len(images) == 3 and images.labels.tolist() == [1, 2, 1] and images.class_names is None


def test_rows_that_name_a_file_again_are_said(tmp_path, paint, caplog):
    for number in range(2):
        paint(tmp_path / f"{number}.png", number)
    (tmp_path / "a.csv").write_text("path,label\n0.png,a\n0.png,b\n1.png,a\n,a\n,b\n")
    with caplog.at_level("INFO", logger="nearfar"):
        assert len(open_images(tmp_path / "a.csv", cache=False)) == 3
    assert f"1 rows of '{tmp_path / 'a.csv'}'" in caplog.text


def test_of_two_labels_in_the_metadata_the_first_counts_and_that_is_said(tmp_path, paint, caplog):
    for number in range(2):
        paint(tmp_path / f"{number}.png", number)
    (tmp_path / "metadata.csv").write_text("file_name,kind\n0.png,a\n./0.png,b\n1.png,b\n1.png,b\n")
    with caplog.at_level("INFO", logger="nearfar"):
        images = open_images(tmp_path, label_column="kind", cache=False)
    assert images.label_names == ["a", "b"]
    assert "in 1 further rows" in caplog.text


@pytest.mark.parametrize("name", ["metadata.csv", "labels.CSV", "about/rows.tsv"])
def test_tables_among_images_without_labels_are_said(name, tmp_path, paint, caplog):
    for number in range(3):
        paint(tmp_path / f"{number}.png", number)
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        "file_name,label\n0.png,a\n1.png,b\n".replace(",", "\t" if name.endswith("tsv") else ",")
    )
    with caplog.at_level("INFO", logger="nearfar"):
        assert open_images(tmp_path, cache=False).labels is None
    assert "tables among them" in caplog.text
    assert str(file) in caplog.text


def test_splits_in_the_metadata_of_a_folder_are_said(tmp_path, paint, caplog):
    for number in range(3):
        paint(tmp_path / f"{number}.png", number)
    file = tmp_path / "metadata.csv"
    file.write_text("file_name,label,split\n0.png,a,train\n1.png,b,train\n2.png,a,test\n")
    with caplog.at_level("INFO", logger="nearfar"):
        assert len(open_images(tmp_path, label_column="label", cache=False)) == 3
    assert f"name '{file}' in its place" in caplog.text
    assert open_images(file, cache=False).names == ["train/0.png", "train/1.png"]


@pytest.mark.parametrize("text", ["null", '{"path": "a.png"}\nnull\n', "[1]", '"a.png"', "{"])
def test_lines_of_a_list_of_files_that_are_no_objects_are_refused(tmp_path, paint, text):
    paint(tmp_path / "a.png", 0)
    (tmp_path / "columns.jsonl").write_text(text)
    with pytest.raises(ValueError, match=r"columns\.jsonl'") as error:
        read_columns(tmp_path / "columns.jsonl")
    assert "\n" not in str(error.value)
