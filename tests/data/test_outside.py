"""A kind of source from outside the package: a class with two methods, trained on, embedded,
checked and evaluated.
"""

import io

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image

import nearfar
from nearfar.data import describe, difference, list_splits, open_images, scan

pytestmark = pytest.mark.usefixtures("known_speed")

COUNT = 48


def picture(number):
    """A picture of one of two classes: bright above, or bright below."""
    pixels = np.random.default_rng(number).integers(0, 80, (16, 16, 3), dtype=np.uint8)
    pixels[slice(8) if number % 2 else slice(8, 16)] += 120
    return pixels


class Bucket:
    """PNG files in memory, by key."""

    def __init__(self, files, **columns):
        self.files, self.columns, self.read_keys = files, columns, []

    def scan(self):
        return pyarrow.table({"key": list(self.files), **self.columns})

    def read(self, rows):
        for key in rows["key"].to_pylist():
            self.read_keys.append(key)
            yield self.files[key]


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def bucket():
    labels = pyarrow.array(["above" if n % 2 else "below" for n in range(COUNT)])
    return Bucket(
        {f"k{number}": png(picture(number)) for number in range(COUNT)},
        name=[f"scan {number}" for number in range(COUNT)],
        label=labels,
        split=["test" if number % 8 < 2 else "train" for number in range(COUNT)],
    )


def test_it_is_opened_as_any_other(bucket):
    assert list_splits(bucket) == ["test", "train"]
    images = open_images(bucket)
    train = [number for number in range(COUNT) if number % 8 >= 2]
    assert images.names == [f"scan {number}" for number in train] and images.split == "train"
    assert (
        images.pixels.numpy() == np.stack([picture(n) for n in train]).transpose(0, 3, 1, 2)
    ).all()
    assert images.class_names == ["above", "below"]
    assert images.labels.tolist() == [1 - number % 2 for number in train]
    whole = open_images(bucket, split="all", cache=False)
    assert len(whole) == COUNT and not whole.stored
    assert torch.equal(whole.gather(torch.tensor(train)), images.pixels)
    table = scan(bucket, "all")
    assert table["height"].to_pylist() == [16] * COUNT and table["digest"].null_count == 0
    assert difference(table, open_images(bucket, split="all").table) == ""
    assert describe(bucket) == "an object of class Bucket"


def test_pixels_are_cached_by_the_digest_of_what_is_read(bucket):
    first = open_images(bucket)
    bucket.read_keys.clear()
    again = open_images(bucket)
    assert len(bucket.read_keys) == COUNT  # for their headers: it gives none
    assert torch.equal(again.pixels, first.pixels)


def test_headers_that_it_knows_are_not_read(bucket):
    sizes = {name: [16] * COUNT for name in ("height", "width")}
    bucket.columns |= {**sizes, "bands": [3] * COUNT, "bits": [8] * COUNT, "pages": [1] * COUNT}
    assert scan(bucket, digests=False).num_rows == 36 and bucket.read_keys == []
    bucket.columns["digest"] = [f"{number}" for number in range(COUNT)]
    assert scan(bucket).num_rows == 36 and bucket.read_keys == []
    for _ in range(2):  # the second time, pixels come from the cache
        assert len(open_images(bucket)) == len(bucket.read_keys) == 36


def test_arrays_paths_and_few_columns_are_enough(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(png(picture(0)))
    mixed = Bucket({"a": str(path), "b": path.read_bytes(), "c": path})
    images = open_images(mixed)
    assert images.names == ["000000", "000001", "000002"] and images.labels is None
    assert (images.pixels.numpy() == picture(0).transpose(2, 0, 1)).all()
    numbers = Bucket({n: picture(n) for n in range(4)}, label=[3, 1, 3, 1])
    images = open_images(numbers)
    assert images.labels.tolist() == [3, 1, 3, 1] and images.class_names is None
    assert (
        images.pixels.numpy() == np.stack([picture(n).transpose(2, 0, 1) for n in range(4)])
    ).all()
    wide = Bucket({n: picture(n).astype(np.uint16) * 100 for n in range(4)})
    assert open_images(wide).value_range is not None
    assert open_images(wide, value_range="uint8").value_range is None


def test_what_cannot_be_read_is_listed_and_what_is_wrong_is_one_line(bucket):
    bucket.files["k10"] = b"no picture"
    images = open_images(bucket)
    assert images.skipped == [("scan 10", "not an image of a known format")]
    bucket.read = lambda rows: []
    with pytest.raises(ValueError, match=r"Bucket gave 0 images"):
        open_images(bucket)
    bucket.scan = lambda: {"name": []}
    with pytest.raises(ValueError, match=r"pyarrow.Table, not dict"):
        open_images(bucket)


def test_it_is_trained_on_embedded_checked_and_evaluated(bucket, tmp_path):
    run = nearfar.pretrain(bucket, out=tmp_path / "run", epochs=1, batch_size=12)
    assert run.settings.image_size == 16
    photos = nearfar.embed(bucket, split="all")
    assert photos.features.shape[0] == COUNT and photos.images.names[3] == "scan 3"
    assert photos.evaluate(protocol=["knn"])["at_hand"]["knn"] == 1
    results = run.evaluate(bucket, protocol=["knn"])
    assert results["trained"]["knn"] > 0.8
    bucket.files["k4"] = bucket.files["k3"]  # in another class
    photos = nearfar.embed(bucket, split="all")
    assert {"scan 3", "scan 4"} <= set(photos.duplicates()["name"])
    assert {"scan 3", "scan 4"} & set(photos.check()["name"])
