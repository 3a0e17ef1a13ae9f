"""Images from objects: `datasets` tables, torch Datasets, `Images`; what they are called, and what
is refused.
"""

import io
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset

from nearfar.data import describe, open_images


def noise(*shape):
    return np.random.default_rng(sum(shape)).integers(0, 256, shape, dtype=np.uint8)


class Items(Dataset):
    """Map-style, with a length; like many, it raises no IndexError after the last item."""

    def __init__(self, items):
        self.items, self.asked = items, []

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        self.asked.append(number)
        assert len(self.asked) <= 4 * len(self), "indexed beyond its length"
        item = self.items[number % len(self)]
        if isinstance(item, Exception):
            raise item
        return item


RAW = noise(4, 12, 12, 3)
KINDS = {
    "PIL": [Image.fromarray(image) for image in RAW],
    "array [h,w,c]": list(RAW),
    "array [c,h,w]": [image.transpose(2, 0, 1) for image in RAW],
    "tensor [h,w,c]": [torch.from_numpy(image) for image in RAW],
    "tensor [c,h,w]": [torch.from_numpy(image.transpose(2, 0, 1).copy()) for image in RAW],
    "float tensor": [torch.from_numpy(image.transpose(2, 0, 1).copy()) / 255 for image in RAW],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("labelled", [True, False])
def test_every_kind_of_item_gives_the_same_images(kind, labelled):
    items = (
        [(image, number + 1) for number, image in enumerate(KINDS[kind])]
        if labelled
        else KINDS[kind]
    )
    data = Items(items)
    images = open_images(data)
    assert data.asked == [0, 1, 2, 3]
    assert (images.pixels.numpy() == RAW.transpose(0, 3, 1, 2)).all()
    assert images.names == ["000000", "000001", "000002", "000003"] and images.skipped == []
    assert images.labels is None if not labelled else images.labels.tolist() == [1, 2, 3, 4]
    assert images.mean == pytest.approx((RAW / 255).mean((0, 1, 2)).tolist())


def test_sizes_and_channels_are_those_that_files_would_get(tmp_path):
    """Grey images of one size first, then colour, then another size: what was read already is
    converted.
    """
    pictures = [
        *(Image.fromarray(noise(20, 30)) for _ in range(2)),
        Image.fromarray(noise(20, 30, 3)),
        Image.fromarray(noise(90, 110, 3)),
    ]
    for count in (2, 3, 4):
        folder = tmp_path / str(count)
        folder.mkdir()
        for number, picture in enumerate(pictures[:count]):
            picture.save(folder / f"{number}.png")
        data = Items(pictures[:count])
        ours, files = open_images(data), open_images(folder)
        assert (ours.image_size, ours.channels) == (files.image_size, files.channels)
        assert (ours.pixels.int() - files.pixels.int()).abs().max() <= 1
        assert len(data.asked) == count  # nothing is read twice
    assert (files.image_size, files.channels) == (20, 3)  # that of most
    converted = open_images(Items(pictures), image_size=16, channels=1)
    assert tuple(converted.pixels.shape) == (4, 1, 16, 16)


def test_unreadable_items_are_skipped_and_listed(tmp_path, bars):
    Image.fromarray(noise(64, 64, 3)).save(tmp_path / "a.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "a.png").read_bytes()[:2000])
    lazy = Image.open(tmp_path / "half.png")  # is read only when its pixels are asked for
    images = open_images(Items([noise(8, 8), OSError("disk\nproblem"), noise(8, 8), lazy]))
    assert images.names == ["000000", "000002"] and len(images.pixels) == 2
    assert images.skipped[0] == ("000001", "disk") and images.skipped[1][0] == "000003"
    assert bars == [("reading images", done, 4) for done in (1, 2, 3, 4)]
    with pytest.raises(ValueError, match=r"item 000000: no luck"):
        open_images(Items([RuntimeError("no luck")] * 3))
    with pytest.raises(ValueError, match="no items"):
        open_images(Items([]))


class NoLength(Dataset):
    def __getitem__(self, number):
        assert number < 100, "indexed without end"
        return noise(8, 8)


class Stream(IterableDataset):
    def __iter__(self):
        raise AssertionError("read from a stream")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (NoLength(), "NoLength; .*__len__"),
        (Stream(), "torch Dataset Stream"),
        (object(), "class object"),
        (None, "class NoneType"),
        (
            Items([{"image": noise(8, 8)}]),
            "item 0 of .*is a dict",
        ),
        (Items([noise(8, 8), "a.png"]), "item 1 .*is a str"),
        (Items([noise(2, 8, 8, 3)]), r"ndarray of shape \[2, 8, 8, 3\]"),
        (Items([torch.full((3, 8, 8), 2.0)]), "item 0 .*in 0..1"),
    ],
)
def test_other_objects_are_refused_in_one_line(source, words):
    with pytest.raises(ValueError, match=words) as error:
        open_images(source)
    assert "\n" not in str(error.value)


