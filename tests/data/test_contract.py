"""One contract over all sources: the same images, in whatever form they come, are the same images.

A new kind of source needs an entry in KINDS: how images are written in its form, what it calls
them, and what it can hold. Expected values come from PIL, hashlib and the images as they were made,
never from another source. Every image has pixels that no other one has, which say which one it is.
"""

import csv
import hashlib
import io
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

import nearfar
from nearfar.data import list_splits, open_images, open_stream, scan
from tests.pictures import encoded, noise, tar

SIZE = 16
CLASSES = {"ant": 8, "bee": 3, "cat": 1}  # images of each
TEST = {3, 6, 9, 11}  # numbers of the images in the split "test", where a source has splits
SHARD = 2  # images in the first of two shards


@dataclass(frozen=True)
class Item:
    """An image: its number, what it is called, its class and split ("": none), and its file."""

    number: int
    label: str
    split: str
    content: bytes

    @property
    def stem(self):
        return f"image {self.number:02d}"

    @property
    def picture(self):
        return Image.open(io.BytesIO(self.content))

    def fitted(self, size=SIZE, channels=3):
        """Its pixels by PIL: the centre square, resized; [channels, size, size]."""
        image = self.picture.convert("L" if channels == 1 else "RGB")
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        square = image.crop((left, top, left + side, top + side))
        pixels = np.asarray(square.resize((size, size), Image.Resampling.BICUBIC))
        return pixels.reshape(size, size, channels).transpose(2, 0, 1)


def made(divided=False, draw=lambda number: noise(number, SIZE)):
    """Twelve images of unequal classes, in the order of their classes; in two splits or in none."""
    labels = [label for label, count in CLASSES.items() for _ in range(count)]
    return [
        Item(
            number,
            label,
            ("test" if number in TEST else "train") if divided else "",
            encoded(Image.fromarray(draw(number))),
        )
        for number, label in enumerate(labels)
    ]


def parts_of(items):
    return {split: [item for item in items if item.split == split] for split in splits_of(items)}


def splits_of(items):
    return list(dict.fromkeys(item.split for item in items))


def write(items, root, place):
    for item in items:
        path = root / place(item)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(item.content)
    return root


# how each kind is made


def below(item):
    return f"{item.split}/" if item.split else ""


def folder_of_classes(folder, items):
    return write(
        items, folder / "photos", lambda item: f"{below(item)}{item.label}/{item.stem}.png"
    )


def flat_folder(folder, items):
    return write(items, folder / "photos", lambda item: f"{below(item)}{item.stem}.png")


def nested_folder(folder, items):
    return write(items, folder / "photos", lambda item: of_nested(item, None))


def folder_with_metadata(folder, items):
    flat_folder(folder, items)
    lines = [json.dumps({"file_name": f"{below(i)}{i.stem}.png", "kind": i.label}) for i in items]
    (folder / "photos" / "metadata.jsonl").write_text("\n".join(lines))
    return folder / "photos"


def files(folder, items):
    flat_folder(folder, items)
    return [folder / "photos" / f"{item.stem}.png" for item in items]


def two_folders(folder, items):
    """The one has the images of even numbers."""
    for rest, name in enumerate(("even", "odd")):
        own = [item for item in items if item.number % 2 == rest]
        write(own, folder / name, lambda item: f"{below(item)}{item.label}/{item.stem}.png")
    return [folder / "even", folder / "odd"]


def path_table(folder, items, ending):
    write(items, folder, lambda item: f"files/{item.stem}.png")
    columns = {
        "path": [f"files/{item.stem}.png" for item in items],
        "label": [i.label for i in items],
    }
    if items[0].split:
        columns["split"] = [item.split for item in items]
    path = folder / f"table.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table(columns), path)
        return path
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if ending == "tsv" else ",")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def rows_of(items, column="label"):
    images = [{"bytes": item.content, "path": f"{item.stem}.png"} for item in items]
    return pa.table({"image": images, column: [item.label for item in items]})


def parquet_file(folder, items):
    pq.write_table(rows_of(items), folder / "images.parquet")
    return folder / "images.parquet"


