"""Broken .npy and .npz files: one line each, no pickle loaded, no memory taken for what a header
only claims.
"""

import io
import struct
import zipfile

import numpy as np
import pytest
import torch

from nearfar.data import list_splits, open_images, resources
from nearfar.evaluation.vectors import find_vectors

IMAGES = np.arange(4 * 5 * 5, dtype=np.uint8).reshape(4, 5, 5)


def saved(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def header(text, content=b"\0" * 100):
    """A .npy file with a header of this text."""
    text += " " * (118 - len(text) - 1) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + content


def claims(shape, kind="|u1"):
    return header(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}")


BROKEN = {
    "empty": (b"", ""),
    "text": (b"images, honestly", ""),
    "cut": (saved(IMAGES)[:150], ""),
    "cut header": (saved(IMAGES)[:40], ""),
    "huge": (claims((10**12, 100, 100)), ""),
    "21 digits": (claims((10**21, 8, 8)), ""),
    "negative": (claims((-4, 5, 5)), ""),
    "no shape": (header("{'descr': '|u1'}"), ""),
    "code": (header("__import__('os').abort()"), ""),
    "objects": (
        saved(np.array([{"a": 1}], object), allow_pickle=True),
        "Python objects|Object arrays",
    ),
    "fields": (saved(np.zeros((4, 5, 5), [("a", "u1")])), "must be uint8"),
    "longdouble": (saved(IMAGES.astype(np.longdouble)), "must be uint8 .*float128"),
    "complex": (saved(IMAGES.astype(complex)), "must be uint8"),
    "texts": (saved(IMAGES.astype(str)), "must be uint8"),
    "no images": (saved(IMAGES[:0]), "must be an array"),
    "vectors": (saved(IMAGES[0]), "must be an array"),
    "version 9": (b"\x93NUMPY\x09\x00" + saved(IMAGES)[8:], ""),
}


@pytest.mark.parametrize("inside", [False, True], ids=["npy", "npz"])
@pytest.mark.parametrize(("content", "words"), BROKEN.values(), ids=BROKEN)
def test_a_broken_array_is_one_line(tmp_path, content, words, inside, peak):
    path = tmp_path / ("a.npz" if inside else "a.npy")
    path.write_bytes(content)
    if inside:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("images.npy", content)
    with pytest.raises(ValueError, match=f"cannot use '{path}': .*{words}") as error:
        open_images(path)
    assert peak() < 20_000_000 and "\n" not in str(error.value)


@pytest.mark.parametrize("content", [claims((10**9,)), saved(np.arange(4))])
@pytest.mark.parametrize("read", [open_images, find_vectors], ids=["images", "vectors"])
def test_no_memory_is_taken_for_what_an_archive_claims(tmp_path, read, content, peak):
    """A header of labels that claims a gigabyte, and an entry that does."""
    path = tmp_path / "a.npz"
    arrays = {"images": saved(IMAGES), "embedding": saved(np.ones((4, 8))), "labels": content}
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", array)
        if content == saved(np.arange(4)):
            entry = archive.getinfo("labels.npy")
            entry.file_size = entry.compress_size = 2 * 10**9
    with pytest.raises(ValueError, match="'labels' claims") as error:
        read(path, label_column="labels")
    assert peak() < 20_000_000 and "\n" not in str(error.value)


def test_a_broken_npz_is_one_line(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, images=IMAGES, labels=np.arange(4))
    whole = path.read_bytes()
    middle = bytearray(whole)
    middle[60:90] = b"\xff" * 30
    for content in (whole[: len(whole) // 2], whole[:4], bytes(middle), b""):
        path.write_bytes(content)
        for ask in (open_images, list_splits):
            if content != bytes(middle) or ask is open_images:
                with pytest.raises(ValueError, match=f"cannot use '{path}': ") as error:
                    ask(path)
                assert "\n" not in str(error.value)


def test_a_name_does_not_matter(tmp_path):
    (tmp_path / "a.npz").write_bytes(saved(IMAGES))
    np.savez(tmp_path / "b.npz", images=IMAGES)
    (tmp_path / "b.npz").rename(tmp_path / "b.npy")
    for name in ("a.npz", "b.npy"):
        assert (open_images(tmp_path / name).pixels[:, 0].numpy() == IMAGES).all()
        assert list_splits(tmp_path / name) == []


def test_an_array_larger_than_the_free_memory_is_refused_unread(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros((10, 100, 100), np.uint8))
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("1000000")  # as much as a machine that is not idle has
    (tmp_path / "memory.current").write_text("920000")
    (tmp_path / "memory.stat").write_text("anon 700000\ninactive_file 19000\n")
    with pytest.raises(ValueError, match=r"'images' needs 9.33e-05 GiB.*9.22e-05"):
        open_images(tmp_path / "a.npz")
    (tmp_path / "memory.stat").write_text("anon 700000\ninactive_file 21000\n")
    assert len(open_images(tmp_path / "a.npz")) == 10


def test_odd_arrays_in_memory():
    assert (open_images(IMAGES[::-1]).pixels[:, 0].numpy() == IMAGES[::-1]).all()
    assert (
        open_images(torch.eye(5, dtype=torch.bfloat16)[None]).gather(torch.tensor([0]))[0, 0]
        == torch.eye(5)
    ).all()
    for wrong in (
        torch.eye(5)[None].to_sparse(),
        IMAGES.astype(np.longdouble),
        IMAGES.astype(object),
    ):
        with pytest.raises(ValueError, match="images must be"):
            open_images(wrong)
    with pytest.raises(ValueError, match=r"labels must lie below 2\*\*63"):
        open_images((IMAGES, np.full(4, 2**63, np.uint64)))


def test_arrays_that_may_be_images_and_are_not_read_are_counted(tmp_path):
    more = {"extra_images": IMAGES, "masks": IMAGES[..., None], "ids": np.arange(4)}
    np.savez(tmp_path / "a.npz", x_train=IMAGES, y_train=np.arange(4), **more)
    images = open_images(tmp_path / "a.npz")
    assert images.line.endswith("4 images read, 2 left out: 2 arrays under other keys")
    assert [name for name, _ in images.skipped] == ["extra_images", "masks"]


@pytest.mark.parametrize("labels", [np.eye(4, 3) + 1, np.array([0.5, 1, 2, 3])])
def test_what_is_no_label_under_a_usual_key_is_said_and_refused_if_asked_for(
    tmp_path, labels, caplog
):
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=labels)
    with caplog.at_level("INFO", logger="nearfar"):
        images = open_images(tmp_path / "a.npz")
    assert len(images) == 4 and images.labels is None
    assert any("no labels of" in line and "are used" in line for line in caplog.messages)
    with pytest.raises(ValueError, match="labels must be"):
        open_images(tmp_path / "a.npz", label_column="labels")
