"""Results of two data sets: each row names its image of its set, with its class and its split, and
what is read and what is left out is what there is.
"""

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import nearfar
from tests.properties.given import FEW, folder_of, numbered_png

SETS = ("one", "two")
CLASSES = st.sampled_from(["ant", "bee", "__cat__", "é"])
NAMES = st.sampled_from(["a", "b", "scan.1", "scan.2", "x y", "Ä"])
DAMAGED = st.sampled_from([b"", numbered_png(1)[:40]])


@st.composite
def data_sets(draw):
    """The files of two data sets, whose names meet: numbers of images, of which some stand in both
    sets and in several splits, and damaged files as bytes.
    """
    with_splits, files = draw(st.booleans()), {}
    for top in SETS:
        splits = ["train", "test"] if with_splits else [""]
        places = [(split, kind) for split in splits for kind in ("ant", "bee")]
        places += draw(st.lists(st.tuples(st.sampled_from(splits), CLASSES), max_size=4))
        for split, kind in places:
            name = draw(NAMES)
            path = "/".join(filter(None, [top, split, kind, name + ".png"]))
            files[path] = draw(st.integers(0, 12))
        for name in draw(st.sets(NAMES, max_size=2)):
            path = "/".join(filter(None, [top, splits[0], "ant", name + ".cut.png"]))
            files[path] = draw(DAMAGED)
    return files


def written(files):
    """The files in a folder, numbers as images that look like no other."""
    return folder_of(
        {
            path: content if isinstance(content, bytes) else numbered_png(content, 16)
            for path, content in files.items()
        }
    )


def embedded(folder, *tops):
    """The images of one or both sets with their pixels as features."""
    pixels = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(16), torch.nn.Flatten())
    return nearfar.embed([folder / top for top in tops], split="all", encoder=pixels)


def whole(files, top=""):
    """The paths of images, of one set or of both."""
    return [path for path in files if path.startswith(top) and isinstance(files[path], int)]


def class_of(path):
    return path.split("/")[-2]


def split_of(path):
    parts = path.split("/")
    return parts[1] if len(parts) == 4 else ""


@FEW
@given(data_sets())
def test_embeddings_of_two_sets_are_those_of_their_images(files):
    with written(files) as folder:
        both = embedded(folder, *SETS)
        paths = [str(Path(path).relative_to(folder)) for path in both.paths]
        assert sorted(paths) == sorted(whole(files))
        assert len(set(both.images.names)) == len(paths)
        assert all(path.endswith(name) for path, name in zip(paths, both.images.names, strict=True))
        assert len(both.images.skipped) == len(files) - len(paths)
        names = both.images.class_names
        assert [names[n] for n in both.images.labels.tolist()] == list(map(class_of, paths))
        for path, features in zip(paths, both.features, strict=True):
            pixels = np.asarray(Image.open(folder / path)).ravel()
            assert np.corrcoef(pixels, features)[0, 1] > 0.8  # two different ones: 0 to 0.3


@FEW
@given(data_sets())
def test_copies_among_two_sets_are_the_images_that_are_alike(files):
    with written(files) as folder, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # where pages are written
        copies = embedded(folder, *SETS).duplicates()
        groups, expected = defaultdict(set), defaultdict(set)
        for group, kind, path in zip(copies["group"], copies["kind"], copies["path"], strict=True):
            if kind in ("first", "same file"):
                groups[group].add(str(Path(path).relative_to(folder)))
        for path in whole(files):
            expected[files[path]].add(path)
        planted = [paths for paths in expected.values() if len(paths) > 1]
        assert sorted(map(sorted, groups.values())) == sorted(map(sorted, planted))


@FEW
@given(data_sets())
def test_problems_of_two_sets_name_the_class_and_the_split_of_the_image(files):
    with written(files) as folder, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        photos = embedded(folder, *SETS)
        checked, problems = photos.check(), defaultdict(set)
        paths = {
            name: str(Path(path).relative_to(folder))
            for name, path in zip(photos.images.names, photos.paths, strict=True)
        }
        keys = ("problem", "name", "split", "label", "other")
        for problem, name, split, label, other in zip(*map(checked.get, keys), strict=True):
            path = paths.get(name, name)
            problems[problem].add(path)
            if problem != "unreadable":
                assert (split, label) == (split_of(path), class_of(path))
            if problem in ("leak", "copies disagree"):
                assert files[path] == files[paths[other]]
        images, copies = whole(files), defaultdict(list)
        for path in images:
            copies[files[path]].append(path)
        damaged = sorted(files.keys() - {*images})
        unreadable = sorted(problems["unreadable"])
        assert len(damaged) == len(unreadable)
        assert all(any(path.endswith(name) for path in damaged) for name in unreadable)
        assert problems["leak"] == {
            path
            for path in images
            if split_of(path) == "test" and "train" in map(split_of, copies[files[path]])
        }
        contradicted = {n for n in copies if len({*map(class_of, copies[n])}) > 1}
        assert {files[path] for path in problems["copies disagree"]} == contradicted
        counts = Counter(map(class_of, images))
        classes = checked.classes
        assert dict(zip(classes["label"], classes["images"], strict=True)) == counts
        pairs = Counter((class_of(path), split_of(path)) for path in images)
        for split in {*map(split_of, images)} & {*classes}:
            assert classes[split] == [pairs[kind, split] for kind in classes["label"]]


def bounds_of_nearest(photos, folder, train, test):
    """Count the test images to which the nearest training image gives the right class: at least,
    and at most, where images of two classes are equally near.
    """
    unit = photos.features.double().numpy()
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    row_of = {str(Path(path).relative_to(folder)): n for n, path in enumerate(photos.paths)}
    kept = unit[[row_of[path] for path in train]]
    right = []
    for path in test:
        similar = kept @ unit[row_of[path]]
        nearest = {class_of(train[n]) for n in np.flatnonzero(similar > similar.max() - 1e-5)}
        right.append((nearest == {class_of(path)}, class_of(path) in nearest))
    return [sum(column) for column in zip(*right, strict=True)]


@FEW
@given(files=data_sets(), swapped=st.booleans())
def test_accuracies_of_two_sets_are_those_of_their_nearest_images(files, swapped, caplog):
    tops = SETS[::-1] if swapped else SETS
    paths = whole(files)
    train = [path for path in paths if split_of(path) == "train"]
    test = [path for path in paths if split_of(path) == "test"]
    with written(files) as folder:
        photos = embedded(folder, *tops)
        caplog.clear()
        try:
            measured = photos.evaluate(protocol=["knn_1"], baselines=False)
        except ValueError as error:  # a share of few images
            assert not train and "too few" in str(error) and "\n" not in str(error)
            return
        on, accuracy = measured.on, measured["at_hand"]["knn_1"]
        assert on.train_images + on.test_images == len(paths)
        assert on.classes == len({*map(class_of, paths)})
        assert on.data == " + ".join(tops)
        if not train:
            return
        assert (on.train_images, on.test_images) == (len(train), len(test))
        least, most = bounds_of_nearest(photos, folder, train, test)
        assert least <= round(accuracy * len(test)) <= most
        leaks = sum(files[path] in {files[other] for other in train} for path in test)
        assert (f"{leaks} of {len(test)} test images" in caplog.text) == (leaks > 0)
        of_train, of_test = (Counter(map(class_of, part)) for part in (train, test))
        largest = [kind for kind, count in of_train.items() if count == max(of_train.values())]
        assert round(on.largest * len(test)) in {of_test[kind] for kind in largest}
