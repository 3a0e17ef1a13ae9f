"""Vectors in files, there and back: names, labels and numbers stay with their rows."""

import io
import tempfile
import tracemalloc
import unicodedata
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import nearfar
from nearfar.data import open_images
from nearfar.data.labels import NO_NUMBER, whole_number
from nearfar.evaluation import find_vectors
from tests.properties.given import folder_of, numbered_png, numbers_of

FINITE = st.floats(-(2.0**60), 2.0**60, width=32, allow_subnormal=False)
TEXT = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=9
)
NAMES = TEXT.filter(lambda name: name == name.rstrip("\0"))


def is_class(text):
    """Return whether a text is a label, and no number or missing one."""
    plain = text.strip()
    return plain.lower() not in NO_NUMBER and whole_number(plain) is None


@st.composite
def vectors(draw):
    """Numbers [rows, dim], a name and a class of each row, or None for either."""
    rows, dim = draw(st.integers(2, 6)), draw(st.integers(8, 12))
    numbers = draw(arrays.arrays(np.float32, (rows, dim), elements=FINITE))
    names = st.lists(NAMES, min_size=rows, max_size=rows, unique=True)
    labels = st.lists(TEXT.filter(is_class), min_size=rows, max_size=rows)
    return numbers, draw(st.none() | names), draw(st.none() | labels)


def write(path, numbers, names, labels):
    columns = {"name": names, "label": labels}
    known = {name: values for name, values in columns.items() if values is not None}
    if path.suffix == ".npz":
        np.savez(
            path, embedding=numbers, **{name: np.array(values) for name, values in known.items()}
        )
    else:
        table = pa.table(known | {"embedding": pa.array(list(numbers), pa.list_(pa.float32()))})
        pq.write_table(table, path)


def classes(labels):
    return [unicodedata.normalize("NFC", label.strip()) for label in labels]


@given(vectors(), st.sampled_from([".npz", ".parquet"]))
def test_a_file_of_vectors_is_read_as_it_is(given_vectors, ending):
    numbers, names, labels = given_vectors
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"v{ending}")
        write(path, numbers, names, labels)
        read_back = find_vectors(path)
    assert np.array_equal(read_back.features.numpy(), numbers)
    assert read_back.names == names
    assert read_back.labels == (None if labels is None else classes(labels))


@given(
    vectors(), st.sampled_from([".npz", ".parquet", ".csv"]), st.sampled_from([".npz", ".parquet"])
)
def test_embeddings_are_the_same_after_each_kind_of_file(given_vectors, ending, first):
    numbers, names, labels = given_vectors
    with tempfile.TemporaryDirectory() as folder:
        given_file, out = Path(folder, f"given{first}"), Path(folder, f"saved{ending}")
        write(given_file, numbers, names, labels)
        before = nearfar.embed(given_file)
        before.save(out)
        after = nearfar.embed(out)
    assert np.array_equal(after.features.numpy(), numbers)
    assert after.images.names == before.images.names
    assert named(after.images) == named(before.images)
    if labels is not None:
        assert [*map(classes(labels).index, classes(labels))] == first_alike(named(before.images))


def named(images):
    """The class of each row by its name, or None where there are no labels."""
    return (
        None if images.labels is None else [images.class_names[n] for n in images.labels.tolist()]
    )


def first_alike(values):
    return [values.index(value) for value in values]


@given(
    arrays.arrays(
        st.sampled_from([np.float16, np.float32, np.float64]), (3, 4), elements=st.integers(-99, 99)
    ),
    st.booleans(),
    st.sampled_from("<>="),
)
def test_an_array_file_has_its_numbers_in_any_order(numbers, fortran, order):
    stored = np.asarray(numbers, numbers.dtype.newbyteorder(order), order="F" if fortran else "C")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "v.npy")
        np.save(path, stored)
        assert np.array_equal(find_vectors(path).features.numpy(), numbers.astype(np.float32))


