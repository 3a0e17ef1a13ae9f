"""Copies among images that differ in little, and what of them is offered for removal."""

import os
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nearfar
from tests.commands.test_copies import frames
from tests.pictures import encoded
from tests.properties.given import FEW, folder_of, numbered_png
from tests.properties.test_tables import written


@FEW
@given(st.lists(st.integers(0, 3), min_size=2, max_size=6), st.sampled_from(["RGBA", "LA"]))
def test_white_drawings_on_transparent_ground_are_copies_where_they_are_the_same(numbers, mode):
    files = {}
    for n, number in enumerate(numbers):
        alpha = np.random.default_rng(number).integers(0, 2, (16, 16), dtype=np.uint8) * 255
        white = [np.full_like(alpha, 255)] * (len(mode) - 1)
        files[f"{n}.png"] = encoded(np.stack([*white, alpha], -1), compress_level=n)
    with folder_of(files) as folder, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # where pages are written
        copies = nearfar.duplicates(folder)
        groups = defaultdict(set)
        for group, kind, name in zip(copies["group"], copies["kind"], copies["name"], strict=True):
            if kind in ("first", "same file", "same pixels"):
                groups[group].add(numbers[int(name.removesuffix(".png"))])
    several = {number for number in numbers if numbers.count(number) > 1}
    assert sorted(groups.values(), key=min) == [{number} for number in sorted(several)]


def copies_in(source):
    """Groups of copies by the names of their images, and the paths that are offered for removal."""
    copies, groups = nearfar.duplicates(source), defaultdict(list)
    for group, kind, name in zip(copies["group"], copies["kind"], copies["name"], strict=True):
        if kind != "near-duplicate":
            groups[group].append(name)
    gone = [path for path, kept in zip(copies["path"], copies["kept"], strict=True) if not kept]
    return sorted(map(sorted, groups.values())), gone


FORMS = {"jpg": ("JPEG", {"quality": 90}), "webp": ("WEBP", {"quality": 90}), "bmp": ("BMP", {})}


@settings(FEW, max_examples=2 if settings.default.derandomize else FEW.max_examples)
@given(st.integers(12, 18), st.sets(st.integers(0, 9), max_size=4), st.sampled_from(sorted(FORMS)))
def test_copies_among_more_images_alike_than_are_looked_at_first_are_found(count, alone, ending):
    files, (form, options) = {}, FORMS[ending]
    copied = [n for n in range(count) if n not in alone]
    for n, frame in enumerate(frames(count, 64)):  # of a camera that does not move
        files[f"{n:02d}.png"] = encoded(frame)
        if n in copied:
            files[f"{n:02d}.{ending}"] = encoded(frame, form, **options)
    with folder_of(files) as folder, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        groups, _ = copies_in(folder)
    assert groups == [sorted([f"{n:02d}.{ending}", f"{n:02d}.png"]) for n in copied]


LINKS = st.sampled_from(["a link", "a hard link", "in a folder of links", "in a table", "./"])


@st.composite
def names_of_files(draw):
    """Pictures of files, of which some are equal, and further names for some of them."""
    pictures = draw(st.lists(st.integers(0, 3), min_size=2, max_size=5))
    further = draw(st.lists(st.tuples(st.integers(0, len(pictures) - 1), LINKS), max_size=5))
    return pictures, further


@FEW
@given(names_of_files(), st.booleans())
def test_what_is_removed_as_offered_leaves_every_picture(named, by_table):
    """However often a file is named: removing "the copy" of a file must not lose the file."""
    pictures, further = named
    files = {f"photos/{n}.png": numbered_png(number, 16) for n, number in enumerate(pictures)}
    with folder_of(files) as top, pytest.MonkeyPatch.context() as patch:
        patch.chdir(top)
        photos, rows = top / "photos", [f"{n}.png" for n in range(len(pictures))]
        (top / "door").mkdir()
        for name in rows:
            (top / "door" / name).symlink_to(photos / name)
        for k, (n, kind) in enumerate(further):
            target, name = photos / f"{n}.png", f"further {k}.png"
            if kind == "a link":
                (photos / name).symlink_to(target)
            elif kind == "a hard link":
                (photos / name).hardlink_to(target)
            rows.append(
                {"a link": name, "a hard link": name, "in a table": target.name}.get(
                    kind, f"./{target.name}" if kind == "./" else f"../door/{target.name}"
                )
            )
        (photos / "all.csv").write_bytes(written([(row,) for row in rows], ["path"]))
        linked = any(kind == "in a folder of links" for _, kind in further)
        folders = [photos, top / "door"] if linked else photos
        groups, gone = copies_in(photos / "all.csv" if by_table else folders)
        several = {number for number in pictures if pictures.count(number) > 1}
        assert len(groups) == len(several)
        assert len(gone) == sum(map(pictures.count, several)) - len(several)
        for path in gone:
            os.unlink(path)
        left = {
            path.read_bytes() for path in photos.glob("*.png") if path.exists()
        }  # of a link to a removed file nothing is left
        assert left == {numbered_png(number, 16) for number in pictures}
