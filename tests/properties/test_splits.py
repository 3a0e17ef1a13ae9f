"""Shards whose names say their split, in any of the ways in which people write that."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from nearfar.data import list_splits, open_images
from tests.properties.given import FEW, folder_of, numbered_png, numbers_of
from tests.properties.test_tars import tar

WORDS = {
    "train": ["train", "Train", "TRAIN", "training"],
    "validation": ["val", "VAL", "valid", "validation", "dev"],
    "test": ["test", "Test", "testing"],
}
BEFORE = st.sampled_from(["", "cats-", "imagenet1k-", "photos.v2.", "latest_", "the trainee's "])
BEHIND = st.sampled_from(["", "2017", "-of-the-day", "-00001-of-00002", "_3", ".v2", "-images"])


@st.composite
def shards(draw):
    """Names of shards less their ending, each with its split."""
    splits = draw(st.lists(st.sampled_from(sorted(WORDS)), min_size=1, max_size=5))
    named = {}
    for n, split in enumerate(splits):
        word = draw(BEFORE) + draw(st.sampled_from(WORDS[split]))
        in_folder = draw(st.booleans())
        named[f"{word}/{n:05d}" if in_folder else f"{word}{draw(BEHIND)}-{n:05d}"] = split
    return named


def shard(ending, content):
    if ending == ".tar":
        return tar([("a.png", content)])
    file = io.BytesIO()
    pq.write_table(pa.table({"image": [{"bytes": content, "path": None}]}), file)
    return file.getvalue()


@FEW
@given(shards(), st.sampled_from([".tar", ".parquet"]))
def test_shards_are_of_the_split_that_their_names_say(named, ending):
    files = {f"{name}{ending}": shard(ending, numbered_png(n)) for n, name in enumerate(named)}
    numbers = {
        split: {n for n, own in enumerate(named.values()) if own == split}
        for split in WORDS
        if split in named.values()
    }
    with folder_of(files) as folder:
        assert list_splits(folder) == list(numbers)
        for split, own in numbers.items():
            assert sorted(numbers_of(open_images(folder, split=split))) == sorted(own)
        every = set(range(len(named)))
        assert sorted(numbers_of(open_images(folder, split="all"))) == sorted(every)
        assert sorted(numbers_of(open_images(folder))) == sorted(numbers.get("train", every))
