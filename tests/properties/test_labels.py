"""Labels however they are stored, and the samples that are drawn of them, by class or by chance."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearfar.data import open_images
from nearfar.tools.evaluate.labelled_sets import stratified_sample
from tests.properties.given import folder_of, numbered_png, numbers_of

CLASSES = st.lists(st.integers(0, 3), min_size=2, max_size=8)
STORED = {
    "numbers": lambda n: n,
    "floats": float,
    "texts": str,
    "texts with spaces": lambda n: f" {n} ",
    "lists of one": lambda n: [n],
    "arrays": lambda n: np.array([n]),
    "tensors": lambda n: torch.tensor([n]),
    "numbers of numpy": np.int16,
    "one-hot rows": lambda n: [int(k == n) for k in range(4)],
    "one-hot tensors": lambda n: torch.eye(4)[n],
    "truth values": lambda n: n > 1,
    "signs": lambda n: 2 * (n > 1) - 1,
}
IN_PARQUET = sorted(STORED.keys() - {"tensors", "one-hot tensors", "arrays"})


def alike(values):
    return [values.index(value) for value in values]


@given(CLASSES, st.sampled_from(sorted(STORED)))
def test_items_have_the_same_classes_however_labels_are_stored(classes, kind):
    items = [(np.full((8, 8, 3), n, np.uint8), STORED[kind](c)) for n, c in enumerate(classes)]
    expected = [c > 1 for c in classes] if kind in ("truth values", "signs") else classes
    images = open_images(items)
    if kind == "signs" and True not in expected:  # -1 alone is missing
        assert images.labels is None
        return
    assert alike(images.labels.tolist()) == alike(expected)
    assert (images.labels >= 0).all()


@given(CLASSES, st.sampled_from(IN_PARQUET), st.sets(st.integers(0, 7), max_size=3))
def test_parquet_has_the_same_classes_however_labels_are_stored(classes, kind, gaps):
    stored = [None if n in gaps else STORED[kind](c) for n, c in enumerate(classes)]
    column = pa.array([x.item() if isinstance(x, np.generic) else x for x in stored])
    table = pa.table({"image": [numbered_png(n) for n in range(len(classes))], "label": column})
    file = io.BytesIO()
    pq.write_table(table, file)
    known = [c > 1 if kind in ("truth values", "signs") else c for c in classes]
    present = [known[n] for n in range(len(classes)) if n not in gaps]
    with folder_of({"t.parquet": file.getvalue()}) as folder:
        images = open_images(folder / "t.parquet")
        assert numbers_of(images) == list(range(len(classes)))
        if kind == "signs" and True not in present:
            return
        labels = [-1] * len(classes) if images.labels is None else images.labels.tolist()
        assert [n for n, label in enumerate(labels) if label < 0] == sorted(
            n for n in gaps if n < len(classes)
        )
        assert alike([label for label in labels if label >= 0]) == alike(present)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.floats(0, 1),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_a_sample_has_each_class_in_its_share_in_any_order(sizes, share, in_order, seed):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    if not in_order:
        labels = np.random.default_rng(seed).permutation(labels)
    count = int(share * len(labels))
    chosen = stratified_sample(labels, count, seed)
    assert len(chosen) == count and len(set(chosen.tolist())) == count
    assert (np.diff(chosen) > 0).all()
    taken = np.bincount(labels[chosen], minlength=len(sizes))
    assert (np.abs(taken - count * np.array(sizes) / len(labels)) <= 1 + 1e-9).all()


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=6),
    st.floats(0, 1),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_a_limit_leaves_each_class_in_its_share_in_any_order(sizes, share, in_order, seed):
    """To within six standard deviations of a random sample, and a few images for small classes."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    if not in_order:
        labels = np.random.default_rng(seed).permutation(labels)
    pictures = np.zeros((len(labels), 1, 1), np.uint8)
    count = max(1, int(share * len(labels)))
    chosen = open_images((pictures, labels)).sampled(count, seed)
    assert len(set(chosen.names)) == len(chosen) == count
    shares = np.array(sizes) / len(labels)
    deviation = np.sqrt(count * shares * (1 - shares) * (1 - count / len(labels)))
    taken = np.bincount(chosen.labels, minlength=len(sizes))
    assert (np.abs(taken - count * shares) <= 6 * deviation + 6).all()