def parquet_shards(folder, items):
    """Two shards of each split."""
    (folder / "shards").mkdir()
    for split, own in parts_of(items).items():
        for number, part in enumerate((own[:SHARD], own[SHARD:])):
            name = f"{split or 'data'}-{number:05d}-of-00002.parquet"
            pq.write_table(rows_of(part, "kind"), folder / "shards" / name)
    return folder / "shards"


def hugging_face(folder, items):
    return datasets.Dataset(rows_of(items)).cast_column("image", datasets.Image())


def hugging_face_splits(folder, items):
    return datasets.DatasetDict(
        {s: hugging_face(folder, own) for s, own in parts_of(items).items()}
    )


def members(items):
    for item in items:
        yield f"{item.stem}.png", item.content
        yield f"{item.stem}.cls", item.label.encode()


def one_tar(folder, items):
    tar(folder / "images.tar", members(items))
    return folder / "images.tar"


def tars(folder, items):
    for split, own in parts_of(items).items():
        for number, part in enumerate((own[:SHARD], own[SHARD:])):
            tar(folder / "tars" / f"{split or 'data'}-{number:04d}.tar", members(part))
    return folder / "tars"


def stacked(items):
    return np.stack([np.asarray(item.picture) for item in items])


def npy(folder, items):
    np.save(folder / "images.npy", stacked(items))
    return folder / "images.npy"


def npz(folder, items):
    arrays = {}
    for split, own in parts_of(items).items():
        ending = split and f"_{split}"
        arrays[f"images{ending}"] = stacked(own)
        arrays[f"labels{ending}"] = np.array([item.label for item in own])
    np.savez(folder / "images.npz", **arrays)
    return folder / "images.npz"


def array(folder, items):
    return stacked(items)


def tensor(folder, items):
    """Channels first."""
    planes = torch.from_numpy(stacked(items))
    return planes.permute(0, 3, 1, 2) if planes.ndim == 4 else planes[:, None]


def images_and_labels(folder, items):
    return stacked(items), [item.label for item in items]


