"""Verbs on vectors that were made elsewhere, and on data without a run."""

import io
import re
import unicodedata
import zipfile
from pathlib import Path

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import nearfar
from nearfar.cli import main
from nearfar.embeddings import Opening, resolve
from nearfar.maps.layouts import load_map
from nearfar.neighbours import nearest_rows

COUNT = 60
ANGLES = np.cumsum(
    np.linspace(0.02, 0.1, COUNT)
)  # the steps grow: of two neighbours the one before is nearer
NAMES = [f"p{row:02d}.png" for row in range(COUNT)]
LABELS = np.array(["left", "right"])[np.arange(COUNT) // (COUNT // 2)]


def rows():
    """Points on an arc, in more dimensions, whose neighbours are those before and after them."""
    turned = np.linalg.qr(np.random.default_rng(0).normal(size=(8, 8)))[0][:2]
    return (np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1) @ turned).astype(np.float32)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sources(here):
    """The same vectors in every form that has names."""
    datasets = pytest.importorskip("datasets")
    np.savez("named.npz", name=NAMES, embedding=rows(), label=LABELS)
    columns = {"file_name": NAMES, "clip": list(rows()), "label": LABELS, "caption": ["a"] * COUNT}
    pyarrow.parquet.write_table(pyarrow.table(columns), "clip.parquet")
    return {
        "npz": "named.npz",
        "parquet": "clip.parquet",
        "datasets": datasets.Dataset.from_dict(columns).with_format("torch"),
    }


@pytest.mark.parametrize("form", ["npz", "parquet", "datasets"])
def test_named_vectors_are_searched_by_name(form, sources, here):
    nearest = nearfar.search(sources[form], ["p20.png", "p41.png"], k=2)
    assert nearest["name"] == ["p19.png", "p21.png", "p40.png", "p42.png"]
    steps = np.diff(ANGLES)[[19, 20, 40, 41]]
    np.testing.assert_allclose(nearest["distance"], 1 - np.cos(steps), rtol=1e-3)
    assert "path" not in nearest


def test_vectors_without_names_are_numbered(here):
    np.save("rows.npy", rows())
    for given in ("rows.npy", rows(), torch.from_numpy(rows())):
        assert nearfar.search(given, "000030", k=1)["name"] == ["000029"]


def test_every_verb_takes_vectors_alone(sources, here, log):
    chosen = nearfar.select("named.npz", n=2, by="diverse")
    ends = sorted(int(re.findall(r"\d+", name)[0]) for name in chosen["name"])
    assert (
        ends[0] in (0, COUNT - 1) or ends[1] == COUNT - 1
    )  # the second is farthest from the middle
    groups = pandas.DataFrame(nearfar.cluster("named.npz", clusters=2))
    assert len(groups) == COUNT and set(groups.cluster) == {1, 2}
    alike = nearfar.duplicates("named.npz", distance=0.0003)
    assert set(alike["kind"]) == {"near-duplicate"} and {"p00.png", "p01.png"} <= set(alike["name"])
    assert "copies are confirmed by pixels" in log.text
    assert {path.name for path in here.glob("*.html")} == {
        f"named-{verb}.html" for verb in ("selection", "clusters", "duplicates")
    }


def test_wrong_labels_of_vectors_are_found(here):
    given = np.repeat(np.eye(4, 8), 20, 0) + np.random.default_rng(0).normal(0, 0.05, (80, 8))
    labels = np.repeat(["a", "b", "c", "d"], 20)
    labels[[5, 50]] = "d"
    issues = nearfar.check((given, labels), out=here / "page.html")
    assert sorted(zip(issues["name"], issues["suggested"], strict=True)) == [
        ("000005", "a"),
        ("000050", "c"),
    ]


