import re

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from nearfar.commands.listing import write_table
from nearfar.maps.column_file import join_columns, read_table

NAMES = ["b.png", "c.png", "a.png"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_are_joined_by_name_in_the_order_of_the_images(tmp_path, kind):
    file = tmp_path / f"about.{kind}"
    if kind == "csv":
        file.write_text("path,year,site,score\na.png,2001,north,0.5\nelse.png,2002,south,1\nb.png,2003,,2\n")
    else:
        columns = {"path": ["a.png", "else.png", "b.png"], "year": [2001, 2002, 2003]}
        columns |= {"site": ["north", "south", None], "score": [0.5, 1, 2], "embedding": [[1.0], [2.0], [3.0]]}
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
    (tmp_path / "a.csv").write_text("name,x\na.png,1\na.png,2\nb.png,3\nc.png,4\nelse.png,5\nelse.png,6\n")
    with caplog.at_level("INFO", "nearfar"):
        assert join_columns(read_table(tmp_path / "a.csv"), NAMES)["x"].tolist() == [3, 4, 1]
    assert "1 rows of names that came before are left out" in caplog.text


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("a.txt", "name\n", "must be a .parquet or a .csv file"),
        ("none.csv", None, "there is no such file"),
        ("a.csv", "x,y\n1,2\n", "needs the images' names in a column 'name'.*it has x, y"),
        ("a.csv", "name,x,name\n1,2,3\n", "a.csv has more than one column 'name'; rename one"),
        ("a.csv", "name,x,x\n1,2,3\n", "a.csv has more than one column 'x'; rename one"),
        ("a.parquet", "name\n", "cannot read --columns .*a.parquet"),
        ("a.csv", "name,x\nfolder/b.png,1\n", "'folder/b.png' is not, did you mean 'b.png'"),
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
    assert not re.search(r"^[=+@-]", text, re.MULTILINE) and "\n'=1+1.png,0" in text and "\n'plain,6" in text
    assert join_columns(read_table(tmp_path / "own.csv"), names)["rank"].tolist() == list(range(7))