class Pairs(Dataset):
    """A torch Dataset of (PIL image, label)."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        return self.items[number].picture, self.items[number].label


def torch_dataset(folder, items):
    return Pairs(items)


def list_of_pictures(folder, items):
    return [item.picture for item in items]


class Elsewhere:
    """A source from outside the package."""

    def __init__(self, items):
        self.items = items

    def scan(self):
        columns = {"label": [item.label for item in self.items]}
        columns["split"] = [item.split for item in self.items]
        return pa.table({"key": range(len(self.items)), **columns})

    def read(self, rows):
        return (self.items[key].content for key in rows["key"].to_pylist())


def elsewhere(folder, items):
    return Elsewhere(items)


def opened_already(folder, items):
    return open_images(folder_of_classes(folder, items), split="all")


@dataclass(frozen=True)
class Kind:
    """make(folder, items) is the source, and name(item, position) what it calls an image.

    files: its images are encoded and may each have a size of their own. singly: so may those of
    objects that are read one by one. path: a run finds it again. options: with which it is opened.
    """

    make: Callable[[Path, list[Item]], Any]
    name: Callable[[Item, int], str]
    labels: bool = True
    splits: bool = True
    files: bool = True
    singly: bool = True
    path: bool = True
    options: dict[str, str] = field(default_factory=dict)


def numbered(item, position):
    """Its position in its split."""
    return f"{below(item)}{position:06d}"


def of_class(item, position):
    return f"{below(item)}{item.label}/{item.stem}.png"


def of_file(item, position):
    return f"{below(item)}{item.stem}.png"


def of_nested(item, position):
    return f"{below(item)}{item.label}/{item.number % 2}/{item.stem}.png"


def of_table(item, position):
    return f"{below(item)}files/{item.stem}.png"


def of_tar(item, position):
    shard = f"{item.split or 'data'}-{int(position >= SHARD):04d}"
    return f"{below(item)}{shard}/{item.stem}"


KINDS = {
    "folder of classes": Kind(folder_of_classes, of_class),
    "flat folder": Kind(flat_folder, of_file, labels=False),
    "nested folder": Kind(nested_folder, of_nested, labels=False),
    "folder with metadata": Kind(folder_with_metadata, of_file, options={"label_column": "kind"}),
    "files": Kind(files, of_file, labels=False, splits=False),
    "two folders": Kind(two_folders, of_class),
    "csv": Kind(partial(path_table, ending="csv"), of_table),
    "tsv": Kind(partial(path_table, ending="tsv"), of_table),
    "parquet of paths": Kind(partial(path_table, ending="parquet"), of_table),
    "parquet": Kind(parquet_file, of_file, splits=False),
    "parquet shards": Kind(parquet_shards, of_file, options={"label_column": "kind"}),
    "datasets.Dataset": Kind(hugging_face, of_file, splits=False, path=False),
    "datasets.DatasetDict": Kind(hugging_face_splits, of_file, path=False),
    "tar": Kind(one_tar, lambda item, _: f"images/{item.stem}", splits=False),
    "tars": Kind(tars, of_tar),
    "npy": Kind(npy, numbered, labels=False, splits=False, files=False, singly=False),
    "npz": Kind(npz, numbered, files=False, singly=False),
    "array": Kind(
        array, numbered, labels=False, splits=False, files=False, singly=False, path=False
    ),
    "tensor": Kind(
        tensor, numbered, labels=False, splits=False, files=False, singly=False, path=False
    ),
    "images and labels": Kind(
        images_and_labels, numbered, splits=False, files=False, singly=False, path=False
    ),
    "torch dataset": Kind(torch_dataset, numbered, splits=False, files=False, path=False),
    "list of pictures": Kind(
        list_of_pictures, numbered, labels=False, splits=False, files=False, path=False
    ),
    "class from outside": Kind(elsewhere, numbered, path=False),
    "images": Kind(opened_already, of_class, splits=False, path=False),
}
DIVIDED = [name for name, kind in KINDS.items() if kind.splits]
FILES = [name for name, kind in KINDS.items() if kind.files and name != "images"]
SINGLY = [name for name, kind in KINDS.items() if kind.singly and name != "images"]


def opened(name, source, **options):
    return open_images(source, **KINDS[name].options, **options)


def numbers_of(images, items, **fitted):
    """The number of each image's item, by its pixels alone."""
    number_of = {item.fitted(**fitted).tobytes(): item.number for item in items}
    return [number_of[np.ascontiguousarray(image).tobytes()] for image in images.pixels.numpy()]


def check(name, images, items):
    """These images are these items, each once, with names and labels of their own."""
    kind, of_number = KINDS[name], {item.number: item for item in items}
    numbers = numbers_of(images, items)
    assert sorted(numbers) == sorted(of_number)
    positions = {
        item.number: position
        for own in parts_of(items).values()
        for position, item in enumerate(own)
    }
    assert images.names == [kind.name(of_number[n], positions[n]) for n in numbers]
    assert len(set(images.names)) == len(images)
    labels = [of_number[number].label for number in numbers]
    assert images.label_names == (labels if kind.labels else [""] * len(images))
    assert images.class_names == (list(CLASSES) if kind.labels else None)
    assert images.skipped == [] and images.left_out == {}
    assert images.pixels.shape == (len(items), 3, SIZE, SIZE)


@pytest.mark.parametrize("name", KINDS)
def test_the_images_are_read_with_names_and_labels(name, tmp_path):
    items = made()
    source = KINDS[name].make(tmp_path, items)
    images = opened(name, source)
    check(name, images, items)
    assert list_splits(source) == [] and images.split is None and images.splits == []
    order = list(range(len(items)))
    if name == "two folders":  # one source after the other
        order = [*order[::2], *order[1::2]]
    if name == "nested folder":
        order = sorted(order, key=lambda number: of_nested(items[number], number))
    assert numbers_of(images, items) == order
    assert f"{len(items)} images read" in images.line and "left out" not in images.line
    if KINDS[name].labels:
        assert np.bincount(images.labels).tolist() == list(CLASSES.values())


