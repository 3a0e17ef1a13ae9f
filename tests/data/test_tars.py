"""Tars in WebDataset form: examples, labels, and what is damaged, cut off or no file."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from nearfar.data import open_images
from tests.pictures import png, tar


def test_other_fields_hidden_members_and_texts(tmp_path):
    members = [
        ("README", b"no ending"),
        ("x/._a.png", b"hidden"),
        ("x/a.seg.PNG", png(1)),
        ("x/a.jpg", png(0)),
    ]
    members += [
        ("x/a.txt", b" moss\n"),
        ("x/a.json", b"{broken"),
        ("x/a.pth", b"never read"),
        ("alone.txt", b"fern"),
    ]
    tar(tmp_path / "a.tar", [*members, ("x/b.jpg", png(2)), ("x/b.txt", b"fern")])
    images = open_images(tmp_path / "a.tar", label_column="txt")
    assert images.names == ["a/x/a.seg.PNG", "a/x/a.jpg", "a/x/b"]
    assert images.skipped == [("a/alone.txt", "a label without an image")]
    assert images.class_names == ["fern", "moss"] and images.labels.tolist() == [1, 1, 0]
    expected = np.asarray(Image.open(io.BytesIO(png(0)))).transpose(2, 0, 1)
    assert (images.pixels[1].numpy() == expected).all()
    with pytest.raises(ValueError, match="a column 'cls'"):
        open_images(tmp_path / "a.tar", label_column="cls")


def test_a_damaged_header_is_listed_and_what_follows_is_read(tmp_path):
    tar(tmp_path / "a.tar", [(f"{i:02d}.png", png(i)) for i in range(30)])
    with tarfile.open(tmp_path / "a.tar") as file:
        place = file.getmembers()[10].offset
    damaged = bytearray((tmp_path / "a.tar").read_bytes())
    damaged[place : place + 512] = b"\xff" * 512
    (tmp_path / "a.tar").write_bytes(damaged)
    images = open_images(tmp_path / "a.tar")
    assert images.names == [f"a/{i:02d}" for i in range(30) if i != 10]
    [(name, reason)] = images.skipped
    assert name == "a.tar" and f"damaged from byte {place:,} to" in reason


def test_a_tar_that_was_cut_off_gives_what_is_whole(tmp_path):
    tar(tmp_path / "a.tar", [("0.png", png(0)), ("1.png", png(1, 64)), ("2.png", png(2))])
    (tmp_path / "a.tar").write_bytes(
        (tmp_path / "a.tar").read_bytes()[:8192]
    )  # in the second image
    images = open_images(tmp_path / "a.tar")
    assert images.names == ["a/0"] and [name for name, _ in images.skipped][-1] == "a.tar"
    assert "cut off" in dict(images.skipped)["a.tar"]


def test_links_devices_and_sparse_files_are_listed_and_not_followed(tmp_path):
    def member(name, kind, link=""):
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, link
        return info

    odd = [
        member("soft.png", tarfile.SYMTYPE, "/etc/passwd"),
        member("hard.png", tarfile.LNKTYPE, "../../a.png"),
        member("pipe.png", tarfile.FIFOTYPE),
        member("device.png", tarfile.CHRTYPE),
        member("folder.png", tarfile.DIRTYPE),
        member("link", tarfile.SYMTYPE, "a.png"),
    ]
    tar(
        tmp_path / "a.tar",
        [("/etc/a.png", png(0)), ("../../b.png", png(1)), *odd, ("c.png", png(2))],
    )
    images = open_images(tmp_path / "a.tar")
    assert images.names == ["a//etc/a", "a/../../b", "a/c"]
    assert [name for name, _ in images.skipped] == [f"a/{info.name}" for info in odd[:5]]
    assert (
        "not followed" in dict(images.skipped)["a/soft.png"]
        and "not a file" in dict(images.skipped)["a/pipe.png"]
    )


def test_a_size_below_zero_ends_the_reading(tmp_path):
    tar(tmp_path / "a.tar", [("a.png", png(0)), ("b.png", png(1)), ("c.png", png(2))])
    with tarfile.open(tmp_path / "a.tar") as file:
        second = file.getmembers()[1]
    second.size = -1024
    content = bytearray((tmp_path / "a.tar").read_bytes())
    content[second.offset : second.offset + 512] = second.tobuf(tarfile.GNU_FORMAT)[:512]
    (tmp_path / "a.tar").write_bytes(content)
    images = open_images(tmp_path / "a.tar")
    assert images.names[0] == "a/a" and "a/b" not in images.names
    assert "a.tar" in dict(images.skipped)


def test_tars_of_one_name_in_several_folders_have_images_of_their_own_names(tmp_path):
    for number, folder in enumerate(["a", "b"]):
        (tmp_path / folder).mkdir()
        tar(tmp_path / folder / "000.tar", [("s.png", png(number)), ("s.cls", b"%d" % number)])
    images = open_images(tmp_path)
    assert images.names == ["a/000/s", "b/000/s"] and images.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("content", "label"),
    [
        ("\ufeffmoss\r\n".encode(), "moss"),
        ("moss".encode("utf-16"), "moss"),
        ("é\n".encode("cp1252"), "é"),
        ("e\u0301".encode(), "é"),
    ],
)
def test_labels_are_texts_in_any_encoding(tmp_path, content, label):
    tar(tmp_path / "a.tar", [("0.png", png(0)), ("0.cls", content)])
    assert open_images(tmp_path / "a.tar").label_names == [label]


@pytest.mark.parametrize("folder", ["", "train/"])
def test_folders_in_a_tar_that_are_no_classes_are_said(tmp_path, folder, caplog):
    names = [f"{folder}{name}" for name in ("cat/0.png", "dog/1.png")]
    tar(tmp_path / "a.tar", [(name, png(number)) for number, name in enumerate(names)])
    with caplog.at_level("INFO", logger="nearfar"):
        assert open_images(tmp_path / "a.tar").labels is None
    assert any("folders in a tar are neither classes nor splits" in m for m in caplog.messages)
