"""Digests are of whole files, and a file is read again only when it may have changed."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from nearfar.data import digests as module
from nearfar.data.digests import digest, digests

NAMES = ["a/0.bin", "a/1.bin", "b\udcff/2.bin"]  # one that is not UTF-8


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files that count as old as soon as they are written."""
    monkeypatch.setattr(module, "SETTLED", -(10**12))
    for number, name in enumerate(NAMES):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * 50_000)
    return tmp_path / "data"


@pytest.fixture
def read(monkeypatch):
    """The names of the files that were read."""
    seen, real = [], module.digest_of_file
    monkeypatch.setattr(module, "digest_of_file", lambda path: seen.append(Path(path).name) or real(path))
    return seen


def test_a_file_is_read_once_until_it_changes(folder, tmp_path, read):
    first = digests(folder, NAMES, [""], tmp_path)
    assert first == {name: digest(bytes([number]) * 50_000) for number, name in enumerate(NAMES)}
    assert sorted(read) == ["0.bin", "1.bin", "2.bin"]
    assert digests(folder, NAMES, [""], tmp_path) == first and len(read) == 3
    before = os.stat(folder / NAMES[1])
    with open(folder / NAMES[1], "r+b") as file:  # in the middle, of the same size
        file.seek(25_000)
        file.write(b"changed")
    os.utime(folder / NAMES[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    after = digests(folder, NAMES, [""], tmp_path)
    assert read[3:] == ["1.bin"] and {name for name in NAMES if first[name] != after[name]} == {NAMES[1]}
    (folder / NAMES[0]).touch()
    assert digests(folder, NAMES, [""], tmp_path) == after and read[4:] == ["0.bin"]


def test_what_has_just_changed_is_read_the_next_time_too(folder, tmp_path, read, monkeypatch):
    monkeypatch.setattr(module, "SETTLED", 2 * 10**9)
    for _ in range(2):
        digests(folder, NAMES, [""], tmp_path)
    assert len(read) == 6


def test_what_is_no_file_has_no_digest(folder, tmp_path):
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("nowhere")
    names = ["pipe", "link", "a", "gone", "null\0"]
    assert digests(folder, names, [""], tmp_path) == dict.fromkeys(names, "")


def test_splits_and_single_files_of_a_folder_keep_tables_of_their_own(folder, tmp_path, read):
    for _ in range(2):
        digests(folder, NAMES[:2], ["train"], tmp_path)
        digests(folder, NAMES[1:], ["test"], tmp_path)
        for name in NAMES:
            digests(folder, [name], [""], tmp_path)
    assert len(read) == 2 + 2 + 3


@pytest.mark.parametrize("wrong", ["damaged", "a folder", "unwritable"])
def test_without_a_table_all_files_are_read(wrong, folder, tmp_path, read):
    kept = tmp_path / "kept"
    first = digests(folder, NAMES, [""], kept)
    [table] = kept.iterdir()
    if wrong == "damaged":
        table.write_bytes(table.read_bytes()[:100])
    else:
        shutil.rmtree(kept)
        kept.write_text("in the way") if wrong == "unwritable" else table.mkdir(parents=True)
    assert digests(folder, NAMES, [""], kept) == first and len(read) == 6


def test_two_at_once_leave_a_whole_table(folder, tmp_path):
    found = []
    both = [threading.Thread(target=lambda: found.append(digests(folder, NAMES, [""], tmp_path))) for _ in range(4)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert all(one == found[0] for one in found) and len(found) == 4
    assert [path.suffix for path in tmp_path.iterdir() if path.is_file()] == [".arrow"]