@pytest.mark.parametrize("name", DIVIDED)
def test_each_split_holds_its_own_and_all_holds_everything(name, tmp_path):
    items = made(divided=True)
    source = KINDS[name].make(tmp_path, items)
    assert list_splits(source) == ["train", "test"]
    for split, own in parts_of(items).items():
        images = opened(name, source, split=split)
        check(name, images, own)
        assert images.split == split and images.splits == ["train", "test"]
        assert images.split_names == [split] * len(own)
    whole = opened(name, source, split="all")
    if name != "npz":  # whose images are numbered from 0 then
        check(name, whole, items)
        assert whole.split_names == [items[number].split for number in numbers_of(whole, items)]
    assert sorted(numbers_of(whole, items)) == list(range(len(items))) and whole.split is None
    assert opened(name, source).names == opened(name, source, split="train").names


@pytest.mark.parametrize("name", KINDS)
def test_an_unknown_split_is_one_line_that_names_it(name, tmp_path):
    items = made(divided=KINDS[name].splits)
    with pytest.raises(ValueError, match=r"split.* '?tests'?") as error:
        opened(name, KINDS[name].make(tmp_path, items), split="tests")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", KINDS)
def test_a_subset_keeps_what_belongs_to_each_image(name, tmp_path):
    items = made()
    images = opened(name, KINDS[name].make(tmp_path, items))
    rows = [10, 2, 11, 2]
    some = images.subset([0, 2, *rows]).subset([2, 3, 4, 5])
    again = pickle.loads(pickle.dumps(some))  # as other processes get it
    for chosen in (some, again):
        assert chosen.pixels.equal(images.pixels[rows])
        assert chosen.gather(torch.tensor([1, 0])).equal(images.pixels[[2, 10]])
        for column in ("names", "label_names", "digests", "split_names"):
            every = getattr(images, column)
            assert getattr(chosen, column) == [every[row] for row in rows]
        assert (chosen.mean, chosen.std) == (images.mean, images.std)
        if images.originals is not None:
            assert list(chosen.originals) == [images.originals[row] for row in rows]
    pixels = np.stack([item.fitted() for item in items]).astype(np.float64) / 255
    assert images.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), rel=1e-6)
    assert images.std == pytest.approx(pixels.std((0, 2, 3)).tolist(), rel=1e-6)
    with pytest.raises(ValueError, match=r"in 0\.\.11, got 0\.\.12"):
        images.subset([0, 12])


@pytest.mark.parametrize("name", KINDS)
def test_digests_are_those_of_the_bytes(name, tmp_path):
    """Of encoded images the file, and of arrays the pixels: whatever the source."""
    items = made()
    images = opened(name, KINDS[name].make(tmp_path, items))
    expected = []
    for number in numbers_of(images, items):
        content = items[number].content
        if not KINDS[name].files:
            content = str((3, SIZE, SIZE)).encode() + items[number].fitted().tobytes()
        expected.append(hashlib.blake2b(content, digest_size=16).hexdigest())
    assert images.digests == expected


@pytest.mark.parametrize("name", KINDS)
def test_another_size_and_number_of_channels(name, tmp_path):
    """The same pixels as PIL's: its filter is bicubic with antialiasing, its gray that of video."""
    items = made()
    source = KINDS[name].make(tmp_path, items)
    numbers = numbers_of(opened(name, source), items)
    if name == "images":
        with pytest.raises(ValueError, match=r"image_size 16.*image_size 10"):
            opened(name, source, image_size=10)
        return
    for size, channels in ((10, 3), (SIZE, 1), (10, 1), (24, 3)):
        images = opened(name, source, image_size=size, channels=channels)
        expected = np.stack([items[number].fitted(size, channels) for number in numbers])
        assert images.pixels.shape == expected.shape
        apart = np.abs(images.pixels.numpy().astype(int) - expected)
        assert apart.max() <= 2 and (images.image_size, images.channels) == (size, channels)
        assert apart.max() == 0 or (size < SIZE or not KINDS[name].files)