def test_items_of_other_channels_are_listed_as_files_are():
    images = open_images(Items([noise(8, 8, 5), noise(8, 8, 5), noise(8, 8, 3)]))
    assert len(images) == 2 and images.channels == 5
    [(name, why)] = images.skipped
    assert name == "000002" and "3 channels cannot be made into 5" in why


def test_memory_is_bounded_before_it_is_filled():
    data = Items([noise(8, 8)] * 1000)
    with pytest.raises(ValueError, match=r"1000 images of 8 px.*cache_limit"):
        open_images(data, cache_limit=63_999)
    assert len(data.asked) == 1
    assert len(open_images(data, cache_limit=64_000)) == 1000


def table(count=3, path=None):
    import datasets

    cells = []
    for number in range(count):
        file = io.BytesIO()
        Image.fromarray(noise(number + 9, 9, 3)[:9]).save(file, "PNG")
        cells.append({"bytes": file.getvalue(), "path": None})
    if path is not None:
        cells[0] = {"bytes": None, "path": str(path)}
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=["u", "v"])}
    )
    return datasets.Dataset.from_dict(
        {"img": cells, "label": [number % 2 for number in range(count)]}, features
    )


def test_a_table_in_another_format_is_the_same_and_a_part_of_it_is_another(decodes):
    data = table()
    images = open_images(data)
    assert images.labels.tolist() == [0, 1, 0] and images.class_names == ["u", "v"]
    count = len(decodes)
    assert torch.equal(open_images(data.with_format("torch")).pixels, images.pixels)
    assert open_images(data).names == images.names and len(decodes) == count
    assert open_images(data.select([2])).names == ["000000"] and len(decodes) > count


def test_tables_that_cannot_be_opened_are_one_line():
    import datasets

    other = datasets.DatasetDict({"train": table(3), "test": table(2).remove_columns("img")})
    with pytest.raises(ValueError, match="no column 'img'"):
        open_images(other)
    with pytest.raises(ValueError, match=r"cannot open .*IterableDataset"):
        open_images(table().to_iterable_dataset())


def test_images_come_back_as_they_are():
    images = open_images(noise(5, 8, 8))
    assert open_images(images) is images and open_images(images, image_size=8, channels=1) is images
    for options in ({"image_size": 9}, {"channels": 3}, {"split": "train"}):
        with pytest.raises(ValueError, match=f"opened with {next(iter(options))}"):
            open_images(images, **options)


def test_sources_in_words(tmp_path):
    assert describe(noise(7, 8, 8)) == open_images(noise(7, 8, 8)).source == "array [7, 8, 8] uint8"
    assert describe((torch.rand(2, 3, 8, 8), [0, 1])) == "tensor [2, 3, 8, 8] float32"
    assert describe(Items([1, 2])) == "torch Dataset Items of 2 images"
    assert describe(NoLength()) == "torch Dataset NoLength"
    assert describe(table()) == "datasets.Dataset of 3 rows"
    assert describe("digits") == "digits" and describe(tmp_path) == str(tmp_path)
    part = open_images("digits").subset([1, 2])
    assert part.source == describe(part) == "digits"
    assert open_images(Items([noise(8, 8)])).source == "torch Dataset Items of 1 images"


def test_images_reach_another_process(tmp_path, paint):
    """Pixels in memory are sent; those of a cache are not, but mapped again where they arrive."""
    for number in range(6):
        paint(tmp_path / "pics" / f"{number}.png", number, size=64)
    memory, cached = open_images(noise(6, 64, 64, 3)), open_images(tmp_path / "pics")
    assert memory.pixels is not None and cached.pixels is not None  # what is kept is not sent
    assert len(pickle.dumps(memory)) > 6 * 3 * 64 * 64 > 5 * len(pickle.dumps(cached))
    streamed = open_images(tmp_path / "pics", cache=False)
    assert torch.equal(pickle.loads(pickle.dumps(streamed)).gather(torch.arange(6)), cached.pixels)


def test_paths_in_a_table_of_datasets_are_those_of_the_working_directory(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        Image.fromarray(noise(8 + number, 8, 3)).save(f"{number}.png")
    rows = {"image": ["0.png", str(tmp_path / "1.png")]}
    table = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    images = open_images(table, image_size=8)
    assert len(images) == 2 and images.skipped == []
    own = torch.from_numpy(noise(8, 8, 3)).permute(2, 0, 1)
    assert torch.equal(images.pixels[0], own)
