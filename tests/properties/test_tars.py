"""Tars of any members: every image is read once or listed, and has its own label."""

import io
import tarfile

from hypothesis import given
from hypothesis import strategies as st

from nearfar.data import open_images
from tests.properties.given import folder_of, numbered_png, numbers_of, trees


def tar(members, form=tarfile.PAX_FORMAT):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as made:
        for name, content in members:
            about = tarfile.TarInfo(name)
            about.size = len(content)
            made.addfile(about, io.BytesIO(content))
    return file.getvalue()


def hidden(name):
    return any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))


FORMS = st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
KEYS = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="./\0"), min_size=1, max_size=8
)


@given(trees(endings=(".png", ".PNG", ".v2.png", ".jpg_large", "")), FORMS, st.data())
def test_every_member_is_an_image_once(names, form, data):
    names += data.draw(st.lists(st.sampled_from(names), max_size=3))  # joined tars name one twice
    members = [(name, numbered_png(n)) for n, name in enumerate(names)]
    seen = [n for n, name in enumerate(names) if not hidden(name)]
    with folder_of({"shard.tar": tar(members, form)}) as folder:
        try:
            images = open_images(folder / "shard.tar")
        except ValueError as error:
            assert not seen and len(str(error).splitlines()) == 1
            return
        assert numbers_of(images) == seen and images.skipped == []
        assert len(set(images.names)) == len(images)
        rows = images.originals
        assert [bytes(rows[place]) for place in range(len(images))] == [members[n][1] for n in seen]


@given(st.lists(KEYS, min_size=1, max_size=6, unique_by=lambda key: key.strip()), FORMS, st.data())
def test_labels_are_found_by_the_key_in_any_order(keys, form, data):
    members = [(f"{key}.png", numbered_png(n)) for n, key in enumerate(keys)]
    ending = data.draw(st.sampled_from(["cls", "CLS"]))
    members += [(f"{key}.{ending}", f"class {n % 3}".encode()) for n, key in enumerate(keys)]
    members = data.draw(st.permutations(members))
    with folder_of({"shard.tar": tar(members, form)}) as folder:
        images = open_images(folder / "shard.tar")
        assert sorted(numbers_of(images)) == list(range(len(keys))) and images.skipped == []
        labels = [images.class_names[label] for label in images.labels.tolist()]
        assert labels == [f"class {n % 3}" for n in numbers_of(images)]


@given(st.integers(1, 5), st.data())
def test_a_tar_that_is_cut_off_or_changed_gives_what_is_whole(count, data):
    content = bytearray(tar([(f"{n}.png", numbered_png(n)) for n in range(count)]))
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    with folder_of({"shard.tar": bytes(content)}) as folder:
        try:
            images = open_images(folder / "shard.tar", split="all")
        except ValueError as error:
            assert len(str(error).splitlines()) == 1
            return
        assert len(images) <= count
        assert all(len(line.splitlines()) == 1 for entry in images.skipped for line in entry)