@given(
    vectors(),
    st.integers(0, 400),
    st.integers(0, 255),
    st.sampled_from([".npz", ".parquet", ".npy"]),
    st.integers(0, 3),
)
def test_damage_is_one_line_or_leaves_the_shape(given_vectors, place, value, ending, cut):
    numbers, names, labels = given_vectors
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"v{ending}")
        if ending == ".npy":
            np.save(path, numbers)
        else:
            write(path, numbers, names, labels)
        content = bytearray(path.read_bytes())
        content[place % len(content)] = value
        path.write_bytes(content[: len(content) * (4 - cut) // 4])
        try:
            read_back = find_vectors(path)
        except ValueError as error:
            assert len(str(error).splitlines()) == 1
        else:
            assert read_back is None or read_back.features.isfinite().all()


COLUMNS = st.sampled_from(
    [
        "filepath",
        "file_path",
        "filenames",
        "paths",
        "Path",
        "image_id",
        "img_path",
        "uri",
        "name",
        "IMAGE",
        "key",
        "fname",
        "File Name",
        "relative_path",
        "Basename",
        "imageUrl",
    ]
)


@given(COLUMNS, st.permutations(range(5)), st.booleans())
def test_vectors_belong_to_the_images_that_they_name(column, order, with_folder):
    """Not to those at the same place, and none to an image of the same name in another folder."""
    paths = ["cat/1.png", "cat/2.png", "dog/1.png", "dog/3.png", "4.png"]
    names = [f"/data/set/{path}" if with_folder else path for path in paths]
    with folder_of({path: numbered_png(n) for n, path in enumerate(paths)}) as folder:
        rows = pa.array([[float(n == k) for k in range(8)] for n in order], pa.list_(pa.float32()))
        table = pa.table({column: [names[n] for n in order], "clip": rows})
        with tempfile.TemporaryDirectory() as other:
            pq.write_table(table, Path(other, "v.parquet"))
            both = nearfar.embed(Path(other, "v.parquet"), folder)
        numbers = both.images.pixels[:, 0, 0, 0].tolist()
        assert sorted(numbers) == list(range(5))
        assert both.features.argmax(1).tolist() == numbers


BOXES = st.sampled_from(["bbox", "boxes", "face_landmarks", "keypoints", "object bbox", "Position"])
FEATURES = st.sampled_from(["embedding", "features", "clip", "dinov2", "vector"])


@given(
    st.lists(BOXES, max_size=3, unique=True),
    FEATURES,
    st.sampled_from(["images", "vectors", "paths"]),
    st.permutations(range(6)),
    st.booleans(),
)
def test_lists_of_floats_beside_images_and_lists_of_boxes_are_no_vectors(
    boxes, vectors, kind, order, with_vectors
):
    """Of images the pixels are used, of paths the files, whatever stands beside them."""
    count = 4
    files = {f"{n}.png": numbered_png(n) for n in range(count)}
    numbers = np.random.default_rng(0).random((count, 12)).astype(np.float32)
    columns = {
        name: pa.array(numbers[:, 2 * n : 2 * n + 4].tolist(), pa.list_(pa.float32()))
        for n, name in enumerate(boxes)
    }
    columns["name" if kind == "vectors" else "path"] = pa.array(list(files))
    if kind == "images":
        columns["image"] = pa.array(list(files.values()))
    if kind == "vectors" or (kind == "images" and with_vectors):
        columns[vectors] = pa.array(numbers.tolist(), pa.list_(pa.float32()))
    names = [list(columns)[n] for n in order if n < len(columns)]
    with folder_of(files) as folder:
        pq.write_table(pa.table({name: columns[name] for name in names}), folder / "t.parquet")
        held = find_vectors(folder / "t.parquet")
        if kind == "vectors":
            assert np.array_equal(held.features.numpy(), numbers) and held.names == list(files)
            return
        assert held is None
        assert numbers_of(open_images(folder / "t.parquet")) == list(range(count))


def test_a_feature_that_is_never_active_leaves_the_csv_one_of_vectors(tmp_path):
    numbers = np.zeros((3, 9), np.float32)
    numbers[:, 0] = 0.5, 1, 2
    np.savez(tmp_path / "v.npz", embedding=numbers, name=["a", "b", "c"])
    nearfar.embed(tmp_path / "v.npz").save(tmp_path / "v.csv")
    assert np.array_equal(nearfar.embed(tmp_path / "v.csv").features.numpy(), numbers)


def test_pixels_in_a_table_are_no_vectors(tmp_path):
    rows = [",".join(["p", *map(str, range(9))])] * 3
    header = ",".join(["path", *(f"x{n}" for n in range(9))])
    (tmp_path / "v.csv").write_text("\n".join([header, *rows]))
    assert find_vectors(tmp_path / "v.csv") is None


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=3),
    st.sampled_from(["<f4", "<f8", "<i8", "|u1", "<U9"]),
    st.sampled_from(["embedding", "name", "label"]),
    st.integers(0, 200),
)
@example([10**6, 10**4], "<f4", "embedding", 64)
def test_an_array_that_claims_more_than_the_file_holds_takes_no_memory(shape, kind, key, held):
    header = {"descr": kind, "fortran_order": False, "shape": tuple(shape)}
    claiming = io.BytesIO()
    np.lib.format.write_array_header_1_0(claiming, header)
    arrays_in_it = {"embedding": np.ones((4, 8), np.float32), "name": np.array(list("abcd"))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "v.npz")
        np.savez(path, **{name: array for name, array in arrays_in_it.items() if name != key})
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(f"{key}.npy", claiming.getvalue() + bytes(held))
        tracemalloc.start()
        try:
            find_vectors(path)
        except ValueError as error:
            assert len(str(error).splitlines()) == 1
        finally:
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    assert most < 16 * 2**20
