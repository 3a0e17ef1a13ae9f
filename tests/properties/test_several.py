"""Lists of files, and several sources: each gives what it gives alone."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from nearfar.data import open_images
from nearfar.data.table import printable
from tests.properties.given import folder_of, numbered_png, numbers_of, trees


def is_hidden(path):
    return any(part.startswith(".") or part == "__MACOSX" for part in path.split("/"))


@given(trees(endings=(".png", ".PNG")), st.randoms(use_true_random=False))
def test_a_list_of_files_keeps_its_order(paths, random):
    random.shuffle(paths)
    with folder_of({path: numbered_png(n) for n, path in enumerate(paths)}) as folder:
        images = open_images([folder / path for path in paths])
        assert numbers_of(images) == list(range(len(paths)))
        for path, name in zip(paths, images.names, strict=True):
            assert printable(path).endswith(name)  # from the folder on that holds all of them
        assert len(set(images.names)) == len({*map(printable, paths)})


def classes_of(images):
    """The class of each image by its name, None for none."""
    if images.labels is None:
        return [None] * len(images)
    names = images.class_names
    return [None if n < 0 else names[n] if names else str(n) for n in images.labels.tolist()]


@given(trees(most=6, endings=(".png",)), trees(most=6, endings=(".png",)), st.booleans())
def test_two_sources_are_each_one_alone(first, second, same):
    second = first if same else second
    assume(not any(map(is_hidden, [*first, *second])))
    files = {f"one/{path}": numbered_png(n) for n, path in enumerate(first)}
    files |= {f"two/{path}": numbered_png(100 + n) for n, path in enumerate(second)}
    with folder_of(files) as folder:
        parts = [folder / "one", folder / "two"]
        alone = [open_images(part, split="all") for part in parts]
        both = open_images(list(map(str, parts)), split="all")
        assert numbers_of(both) == [n for images in alone for n in numbers_of(images)]
        pixels = np.concatenate([images.pixels.numpy() for images in alone])
        assert np.array_equal(both.pixels.numpy(), pixels)
        assert len(set(both.names)) >= max(len(set(images.names)) for images in alone)
        own = [name for images in alone for name in images.names]
        assert all(name.endswith(end) for name, end in zip(both.names, own, strict=True))
        if all(images.labels is not None for images in alone):
            assert classes_of(both) == [name for images in alone for name in classes_of(images)]
        else:
            assert both.labels is None