@pytest.mark.parametrize("name", KINDS)
def test_grayscale_images_have_one_channel(name, tmp_path):
    items = made(draw=lambda number: noise(number, SIZE)[..., 0])
    images = opened(name, KINDS[name].make(tmp_path, items))
    assert images.pixels.shape == (len(items), 1, SIZE, SIZE)
    assert sorted(numbers_of(images, items, channels=1)) == list(range(len(items)))


@pytest.mark.parametrize("name", SINGLY)
def test_images_of_several_sizes_are_cut_in_the_centre(name, tmp_path):
    """The size of most is the size of all."""

    def draw(number):
        height, width = {3: (SIZE, 22), 8: (29, SIZE)}.get(number, (SIZE, SIZE))
        return noise(number, 29)[:height, :width]

    items = made(draw=draw)
    images = opened(name, KINDS[name].make(tmp_path, items))
    assert sorted(numbers_of(images, items)) == list(range(len(items)))


@pytest.mark.parametrize("name", SINGLY)
def test_a_damaged_image_is_left_out_and_the_others_keep_what_is_theirs(name, tmp_path):
    items = made()
    items[5] = replace(items[5], content=items[5].content[:60])
    source = KINDS[name].make(tmp_path, items)
    whole = [item for item in items if item.number != 5]
    number_of = {item.fitted().tobytes(): item.number for item in whole}
    for _ in range(2):  # the second time from the cache
        images = opened(name, source)
        assert len(images) + len(images.skipped) == len(items)
        [(lost, why)] = images.skipped
        assert lost == KINDS[name].name(items[5], 5) and "\n" not in why
        numbers = [number_of[image.tobytes()] for image in images.pixels.numpy().copy()]
        assert sorted(numbers) == [item.number for item in whole]
        names = [KINDS[name].name(items[number], number) for number in numbers]
        assert images.names == names
        labels = [items[number].label for number in numbers]
        assert images.label_names == (labels if KINDS[name].labels else [""] * len(images))
        if KINDS[name].files:
            contents = [
                o if isinstance(o, bytes) else Path(o).read_bytes() for o in images.originals
            ]
            assert contents == [items[number].content for number in numbers]
        assert sum(images.left_out.values()) == 1
        assert "11 images read, 1 left out" in images.line


@pytest.mark.parametrize("name", FILES)
def test_the_cache_gives_the_same_as_no_cache(name, tmp_path, own_cache, decodes):
    items = made()
    source = KINDS[name].make(tmp_path, items)
    bare = opened(name, source, cache=False)
    assert not bare.stored and list(own_cache.rglob("*.bin")) == []
    rows = torch.arange(len(items))
    decodes.clear()
    first = opened(name, source)
    assert len(decodes) == len(items)
    again = opened(name, source)
    assert len(decodes) == len(items)  # nothing is decoded the second time
    for images in (first, again):
        assert images.stored and images.pixels.equal(bare.gather(rows))
        assert images.gather(rows).equal(images.pixels)
        for column in ("names", "label_names", "digests", "mean", "std", "class_names", "form"):
            assert getattr(images, column) == getattr(bare, column)
        read = [Image.open(o if isinstance(o, str) else io.BytesIO(o)) for o in images.originals]
        assert all(
            (np.asarray(image).transpose(2, 0, 1) == pixels).all()
            for image, pixels in zip(read, images.pixels.numpy(), strict=True)
        )


@pytest.mark.parametrize("name", FILES)
def test_headers_alone_say_what_there_is(name, tmp_path):
    items = made(divided=KINDS[name].splits)
    source = KINDS[name].make(tmp_path, items)
    table, images = scan(source, split="all"), opened(name, source, split="all")
    short = {row["name"].removeprefix("even/").removeprefix("odd/") for row in table.to_pylist()}
    assert table.num_rows == len(items) and short == set(images.names)
    assert set(table["digest"].to_pylist()) == set(images.digests)
    for column, value in (("height", SIZE), ("width", SIZE), ("bands", 3), ("problem", None)):
        assert table[column].to_pylist() == [value] * len(items)
    assert sum(table["bytes"].to_pylist()) == sum(len(item.content) for item in items)


