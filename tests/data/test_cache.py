"""The pixel cache: built once, found by content, never half read."""

import os
import pickle
import shutil
import signal
import threading
import time

import filelock
import pyarrow
import pyarrow.parquet
import pytest
import torch
from filelock import FileLock

from nearfar.data import cache, open_images
from nearfar.data.table import cache_folder
from tests.pictures import tar


@pytest.fixture
def folder(tmp_path, paint):
    for i in range(5):
        paint(tmp_path / "pics" / f"{i}.png", i)
    return tmp_path / "pics"


def entries():
    return [path for path in cache_folder().iterdir() if path.is_dir()]


def test_nothing_but_the_cache_folder_is_written(folder, tmp_path, monkeypatch):
    before = sorted(os.listdir(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    open_images(folder, cache_dir=tmp_path / "here")
    assert sorted(os.listdir(folder)) == before
    assert (
        not (tmp_path / "home").exists()
        and not (tmp_path / "hf").exists()
        and not cache_folder().exists()
    )
    written = sorted(
        path.name
        for path in (tmp_path / "here").rglob("*")
        if path.is_file() and path.suffix != ".lock"
    )
    assert [name for name in written if len(name) < 32] == [
        "digests.arrow",
        "entry.json",
        "pixels.u8",
    ]


@pytest.mark.parametrize("change", ["content", "hidden", "time", "new", "gone", "size", "channels"])
def test_any_change_is_noticed(folder, paint, decodes, change):
    before = open_images(folder)
    count = len(decodes)
    options = {"size": {"image_size": 6}, "channels": {"channels": 1}}.get(change, {})
    if change == "content":
        paint(folder / "2.png", 99)
    if change == "hidden":  # same size, same time
        content, stat = (folder / "3.png").read_bytes(), os.stat(folder / "2.png")
        (folder / "2.png").write_bytes(content[: stat.st_size].ljust(stat.st_size, b"\0"))
        os.utime(folder / "2.png", ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert os.stat(folder / "2.png").st_size == stat.st_size
    if change == "time":
        os.utime(folder / "2.png", ns=(1, 1))
    if change == "new":
        paint(folder / "9.png", 9)
    if change == "gone":
        (folder / "4.png").unlink()
    after = open_images(folder, **options)
    expected = {
        "content": 1,
        "hidden": 0,
        "time": 0,
        "new": 1,
        "gone": 0,
        "size": 5,
        "channels": 5,
    }[change]
    assert expected <= len(decodes) - count <= expected + 1  # one more to find out the size
    same = after.pixels.shape == before.pixels.shape and torch.equal(after.pixels, before.pixels)
    assert same == (change == "time")


def flip(path, place):
    """Change one bit."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_damaged_caches_are_rebuilt(folder, decodes):
    pixels = open_images(folder).pixels.clone()
    place = entries()[0]
    for damage in (
        lambda: (place / "pixels.u8").write_bytes(b"short"),
        lambda: (place / "pixels.u8").unlink(),
        lambda: (place / "entry.json").write_text('{"half'),
        lambda: flip(place / "pixels.u8", 700),
        lambda: os.truncate(place / "pixels.u8", 5 * 3 * 8 * 8 - 1),
    ):
        damage()
        count = len(decodes)
        assert (open_images(folder).pixels == pixels).all()
        assert len(decodes) > count


def test_of_two_builders_at_once_one_waits_for_the_other(folder, monkeypatch, decodes):
    slow = cache.decode
    monkeypatch.setattr(cache, "decode", lambda *args: time.sleep(0.02) or slow(*args))
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(open_images(folder))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3 and len(decodes) <= 6 and len(entries()) == 1
    assert all((images.pixels == results[0].pixels).all() for images in results)


def test_order_does_not_depend_on_the_number_of_workers(tmp_path, paint):
    painted = [paint(tmp_path / "p" / f"{i:03d}.png", i, size=5, mode="L") for i in range(150)]
    for workers in (1, 4):
        images = open_images(
            tmp_path / "p", workers=workers, cache_dir=tmp_path / f"cache{workers}"
        )
        assert all(
            (images.pixels[i, 0].numpy() == pixels).all() for i, pixels in enumerate(painted)
        )


def test_an_unwritable_cache_folder_is_one_line_that_says_what_to_do(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match=r"cannot write .*XDG_CACHE_HOME"):
        open_images(folder, cache_dir=tmp_path / "file" / "below")

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.os, "fsync", full)
    with pytest.raises(ValueError, match=r"No space left .*XDG_CACHE_HOME"):
        open_images(folder)
    assert entries() == []


def test_ctrl_c_ends_the_decoding_at_the_next_image(folder, monkeypatch, paint):
    for i in range(25):
        paint(folder / f"more{i}.png", i)
    real, calls = cache.decode, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        return real(*args)

    monkeypatch.setattr(cache, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_images(folder, workers=1, image_size=8, channels=3)
    assert len(calls) < 15  # of a chunk of 30 images
    assert entries() == []


def test_pixels_beyond_the_limit_are_not_kept(folder, decodes):
    whole = open_images(folder)
    for options in ({"cache": False}, {"cache_limit": 5 * 3 * 8 * 8 - 1, "label_column": None}):
        images = open_images(folder, cache_dir=folder.parent / str(len(options)), **options)
        assert not images.stored and len(images) == 5
        assert (images.mean, images.std) == (whole.mean, whole.std)
        assert (images.gather(torch.tensor([3, 1])) == whole.pixels[[3, 1]]).all()
        with pytest.raises(ValueError, match="Batches of crops"):
            images.pixels  # noqa: B018
        count = len(decodes)
        assert not open_images(
            folder, cache_dir=folder.parent / str(len(options)), **options
        ).stored
        assert len(decodes) == count  # what was found out is kept
        again = open_images(folder, cache_dir=folder.parent / str(len(options)))
        assert again.stored and (again.pixels == whole.pixels).all()


def labelled(folder):
    rows = "".join(f"{i}.png,{'ab'[i % 2]},{5 - i}\n" for i in range(5))
    (folder / "metadata.csv").write_text(f"file_name,kind,rank\n{rows}")


def as_table(folder):
    labelled(folder)
    return folder / "metadata.csv"


def as_parquet(folder):
    images = [{"bytes": (folder / f"{i}.png").read_bytes(), "path": None} for i in range(5)]
    columns = {"img": images, "kind": list("ababa"), "rank": [5, 4, 3, 2, 1]}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder.parent / "all.parquet")
    return folder.parent / "all.parquet"


def as_tar(folder):
    members = []
    for i in range(5):
        members.append((f"{i}.png", (folder / f"{i}.png").read_bytes()))
        members += [(f"{i}.kind", b"ababa"[i : i + 1]), (f"{i}.rank", f"{5 - i}".encode())]
    tar(folder.parent / "all.tar", members)
    return folder.parent / "all.tar"


@pytest.mark.parametrize(
    "kind", [as_table, as_parquet, as_tar, lambda folder: labelled(folder) or folder]
)
def test_another_label_column_decodes_nothing(kind, folder, decodes):
    source = kind(folder)
    pixels = open_images(source).pixels
    count = len(decodes)
    for _ in range(2):
        by_kind, by_rank = (
            open_images(source, label_column="kind"),
            open_images(source, label_column="rank"),
        )
        assert (by_kind.labels.tolist(), by_kind.class_names) == ([0, 1, 0, 1, 0], ["a", "b"])
        assert (by_rank.labels.tolist(), by_rank.class_names) == ([5, 4, 3, 2, 1], None)
        assert torch.equal(by_kind.pixels, pixels) and torch.equal(by_rank.pixels, pixels)
        with pytest.raises(ValueError, match=r"column 'sort'"):
            open_images(source, label_column="sort")
    assert len(decodes) == count and len(entries()) == 1


def test_metadata_labels_the_images_that_it_names(folder, decodes):
    open_images(folder)
    count = len(decodes)
    (folder / "metadata.csv").write_text("file_name,kind\n4.png,b\n1.png,a\n7.png,a\n")
    images = open_images(folder, label_column="kind")
    assert (
        len(images) == 5 and images.labels.tolist() == [-1, 0, -1, -1, 1] and len(decodes) == count
    )
    assert [name for name, _ in images.skipped] == ["7.png"]


def test_a_folder_that_was_copied_or_moved_is_found(folder, decodes):
    pixels = open_images(folder).pixels
    count = len(decodes)
    copy = shutil.copytree(folder, folder.parent / "copy", copy_function=shutil.copyfile)
    images = open_images(copy)
    assert torch.equal(images.pixels, pixels) and len(decodes) == count
    assert images.originals[0] == str(copy / "0.png")


@pytest.mark.parametrize("kind", [as_parquet, as_tar, lambda folder: folder])
def test_of_a_data_set_that_changed_only_what_is_new_is_decoded(kind, folder, paint, decodes):
    source = kind(folder)
    open_images(source, image_size=6, channels=3)
    count, used = len(decodes), cache.used.copy()
    cache.used.clear()  # as another process finds it
    (folder / "1.png").write_bytes((folder / "0.png").read_bytes())
    paint(folder / "2.png", 98)
    paint(folder / "3.png", 99, size=20)
    images = open_images(kind(folder), image_size=6, channels=3)
    assert len(decodes) == count + 2
    fresh = open_images(kind(folder), image_size=6, channels=3, cache_dir=folder.parent / "fresh")
    assert torch.equal(images.pixels, fresh.pixels) and (images.mean, images.std) == (
        fresh.mean,
        fresh.std,
    )
    assert len(entries()) == 1  # the state before is gone
    cache.used.update(used)


def test_beyond_its_limit_the_cache_drops_what_was_used_longest_ago(folder, decodes, monkeypatch):
    def bytes_held():
        return sum(cache.sizes(cache_folder()).values())

    monkeypatch.setattr(cache, "used", set())  # what other processes did is not in use here
    for size in (40, 41, 42):
        open_images(folder, image_size=size, channels=3)
    entry = bytes_held() / 3
    open_images(folder, image_size=40, channels=3)
    cache.used.clear()
    monkeypatch.setenv("NEARFAR_CACHE_BYTES", str(int(3.5 * entry)))
    open_images(folder, image_size=43, channels=3)
    assert bytes_held() < 3.5 * entry
    count = len(decodes)
    for size in (40, 42, 43):
        open_images(folder, image_size=size, channels=3)
    assert len(decodes) == count
    monkeypatch.setenv("NEARFAR_CACHE_BYTES", "1")
    kept = open_images(
        folder, image_size=41, channels=3
    )  # what this process uses stays, and what was just built
    assert len(decodes) == count + 5 and len(entries()) == 4
    assert len(pickle.loads(pickle.dumps(kept)).pixels) == 5
    monkeypatch.setenv("NEARFAR_CACHE_BYTES", "plenty")
    with pytest.raises(ValueError, match=r"^NEARFAR_CACHE_BYTES .*plenty"):
        open_images(folder)


def test_a_finished_cache_may_be_read_only(folder, monkeypatch):
    pixels = open_images(folder).pixels

    def refused(*args, **named):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", refused)
    monkeypatch.setattr(os, "replace", refused)
    monkeypatch.setattr(filelock, "FileLock", refused)
    assert torch.equal(open_images(folder).pixels, pixels)


def data_set(folder, name, **files):
    (folder / name).mkdir(parents=True)
    for file, size in files.items():
        (folder / name / file.replace("_", ".")).write_bytes(bytes(size))
    return folder / name


def test_only_data_sets_of_the_cache_are_counted_and_removed(tmp_path):
    first, second, killed = cache.key(1), cache.key(2), f".{cache.key(3)}.123.partial"
    data_set(tmp_path, first, entry_json=10, pixels_u8=100)
    data_set(tmp_path, second, entry_json=5)
    data_set(tmp_path, killed, pixels_u8=1000)
    others = [
        data_set(tmp_path, "runs", entry_json=1),
        data_set(tmp_path, cache.key(5)[:31], entry_json=1),
    ]
    (tmp_path / cache.key(6)).symlink_to(others[0])
    assert cache.sizes(tmp_path) == {
        tmp_path / first: 110,
        tmp_path / second: 5,
        tmp_path / killed: 1000,
    }
    assert cache.empty(tmp_path) == 1115
    assert cache.sizes(tmp_path) == {} and all(
        path.is_dir() and list(path.iterdir()) for path in others
    )


def test_what_is_being_built_stays(tmp_path):
    name = cache.key("photos")
    with FileLock(tmp_path / f"{name}.lock"):
        part = data_set(tmp_path, f".{name}.77.partial", pixels_u8=7)
        assert cache.empty(tmp_path) == 0 and part.is_dir()
    assert cache.empty(tmp_path) == 7 and not part.exists()
