"""Folders with any names: no image is lost, counted twice or called by the name of another."""

import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st

from nearfar.data import list_splits, open_images, scan
from nearfar.data.table import printable
from tests.properties.given import NAMES, folder_of, numbered_png, numbers_of, trees


def hidden(path):
    return any(part.startswith(".") or part == "__MACOSX" for part in path.split("/"))


def opened(folder, paths, **options):
    """The images of a folder; None, with one line, where all that it holds is hidden."""
    if all(map(hidden, paths)):
        try:
            open_images(folder, **options)
        except ValueError as error:
            assert "holds no images" in str(error) and len(str(error).splitlines()) == 1
            return None
        raise AssertionError("hidden images were read")
    return open_images(folder, **options)


@given(trees())
def test_every_image_is_read_once_under_its_own_name(paths):
    with folder_of({path: numbered_png(n) for n, path in enumerate(paths)}) as folder:
        images = opened(folder, paths, split="all")
        if images is None:
            return
        seen = [n for n, path in enumerate(paths) if not hidden(path)]
        assert sorted(numbers_of(images)) == seen and images.skipped == []
        assert images.names == [printable(paths[n]) for n in numbers_of(images)]
        assert images.table["name"].to_pylist() == images.names
        assert open_images(folder, split="all").names == images.names  # from the cache


@given(trees(), st.data())
def test_read_and_left_out_are_what_was_found(paths, data):
    damaged = data.draw(st.sets(st.sampled_from(range(len(paths)))))
    files = {path: numbered_png(n)[: 40 if n in damaged else None] for n, path in enumerate(paths)}
    visible = [n for n, path in enumerate(paths) if not hidden(path)]
    with folder_of(files) as folder:
        for split in [None, "all"]:
            try:
                images = open_images(folder, split=split)
            except ValueError as error:
                assert len(str(error).splitlines()) == 1
                if split == "all":
                    assert set(visible) <= damaged
                continue
            left = [name for name, _ in images.skipped]
            whole = sorted([*images.names, *left])
            if split == "all":
                assert whole == sorted(printable(paths[n]) for n in visible)
                assert set(numbers_of(images)) == set(visible) - damaged
            else:
                assert len(set(numbers_of(images))) == len(images)
                assert set(whole) <= {printable(paths[n]) for n in visible}


@given(trees(most=12))
def test_splits_share_no_image_and_lose_none(paths):
    with folder_of({path: numbered_png(n) for n, path in enumerate(paths)}) as folder:
        if opened(folder, paths) is None:
            return
        visible = {n for n, path in enumerate(paths) if not hidden(path)}
        splits, read = list_splits(folder), []
        for split in splits or ["all"]:
            images = open_images(folder, split=split)
            read += numbers_of(images)
            others = [name for name, why in images.skipped if why.startswith("in none of")]
        assert len(set(read)) == len(read)
        assert len(read) + len(others) == len(visible)
        assert len(scan(folder, split="all")) == len(visible)


TRAIN = st.sampled_from(["train", "Train", "training", "train_images", "train2017"])
OTHER = st.sampled_from(["test", "Testing", "val", "validation", "dev", "val2017"])


@given(TRAIN, OTHER, st.lists(NAMES, max_size=5, unique=True), st.booleans(), st.booleans())
def test_stray_files_are_in_no_split_and_change_none(train, other, strays, beside, in_classes):
    """At the root, and in one folder beside those of the splits."""
    classes = ["ant/", "bee/"] if in_classes else ["a", "b"]
    own = [f"{split}/{name}{n}.png" for split in (train, other) for name in classes for n in (0, 1)]
    paths = own + [f"{name}.png" for name in strays] + ["extra/0.png"] * beside
    with folder_of({path: numbered_png(n) for n, path in enumerate(paths)}) as folder:
        assert len(list_splits(folder)) == 2
        for split, first in ((None, 0), ("train", 0), (list_splits(folder)[1], 4)):
            images = open_images(folder, split=split)
            assert sorted(numbers_of(images)) == list(range(first, first + 4))
            left = {printable(path) for path in paths[8:] if not hidden(path)}
            assert {name for name, _ in images.skipped} == left
            assert all("in none of the splits" in why for _, why in images.skipped)


@given(trees())
@example(["e\u0301/a.png", "é/b.png", "x/c.png"])
def test_labels_are_the_class_folders(paths):
    with folder_of({path: numbered_png(n) for n, path in enumerate(paths)}) as folder:
        images = opened(folder, paths, split="all")
        if images is None or images.labels is None:
            return
        for n, label in zip(numbers_of(images), images.labels.tolist(), strict=True):
            folders = [unicodedata.normalize("NFC", part) for part in paths[n].split("/")[:-1]]
            if label >= 0:
                assert images.class_names[label] in map(printable, folders)
        assert images.class_names == sorted(set(images.class_names))
