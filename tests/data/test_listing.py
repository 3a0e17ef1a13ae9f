"""Things in a folder besides good images: pipes, unreadable folders, odd names."""

import os
import socket

import numpy as np
import pytest

from nearfar.data import open_images
from nearfar.embeddings.saving import write_embeddings

LATIN = os.fsdecode(b"caf\xe9")  # a name that is not UTF-8


def test_pipes_sockets_and_devices_are_listed_and_not_opened(tmp_path, paint):
    paint(tmp_path / "a" / "good.png", 0)
    os.mkfifo(tmp_path / "a" / "pipe.png")
    os.mkfifo(tmp_path / "a" / "pipe")
    os.mkfifo(tmp_path / "metadata.csv")
    (tmp_path / "link.png").symlink_to(tmp_path / "a" / "pipe.png")
    (tmp_path / "zeros.png").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as unix_socket:
        unix_socket.bind(os.path.relpath(tmp_path / "s.png"))
        images = open_images(tmp_path)
    assert images.names == ["a/good.png"]
    assert images.skipped == [
        ("a/pipe.png", "a named pipe, not a file"),
        ("link.png", "a named pipe, not a file"),
        ("s.png", "a socket, not a file"),
        ("zeros.png", "a device, not a file"),
    ]
    assert open_images(tmp_path, few=4).names == ["a/good.png"]


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.parquet", "x.tar", "x"])
def test_a_pipe_as_the_source_is_refused(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match="is a named pipe"):
        open_images(tmp_path / name)


def test_a_folder_that_cannot_be_read_is_listed(tmp_path, paint, monkeypatch):
    paint(tmp_path / "a" / "0.png", 0)
    paint(tmp_path / "locked" / "1.png", 1)
    real = os.scandir

    def scandir(path):
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert open_images(tmp_path).skipped == [
        ("locked/", "the folder cannot be read: Permission denied")
    ]
    (tmp_path / "a" / "0.png").unlink()
    with pytest.raises(
        ValueError,
        match=r"no images.*'locked/'.*Permission denied",
    ):
        open_images(tmp_path)
    with pytest.raises(ValueError, match=r"locked' .*Permission denied"):
        open_images(tmp_path / "locked")


def test_names_that_are_not_utf8_or_hold_line_breaks(tmp_path, paint):
    names = [
        f"{LATIN}/{LATIN}.png",
        "two\nlines/tab\there.png",
        "two\nlines/\u2028.png",
        "é/💡\u202fü.png",
    ]
    for number, name in enumerate(names):
        paint(tmp_path / "in" / name, number)
        (tmp_path / "in" / name).with_name("broken " + os.path.basename(name)).write_text("x")
    shown = {
        name: number
        for number, name in enumerate(
            (
                "caf\\xe9/caf\\xe9.png",
                "two\\nlines/tab\\there.png",
                "two\\nlines/\\u2028.png",
                "é/💡\u202fü.png",
            )
        )
    }
    for images in (
        open_images(tmp_path / "in"),
        open_images(tmp_path / "in"),
    ):  # decoded, and from the cache
        assert set(images.names) == set(shown)
        assert sorted(images.class_names) == sorted(["caf\\xe9", "two\\nlines", "é"])
        for name, label, path in zip(images.names, images.labels, images.originals, strict=True):
            assert name.startswith(images.class_names[label])
            assert path == str(tmp_path / "in" / names[shown[name]])
        assert len(images.skipped) == 4
        assert all(
            len(line.splitlines()) == 1 and line.encode()
            for entry in images.skipped
            for line in entry
        )
    assert set(open_images(tmp_path / "in", few=8).names) == set(shown)
    for ending in (".parquet", ".csv", ".npz"):
        write_embeddings(
            tmp_path / f"table{ending}", images.names, np.zeros((4, 2), np.float32), images.labels
        )
    assert np.load(tmp_path / "table.npz")["name"].tolist() == images.names


def test_a_link_to_a_folder_that_is_read_already_is_counted(tmp_path, paint):
    for number, name in enumerate(["all/a/0.png", "all/b/1.png"]):
        paint(tmp_path / name, number)
    for split in ("test", "train"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "a").symlink_to(tmp_path / "all/a")
    (tmp_path / "all/b/up").symlink_to("..")
    images = open_images(tmp_path)
    assert images.names == ["all/a/0.png", "all/b/1.png"]
    assert [name for name, _ in images.skipped] == ["all/b/up/", "test/a/", "train/a/"]
    assert images.line.endswith("3 left out: 3 links to folders that are read already")
