"""A file is replaced as a whole, and an error leaves it as it was."""

import pytest

from nearfar.atomic import replacing


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "results.json"
    path.write_text("old")
    with replacing(path) as unfinished:
        unfinished.write_text("new")
        assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]
    assert path.read_text() == "new"


def test_an_error_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "results.json"
    path.write_text("old")
    with pytest.raises(OSError, match="No space"), replacing(path) as unfinished:
        unfinished.write_text("half")
        raise OSError("No space left on device")
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]
    assert path.read_text() == "old"
