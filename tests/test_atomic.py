"""A file is replaced as a whole, and an error leaves it as it was."""

import errno
import os

import pytest
from safetensors import SafetensorError

from nearfar.atomic import NotWrittenError, check_folder, replacing
from nearfar.networks import Encoder, build_backbone, save_encoder


def test_a_file_or_folder_is_replaced_as_a_whole_or_stays(tmp_path):
    path, folder = tmp_path / "results.json", tmp_path / "map"
    for text in ("old", "new"):
        with replacing(path) as unfinished, replacing(folder) as other:
            unfinished.write_text(text)
            other.mkdir()
            (other / text).touch()
    assert path.read_text() == "new" and [file.name for file in folder.iterdir()] == ["new"]
    for place in (path, folder):
        with pytest.raises(OSError, match="No space"), replacing(place) as unfinished:
            unfinished.write_text("half")
            raise OSError("No space left on device")
    assert path.read_text() == "new" and [file.name for file in folder.iterdir()] == ["new"]
    assert {file.name for file in tmp_path.iterdir()} == {"results.json", "map"}


def test_a_full_disk_is_named_whatever_a_library_says(tmp_path):
    path = tmp_path / "last.ckpt"
    says = r"last\.ckpt: No space left"
    with pytest.raises(NotWrittenError, match=says), replacing(path):
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        finally:
            raise RuntimeError("unexpected pos 3520 vs 3478")
    with pytest.raises(RuntimeError, match="unexpected pos"), replacing(path):
        raise RuntimeError("unexpected pos 3520 vs 3478")


def test_a_full_disk_is_named_where_the_library_is_in_rust(tmp_path):
    """Explore ended in a traceback: such an error is no OSError, and has none behind it."""
    path = tmp_path / "features.safetensors"
    error = SafetensorError("Error while serializing: No space left on device (os error 28)")
    with pytest.raises(NotWrittenError, match=r"features\.safetensors: No space"), replacing(path):
        raise error
    with pytest.raises(SafetensorError, match="os error 2"), replacing(path):
        raise SafetensorError("Error while serializing: No such file or directory (os error 2)")
    assert not list(tmp_path.iterdir())


def test_two_processes_write_files_of_their_own(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    with replacing(path) as file:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with replacing(path) as other:
            assert file != other
            file.write_text("one")
            other.write_text("other")
    assert path.read_text() == "one"


def test_a_folder_that_cannot_be_written_into(tmp_path):
    check_folder(tmp_path)
    (tmp_path / "file").write_text("")
    for folder, reason in (("none", "No such file or directory"), ("file", "Not a directory")):
        with pytest.raises(OSError, match=f"^cannot write into .*{folder}: {reason}$"):
            check_folder(tmp_path / folder)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_files_follow_the_umask(tmp_path):
    backbone = build_backbone("small", image_size=8, channels=1)
    before = os.umask(0o027)
    try:
        save_encoder(tmp_path, Encoder(backbone, 8, 1, [0.5], [0.5]))
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o640}