@pytest.mark.parametrize("name", KINDS)
def test_a_few_images_are_some_of_all(name, tmp_path):
    items = made()
    images = opened(name, KINDS[name].make(tmp_path, items), few=4)
    assert 1 <= len(images) <= 4
    numbers = numbers_of(images, items)
    assert len(set(numbers)) == len(images)
    assert images.names == [KINDS[name].name(items[number], number) for number in numbers]


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """The features of each item, of a folder."""
    items = made()
    photos = nearfar.embed(folder_of_classes(tmp_path_factory.mktemp("embedded"), items))
    return photos.features


@pytest.mark.parametrize("name", KINDS)
def test_features_are_the_same_of_every_source(name, tmp_path, features):
    items = made()
    photos = nearfar.embed(KINDS[name].make(tmp_path, items))
    numbers = numbers_of(photos.images, items)
    assert sorted(numbers) == list(range(len(items)))
    torch.testing.assert_close(photos.features, features[numbers])
    assert features.unique(dim=0).shape[0] == len(items)


def trained(source, folder):
    """A run of two steps, on a random sample by the limit and the seed."""
    return nearfar.pretrain(
        source,
        out=folder / "run",
        limit=10,
        epochs=1,
        batch_size=5,
        held_out=0,
        encoder="tiny",
        method="simclr",
        precision="32-true",
    )


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The loss of a run on a folder, and the features that it learned of each item."""
    folder = tmp_path_factory.mktemp("reference")
    run = trained(folder_of_classes(folder, made()), folder)
    return run.metrics[-1]["loss"], nearfar.embed(run).features


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.usefixtures("no_pages")
def test_a_run_is_the_same_on_every_source(name, tmp_path, reference, log):
    """Images in the same order give the same loss, and a run finds its images again."""
    items = made()
    source = KINDS[name].make(tmp_path, items)
    run = trained(source, tmp_path)
    loss, features = reference
    assert "10 images (a random sample" in log.text
    photos = nearfar.embed(run) if KINDS[name].path else nearfar.embed(run, source)
    numbers = numbers_of(photos.images, items)
    assert sorted(numbers) == list(range(len(items)))
    if numbers == sorted(numbers):
        assert run.metrics[-1]["loss"] == pytest.approx(loss, rel=1e-6)
        torch.testing.assert_close(photos.features, features)
    else:
        assert name in ("two folders", "nested folder")


@pytest.mark.parametrize("name", ["tar", "tars"])
def test_a_stream_has_the_images_of_its_tars(name, tmp_path):
    items = made()
    items[5] = replace(items[5], content=items[5].content[:60])
    source = KINDS[name].make(tmp_path, items)
    stream, whole = open_stream(source), open_images(source)
    assert len(stream) == len(items)  # only the head is decoded
    assert [stream.encoded(item.number) for item in items] == [item.content for item in items]
    assert stream.head.names == whole.names and stream.skipped == whole.skipped
    assert stream.head.pixels.equal(whole.pixels) and stream.form == whole.form


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    digits, images = load_digits(), open_images("digits")
    assert np.abs(images.pixels[:, 0].numpy() / 255 - digits.images / 16).max() <= 0.5 / 255 + 1e-9
    assert images.labels.tolist() == digits.target.tolist()
    assert images.pixels.max() == 255 and images.class_names == list("0123456789")
    assert len(set(images.names)) == len(images)
    parts = {split: open_images("digits", split=split) for split in list_splits("digits")}
    assert [(split, len(part)) for split, part in parts.items()] == [("train", 1437), ("test", 360)]
    assert sorted(parts["train"].names + parts["test"].names) == images.names
    assert (np.bincount(parts["test"].labels) > 20).all()
    for split, part in parts.items():
        rows = [images.names.index(name) for name in part.names]
        assert part.pixels.equal(images.pixels[rows]) and part.split == split
        assert part.label_names == [images.label_names[row] for row in rows]
