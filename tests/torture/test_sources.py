"""Generated data sets in the form of every source: what is read and what is left out is what is
there, and names and labels are those of the images.

Each image is of one gray that no other one has, so that its pixels say which one was read.
"""

import csv
import io
import random
import tarfile
import unicodedata
from dataclasses import dataclass
from decimal import Decimal

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from torch.utils.data import Dataset

from nearfar.data import list_splits, open_images

SPLITS = {
    "train": ["train", "Training", "TRAIN ", "train_images"],
    "validation": ["val", "Valid", "dev", "val2017"],
    "test": ["test", " Test", "testing", "PrivateTest"],
}
CLASSES = ["ant", "bee ", "e\u0301te\u0301", "\u00e9t\u00e9", "chat gris", "100%", "#1", "B-52"]
LABELS = {  # a label as it is written, and as it is read ("": a missing one)
    "texts": [(name, unicodedata.normalize("NFC", name.strip())) for name in CLASSES],
    "numbers": [(number, str(number)) for number in (0, 1, 2, 10)],
    "floats": [(float(number), str(number)) for number in (0, 1, 7)] + [(float("nan"), "")],
    "truth": [(True, "True"), (False, "False")],
    "bytes": [(b"x", "x"), ("\u00e9".encode("cp1252"), "\u00e9"), ("\u00e9".encode(), "\u00e9")],
    "decimals": [(Decimal(3), "3"), (Decimal(11), "11")],
    "codes": [("001", "001"), ("01", "01"), ("1", "1")],
}
STEMS = ["scan", "a b", "x.y", "e\u0301", "\u00e9", "__by__", "-rf", "=1+1", "#1", "100%", "{0}"]
DAMAGE = {"cut off": 0.08, "empty": 0.06, "not an image": 0.06}


@dataclass
class Item:
    """An image as it is written, and how it should be read. good: whether it can be decoded."""

    stem: str
    content: bytes
    gray: int
    good: bool
    written: object
    label: str
    split: str