def test_missing_labels_of_vectors_are_no_class(here):
    given = {"vec": [list(row) for row in rows()], "label": [None, *range(2)] * (COUNT // 3)}
    pyarrow.parquet.write_table(pyarrow.table(given), "some.parquet")
    classes = nearfar.check("some.parquet").classes
    assert classes == {"label": ["0", "1", ""], "images": [20, 20, 20]}


def test_large_numbers_are_classes_of_their_own(here):
    given = {"vec": [list(row) for row in rows()], "label": [1234567, 1234568, None] * (COUNT // 3)}
    pyarrow.parquet.write_table(pyarrow.table(given), "some.parquet")
    assert nearfar.check("some.parquet").classes["label"] == [
        "1234567",
        "1234568",
        "",
    ]


def write_photos(folder):
    digits = (load_digits().images * 255 / 16).astype(np.uint8)
    for number, pixels in enumerate(digits[: COUNT - 2]):
        (folder / LABELS[number]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((64, 64)).save(folder / LABELS[number] / NAMES[number])
    Image.open(folder / "left/p10.png").save(folder / "left/p11.png", compress_level=0)
    return folder


@pytest.fixture
def photos(here):
    """An image for each vector but the last two, in folders, and copies: of one vector's image
    another's.
    """
    return write_photos(here / "photos")


@pytest.fixture(scope="module")
def same_photos(tmp_path_factory):
    """Those images, in a folder that nothing is written to."""
    return write_photos(tmp_path_factory.mktemp("same") / "photos")


def test_images_beside_vectors_are_found_by_their_names(photos, here, log):
    given = np.random.default_rng(1).permutation(COUNT)  # in another order than the files
    names = [f"/data/{LABELS[row]}/{NAMES[row]}" for row in given]
    np.savez("clip.npz", name=names, embedding=rows()[given])
    nearest = nearfar.search("clip.npz", "left/p20.png", data=photos, k=2)
    assert nearest["name"] == ["left/p19.png", "left/p21.png"]
    assert nearest["path"] == [str(photos / "left/p19.png"), str(photos / "left/p21.png")]
    assert "58 of 58 images have" in log.text
    copies = pandas.DataFrame(nearfar.duplicates("clip.npz", photos))
    assert set(copies[copies.kind != "near-duplicate"].name) == {"left/p10.png", "left/p11.png"}
    assert nearfar.check("clip.npz", photos).classes["label"] == [
        "left",
        "right",
    ]


def test_vectors_without_names_are_those_of_the_images_in_their_order(photos, here):
    np.save("rows.npy", rows()[: COUNT - 2])
    nearest = nearfar.search("rows.npy", "right/p40.png", data=photos, k=1)
    assert nearest["name"] == ["right/p39.png"]
    np.save("few.npy", rows()[:5])
    with pytest.raises(ValueError, match=r"5 vectors .* 58 images"):
        nearfar.search("few.npy", "right/p40.png", data=photos)


def test_what_needs_an_encoder_says_so_in_one_line(photos, here, capsys):
    np.savez("named.npz", name=NAMES, embedding=rows())
    np.savez("twice.npz", name=["a"] * COUNT, embedding=rows())
    np.savez("other.npz", name=[f"q{row}" for row in range(COUNT)], embedding=rows())
    np.savez("bad.npz", name=NAMES, embedding=rows() * np.nan)
    for words, message in {
        "search named.npz photos/left/p01.png": "need the encoder",
        "search named.npz nothing.png": "neither an image",
        "duplicates twice.npz": "twice.npz: a name occurs",
        "duplicates other.npz photos": "first 'q0'",
        "cluster bad.npz": "bad.npz: they are not finite",
        "cluster named.npz --encoder resnet18": "named.npz holds vectors",
        "duplicates photos other": "'other'",
        "duplicates photos --encoder resnet999": "'resnet999'",
        "search nowhere a.png": "nowhere",
    }.items():
        assert main(words.split()) == 2
        [line] = capsys.readouterr().err.strip().splitlines()[-1:]
        assert message in line, words


def test_a_folder_without_a_run_is_used_at_once(photos, here, capsys):
    assert main(["search", "photos", "left/p10.png", "--k", "1"]) == 0
    written = capsys.readouterr()
    assert written.out == f"{photos / 'left/p11.png'}\n"
    assert "pip install 'nearfar[pretrained]'" in written.err
    assert main(["duplicates", "photos"]) == 0
    copies = pandas.read_csv("photos-duplicates.csv", dtype=str)
    assert set(copies[copies.kind != "near-duplicate"].name) == {"left/p10.png", "left/p11.png"}
    for words in (
        "cluster photos --clusters 3",
        "select photos --n 5",
        "check photos",
        "check digits",
    ):
        assert main(words.split()) == 0
    assert {path.name for path in here.glob("*.html")} == {
        *(f"photos-{name}.html" for name in ("duplicates", "clusters", "selection", "check")),
        "digits-check.html",
    }
    names = nearfar.search(load_digits().images.astype(np.uint8)[:50], "000003", k=2)
    assert len(names["name"]) == 2


@pytest.mark.slow
def test_named_weights_give_the_features(photos, here, trained, log):
    """A run's folder is a folder with weights: the same features come out as by its own verbs, on
    its own data.
    """
    nearest = nearfar.search(photos, "left/p10.png", k=3, encoder=str(trained.path))
    assert len(nearest["name"]) == 3 and "not seen these images" in log.text
    with pytest.raises(ValueError, match="without a run"):
        nearfar.search(trained, "000001", encoder="resnet18")


def test_untrained_features_beat_chance_by_far():
    from nearfar.evaluation import extract, knn_accuracy

    pixels = torch.from_numpy((load_digits().images * 255 / 16).astype(np.uint8))[:, None].repeat(
        1, 3, 1, 1
    )
    encoder = nearfar.join({"colours": 1.0, "edges": 1.5}, image_size=8)
    x, y = extract(encoder, pixels), load_digits().target
    assert (
        x.shape == (1797, 512 + 324) and knn_accuracy(x[:1200], y[:1200], x[1200:], y[1200:]) > 0.85
    )
    assert x[:, :512].norm(dim=1) == pytest.approx(torch.ones(1797), abs=1e-5)
    assert x[:, 512:].norm(dim=1) == pytest.approx(1.5 * torch.ones(1797), abs=1e-5)


@pytest.mark.parametrize(("channels", "more"), [(1, 256), (3, 256), (4, 0)])
def test_copies_are_sought_by_colours_and_edges_alone(channels, more):
    """Of what is no run, other verbs take the features of the package's net as well, for grayscale
    and colour.
    """
    pixels = np.random.default_rng(0).integers(0, 256, (4, 32, 32, channels), np.uint8)
    alone, beside = (
        resolve(pixels).open(Opening(copies=copies)).features.shape[1] for copies in (True, False)
    )
    assert beside - alone == more


@pytest.mark.slow
def test_maps_are_drawn_of_vectors_and_of_data_without_a_run(photos, here):
    np.savez("named.npz", name=NAMES, embedding=rows(), label=LABELS)
    assert str(nearfar.map("named.npz").path) == "named-map.html"
    saved = load_map("named-map.safetensors")
    near = nearest_rows(saved.coordinates, k=2, metric="euclidean").index
    kept = [abs(int(neighbour) - row) <= 3 for row, both in enumerate(near) for neighbour in both]
    assert np.mean(kept) > 0.8  # neighbours on the arc are neighbours on the map
    page = nearfar.map("named.npz", photos, out=here / "beside.html").path
    assert "p20.png" in page.read_text()
    assert str(nearfar.map("photos", limit=30).path) == "photos-map.html"
    with pytest.raises(ValueError, match="photos is no run"):
        nearfar.map("photos", layout="projector")


def test_pages_of_a_folder_without_a_name_are_named_for_it(photos, here, monkeypatch):
    photos.rename(here / "photos.v1.2")
    monkeypatch.chdir(here / "photos.v1.2")
    nearfar.check(".")
    nearfar.map(".", limit=30)
    written = {path.name for path in Path().iterdir() if path.is_file()}
    assert {
        "photos-v1-check.html",
        "photos-v1-check.csv",
        "photos-v1-map.html",
        "photos-v1-map.png",
    } <= written
    assert not [name for name in written if name.startswith("-")]


def shuffled(column, paths):
    """Files of vectors of `photos` in another order, with their paths in a column of that name."""
    given = np.random.default_rng(1).permutation(COUNT - 2)
    table = {column: [paths(row) for row in given], "clip": [list(rows()[row]) for row in given]}
    pyarrow.parquet.write_table(pyarrow.table(table), "clip.parquet")
    if column != "file":  # a parameter of np.savez itself
        np.savez("clip.npz", **{column: table[column], "features": rows()[given]})


USUAL = "filepath file_path filenames paths Path image_id img_path uri url name file key File-Name"


@pytest.mark.parametrize("column", [*USUAL.split(), "imagePath", "file_uri", "photo"])
@pytest.mark.parametrize("form", ["clip.parquet", "clip.npz"])
def test_names_stand_in_columns_of_any_usual_name(column, form, same_photos, here):
    shuffled(column, lambda row: f"{LABELS[row]}/{NAMES[row]}")
    if column == "file" and form == "clip.npz":
        return
    assert_matched(form, same_photos)


def assert_matched(form, folder):
    """Each image of the folder has its own vector."""
    opened = resolve(form).open(Opening(folder))
    names = [f"{LABELS[row]}/{NAMES[row]}" for row in range(COUNT - 2)]
    assert opened.images.names == names
    torch.testing.assert_close(opened.features, torch.from_numpy(rows()[: COUNT - 2]))


WRITTEN = {
    "moved": lambda row: f"/old/place/{LABELS[row]}/{NAMES[row]}",
    "Windows": lambda row: f"C:\\photos\\{LABELS[row]}\\{NAMES[row]}",
    "addresses": lambda row: f"https://example.org/{LABELS[row]}/{NAMES[row]}?size=3",
    "bare": lambda row: NAMES[row],
    "without endings": lambda row: f"{LABELS[row]}/{Path(NAMES[row]).stem}",
    "other endings": lambda row: f"x/{LABELS[row]}/{Path(NAMES[row]).stem}.jpg",
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_paths_mean_the_image_with_the_longest_common_end(kind, same_photos, here):
    shuffled("path", WRITTEN[kind])
    assert_matched("clip.parquet", same_photos)


def test_addresses_of_files_and_other_forms_of_accents_are_the_same_names(here):
    folder = here / "caf\u00e9 photos"
    folder.mkdir()
    names = [f"u\u0308 {row}.png" for row in range(6)]  # as macOS writes them
    for row, name in enumerate(names):
        Image.fromarray(np.full((8, 8), 40 * row, np.uint8)).save(folder / name)
    given = [5, 3, 1, 0, 2, 4]
    for written in (
        lambda name: (folder / name).as_uri(),
        lambda name: unicodedata.normalize("NFC", name),
    ):
        np.savez("v.npz", uri=[written(names[row]) for row in given], features=rows()[given])
        nearest = nearfar.search("v.npz", names[1], data=folder, k=1)
        assert nearest["name"] == [names[0]]


def test_a_vector_of_another_folder_or_of_two_images_is_no_match(here):
    for row, name in enumerate(["cat/1.png", "cat/2.png", "dog/2.png", "dog/3.png", "dog/4.png"]):
        (here / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 40 * row, np.uint8)).save(here / "d" / name)
    names = ["dog/1.png", "2.png", "dog/3.png", "x/dog/4.png", "y/dog/4.png"]
    np.savez("v.npz", path=names, features=rows()[:5])
    known = resolve("v.npz").open(Opening(here / "d", fewest=1))
    assert known.images.names == ["dog/3.png"]  # and not cat/1.png; which 2.png, which dog/4.png?


def test_texts_of_no_usual_name_are_no_order(photos, here, complaint, log):
    shuffled("whatever", lambda row: NAMES[row])
    for form in ("clip.parquet", "clip.npz"):
        line = complaint("cluster", form, "photos", "--clusters", "2")
        assert "such as 'path'" in line
        assert "right one of whatever" in line
    np.save("rows.npy", rows()[: COUNT - 2])
    nearfar.cluster("rows.npy", "photos", clusters=2)
    assert "in the order of photos" in " ".join(log.text.split())


@pytest.mark.parametrize("column", ["bbox", "face_landmarks", "embedding", "clip"])
def test_images_win_over_lists_of_floats(column, photos, here, caplog):
    paths = sorted(photos.rglob("*.png"))
    cells = [{"bytes": path.read_bytes(), "path": path.name} for path in paths]
    table = {"image": cells, column: [list(row) for row in rows()[: COUNT - 2]]}
    pyarrow.parquet.write_table(pyarrow.table(table), "x.parquet")
    with caplog.at_level("INFO", "nearfar"):
        known = resolve(str(here / "x.parquet")).open(Opening())
    assert known.vectors is None and known.has_pixels and len(known.images) == COUNT - 2
    if column in ("embedding", "clip"):
        assert "'image': " in caplog.text and f"floats in '{column}'" in caplog.text


def test_the_column_of_vectors_is_named(sources, here, caplog):
    with caplog.at_level("INFO", "nearfar"):
        assert resolve(str(here / "clip.parquet")).vectors.names == NAMES
    assert "'clip', named by 'file_name'" in caplog.text


def test_of_an_archive_only_what_is_asked_for_is_read(here, monkeypatch):
    np.savez("v.npz", features=rows(), name=NAMES, label=LABELS, pixels=np.zeros((9, 9)))
    read = []
    real = np.lib.npyio.NpzFile.__getitem__
    monkeypatch.setattr(
        np.lib.npyio.NpzFile, "__getitem__", lambda self, key: read.append(key) or real(self, key)
    )
    assert resolve("v.npz").vectors.labels == LABELS.tolist()
    assert sorted(read) == ["features", "label", "name"]


def test_damaged_files_of_vectors_are_one_line(here, complaint):
    Path("empty.npy").write_bytes(b"")
    Path("empty.npz").write_bytes(b"")
    Path("empty.parquet").write_bytes(b"")
    np.savez("single.npz", features=rows(), label="a")
    np.savez("objects.npz", features=rows(), name=np.array(NAMES, object))
    np.savez("flat.npz", features=rows()[0])
    np.save("claims.npy", rows())
    content = Path("claims.npy").read_bytes()
    Path("claims.npy").write_bytes(content.replace(b"(60, 8), }", b"(9**9,8)}  "[:10]))
    with zipfile.ZipFile("claims.npz", "w") as archive:
        header = io.BytesIO()
        about = {"descr": "<f4", "fortran_order": False, "shape": (10**12, 512)}
        np.lib.format.write_array_header_1_0(header, about)
        archive.writestr("features.npy", header.getvalue() + bytes(64))
    for name, message in {
        "empty.npy": "empty",
        "empty.npz": "empty",
        "empty.parquet": "empty.parquet",
        "single.npz": "60 rows",
        "objects.npz": "'name' holds Python objects",
        "flat.npz": "must be [images, dim]",
        "claims.npy": "claims.npy",
        "claims.npz": "'features' claims 2,048,000,000,000,000 bytes",
    }.items():
        line = complaint("cluster", name)
        assert message in line and name in line, line


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
@pytest.mark.parametrize("column", ["e{}", "clip_{}", "{}"])
def test_a_column_for_each_number_makes_vectors(ending, column, here):
    numbers = {column.format(place): rows()[:, place] for place in range(8)}
    table = pandas.DataFrame({"file": NAMES, **numbers, "label": LABELS})
    if ending == "parquet":
        table.to_parquet("wide.parquet")
    else:
        table.to_csv(f"wide.{ending}", index=False, sep="," if ending == "csv" else "\t")
    nearest = nearfar.search(f"wide.{ending}", NAMES[30], k=1)
    assert nearest["name"] == [NAMES[29]]
    assert nearfar.check(f"wide.{ending}").classes["label"] == ["left", "right"]


def test_what_embed_writes_as_csv_are_vectors(here):
    from nearfar.embeddings.saving import write_embeddings

    write_embeddings(Path("own.csv"), NAMES, rows(), LABELS)
    nearest = nearfar.search("own.csv", NAMES[30], k=1)
    assert nearest["name"] == [NAMES[29]]


@pytest.mark.parametrize("form", ["parquet", "npz", "datasets"])
def test_labels_of_vectors_stand_in_the_column_that_is_named(form, here):
    datasets = pytest.importorskip("datasets")
    columns = {"name": NAMES, "embedding": list(rows()), "label": LABELS, "kind": LABELS[::-1]}
    source = f"v.{form}"
    if form == "npz":
        np.savez(source, **columns)
    else:
        source = datasets.Dataset.from_dict(columns) if form == "datasets" else source
        pyarrow.parquet.write_table(pyarrow.table(columns), "v.parquet")
    for column, first in (("label", "left"), ("kind", "right")):
        known = resolve(source).open(Opening(label_column=column)).images
        assert known.label_names[0] == first
    with pytest.raises(ValueError, match=r"'sort' .*kind"):
        nearfar.check(source, label_column="sort")
    with pytest.raises(ValueError, match="vectors, which have no splits"):
        nearfar.check(source, split="test")


def test_an_index_that_pandas_saved_after_sorting_is_no_order_of_images(photos, here):
    table = pandas.DataFrame({"embedding": list(rows()[:-2])})
    for name, changed in {
        "the index of pandas": table[::-1],
        "__index_level_0__": table.sample(frac=1, random_state=0),
    }.items():
        changed.to_parquet("sorted.parquet")
        with pytest.raises(ValueError, match=f"right one of {name}"):
            nearfar.search("sorted.parquet", NAMES[30], data="photos")
    table.to_parquet("whole.parquet")
    nearest = nearfar.search("whole.parquet", NAMES[30], data="photos", k=1)
    assert nearest["name"] == [f"left/{NAMES[29]}"]


def test_rows_without_a_name_are_refused_and_zeros_are_said(here, caplog):
    columns = {"name": [*NAMES[:-2], None, None], "embedding": list(rows())}
    pyarrow.parquet.write_table(pyarrow.table(columns), "lacking.parquet")
    with pytest.raises(ValueError, match=r"2 of 60 rows .* 58"):
        nearfar.search("lacking.parquet", NAMES[0])
    np.savez(
        "bytes.npz", names=np.array(NAMES, dtype=bytes), features=rows() * (ANGLES > 0.5)[:, None]
    )
    with caplog.at_level("INFO", logger="nearfar"):
        nearest = nearfar.search("bytes.npz", NAMES[-1], k=1)
    assert nearest["name"] == [NAMES[-2]]
    assert f"{(ANGLES <= 0.5).sum()} of 60 vectors of 'bytes.npz'" in caplog.text