def items(chance, kind, divided):
    """Up to forty images with labels of one kind, of which some are damaged and some have none."""
    collected = []
    for number in range(chance.randint(8, 40)):
        file = io.BytesIO()
        Image.fromarray(np.full((8, 8), 6 * number, np.uint8)).save(file, "PNG")
        content, good = file.getvalue(), True
        for damage, share in DAMAGE.items():
            if good and number > 5 and chance.random() < share:
                content = {"cut off": content[: len(content) // 2], "empty": b""}.get(
                    damage, b"a text"
                )
                good = False
        written, label = chance.choice(LABELS[kind])
        if kind != "floats" and number > 5 and chance.random() < 0.1:
            written, label = None, ""
        split = chance.choice([*SPLITS][: 2 + divided]) if divided and number > 2 else ""
        split = [*SPLITS][number] if divided and number < 3 else split
        stem = f"{chance.choice(STEMS)}{number}"
        collected.append(Item(stem, content, 6 * number, good, written, label, split))
    return collected


def in_table(folder, chance, given, ending):
    """A table of paths, in the order of the images."""
    paths = []
    for item in given:
        path = folder / "images" / chance.choice(["", "deep/er/"]) / f"{item.stem}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(item.content)
        form = chance.choice(["NFC", "NFD"])
        written = str(path.relative_to(folder)) if chance.random() < 0.8 else str(path)
        paths.append(unicodedata.normalize(form, written))
    word = chance.choice(["split", "Subset", "data set"])
    columns = {"file path": paths, "label": [item.written for item in given]}
    if given[0].split:
        columns[word] = [chance.choice(SPLITS[item.split]) for item in given]
    if ending == "parquet":
        pq.write_table(pa.table(columns), folder / "rows.parquet")
        return folder / "rows.parquet"
    separator = chance.choice(",;") if ending == "csv" else "\t"
    encoding = chance.choice(["utf-8", "utf-8-sig", "utf-16"])
    with (folder / f"rows.{ending}").open("w", encoding=encoding, newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return folder / f"rows.{ending}"


def encoded_rows(chance, given):
    columns = {
        "image": [{"bytes": item.content, "path": f"{item.stem}.png"} for item in given],
        "label": [item.written for item in given],
    }
    if given[0].split:
        columns[chance.choice(["split", "Usage"])] = [
            chance.choice(SPLITS[item.split]) for item in given
        ]
    return columns


def in_parquet(folder, chance, given, ending):
    """One or two Parquet files of encoded images."""
    (folder / "shards").mkdir()
    table = pa.table(encoded_rows(chance, given))
    cut = chance.choice([len(table), len(table) // 2])
    for number, part in enumerate((table.slice(0, cut), table.slice(cut))):
        if len(part):
            pq.write_table(part, folder / "shards" / f"{number}.parquet")
    return folder / "shards"


def in_datasets(folder, chance, given, ending):
    """A table of `datasets`, or one by split."""
    table = datasets.Dataset(pa.table(encoded_rows(chance, given)))
    if not given[0].split or chance.random() < 0.5:
        return table
    rows = {split: [n for n, item in enumerate(given) if item.split == split] for split in SPLITS}
    tables = {split: table.select(own) for split, own in rows.items() if own}
    return datasets.DatasetDict(tables)


def in_tars(folder, chance, given, ending):
    """Tars by split, in folders, with labels as texts beside the images, before them or behind."""
    for split in dict.fromkeys(item.split for item in given):
        place = folder / "tars" / chance.choice(["", "part/"]) / f"{split or 'all'}-0.tar"
        place.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(place, "w") as file:
            for item in (item for item in given if item.split == split):
                key = f"k{item.gray:03d}"
                members = [(f"{key}.png", item.content)]
                text = item.written if isinstance(item.written, bytes) else item.label.encode()
                if item.label:
                    members.append((f"{key}.cls", text + chance.choice([b"", b"\n", b"\r\n"])))
                for name, content in chance.sample(members, len(members)):
                    about = tarfile.TarInfo(name)
                    about.size = len(content)
                    file.addfile(about, io.BytesIO(content))
    return folder / "tars"


def in_folders(folder, chance, given, ending):
    """Class folders by split, with links, other files and hidden ones."""
    root = folder / "photos"
    for item in given:
        word = "" if not item.split else SPLITS[item.split][0]
        place = root / word / (unicodedata.normalize(chance.choice(["NFC", "NFD"]), item.label))
        place.mkdir(parents=True, exist_ok=True)
        if chance.random() < 0.2:
            (folder / f"{item.gray}.bin").write_bytes(item.content)
            (place / f"{item.stem}.png").symlink_to(folder / f"{item.gray}.bin")
        else:
            (place / f"{item.stem}.png").write_bytes(item.content)
        (place / "Thumbs.db").write_bytes(bytes(9))
        (place / f"._{item.stem}.png").write_bytes(b"of macOS")
    return root


class Items(Dataset):
    def __init__(self, given):
        self.given = given

    def __len__(self):
        return len(self.given)

    def __getitem__(self, number):
        return Image.open(io.BytesIO(self.given[number].content)), self.given[number].written


def in_items(folder, chance, given, ending):
    return Items(given)


KINDS = {  # how a source is made, and which labels it can hold
    "csv": (in_table, ["texts", "numbers", "codes", "truth"]),
    "tsv": (in_table, ["texts", "numbers", "codes"]),
    "parquet": (in_table, [*LABELS]),
    "images in parquet": (in_parquet, [*LABELS]),
    "datasets": (in_datasets, [*LABELS]),
    "tars": (in_tars, ["texts", "numbers", "codes", "bytes"]),
    "folders": (in_folders, ["texts"]),
    "items": (in_items, [*LABELS]),
}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_and_left_out_is_what_is_there(kind, seed, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    chance = random.Random(f"{kind} {seed}")
    make, may_hold = KINDS[kind]
    divided = kind != "items" and chance.random() < 0.6
    given = items(chance, chance.choice(may_hold), divided)
    if kind == "folders":  # where none has a label, and a class is a folder
        given = [item for item in given if item.label]
    source = make(tmp_path, chance, given, kind)
    splits = list(dict.fromkeys(item.split for item in given)) if divided else []
    assert sorted(list_splits(source)) == sorted(splits)
    for _ in range(2):  # the second time from the cache
        for split in [*splits, "all", None]:
            chosen = split or ("train" if "train" in splits else "all")
            wanted = [item for item in given if chosen in ("all", item.split)]
            images = open_images(source, split=split, image_size=8)
            assert len(images) + len(images.skipped) == len(wanted)
            assert len(set(images.names)) == len(images)
            label_of = {item.gray: item.label for item in wanted if item.good}
            grays = images.pixels[:, 0, 0, 0].tolist()
            assert sorted(grays) == sorted(label_of)
            assert images.label_names == [label_of[gray] for gray in grays]
            if kind in ("csv", "tsv", "parquet", "folders"):
                stem_of = {item.gray: item.stem for item in wanted}
                for name, gray in zip(images.names, grays, strict=True):
                    own = unicodedata.normalize("NFC", name.rpartition("/")[2])
                    assert own == unicodedata.normalize("NFC", f"{stem_of[gray]}.png")
