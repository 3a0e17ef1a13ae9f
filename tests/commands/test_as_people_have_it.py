"""Every verb on data as people have it: sorted by class, unequal, many alike, mixed sizes, other
class lists.
"""

import json
import unicodedata
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import nearfar
from nearfar.cli import main

pytestmark = pytest.mark.usefixtures("known_speed")

CLASSES = {"ant": (24, 30), "__bee__": (9, 110), "chat gris é": (5, 200)}  # images and brightness
FAST = dict(epochs=1, batch_size=8, held_out=8, encoder="tiny", method="simclr", seed=0)


def picture(number: int, brightness: int, sizes: tuple[int, ...] = (12, 16, 20)) -> Image.Image:
    """A picture of noise around a brightness, of one of three sizes."""
    rng = np.random.default_rng(1000 * brightness + number)
    side = sizes[number % len(sizes)]
    return Image.fromarray(
        rng.integers(brightness - 25, brightness + 25, (side, side + 3, 3), dtype=np.uint8)
    )


def sorted_by_class(folder):
    """Folders sorted by class, with unequal classes, mixed sizes and endings, and what cannot be
    read beside them.

    Returns the label of every image by its name, and how many files were left out.
    """
    labels = {}
    for name, (count, brightness) in CLASSES.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            file = f"{'__by_x__' if number == 0 else 'scan.000'}{number}.{'jpg' if number % 2 else 'png'}"
            picture(number, brightness).save(folder / name / file, quality=95)
            labels[f"{name}/{file}"] = name
    (folder / "ant/raw.dng").write_bytes(b"II*\0" + bytes(40))
    whole = (folder / "ant/scan.0002.png").read_bytes()
    (folder / "ant/cut.png").write_bytes(whole[: len(whole) // 2])
    (folder / "ant/empty.jpg").write_bytes(b"")
    (folder / "notes.txt").write_text("no image")
    (folder / "ant/Thumbs.db").write_bytes(bytes(10))
    return labels, 3


def many_alike(folder):
    """Twenty frames of one scene, which differ in a small square, and four others, each also as
    another file.
    """
    folder.mkdir()
    labels = {}
    scene = np.asarray(picture(0, 120, (32,))).copy()
    for number in range(20):
        frame = scene.copy()
        row, column = divmod(number, 5)
        frame[8 * row : 8 * row + 6, 7 * column : 7 * column + 6] = (250, 20, 20)
        Image.fromarray(frame).save(folder / f"frame{number:02d}.png")
        labels[f"frame{number:02d}.png"] = None
    for number in range(4):
        picture(number, 60, (32,)).save(folder / f"other{number}.png")
        labels[f"other{number}.png"] = None
    return labels, 0


def decomposed(folder):
    """Names in the other Unicode form, with a backslash and with a space."""
    folder.mkdir()
    names = [unicodedata.normalize("NFD", "é"), "back\\slash", "a b", "100%", "#1", "x.y.z"]
    labels = {}
    for number, name in enumerate(names * 2):
        file = f"{name}-{number}.png"
        picture(number, 90).save(folder / file)
        labels[file] = None
    return labels, 0


SETS = {"sorted by class": sorted_by_class, "many alike": many_alike, "decomposed": decomposed}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """The folder, the labels and the number left out of each set; a cache of their own."""
    root = tmp_path_factory.mktemp("people")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield {
            name: (root / name.replace(" ", "-"), *make(root / name.replace(" ", "-")))
            for name, make in SETS.items()
        }


@pytest.fixture(scope="module")
def run(places, tmp_path_factory):
    """A run of one epoch on the set that is sorted by class."""
    out = tmp_path_factory.mktemp("runs") / "run"
    return nearfar.pretrain(str(places["sorted by class"][0]), out=out, **FAST)


def run_json(capsys, *words):
    """The output of a command with --json, and its lines on the other stream."""
    capsys.readouterr()
    code = main([*map(str, words), "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    return json.loads(out), err


def names_of(path):
    return pq.read_table(path)["name"].to_pylist()


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(
    "verb",
    ["embed", "map", "search", "select", "cluster", "duplicates", "check"],
)
def test_every_verb_counts_what_it_read_and_what_it_left_out(
    name, verb, places, run, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folder, labels, left_out = places[name]
    words = {
        "embed": [run.path, folder, "--out", "rows.parquet"],
        "search": [run.path, next(iter(labels)), "--data", folder],
        "select": [run.path, "--data", folder],
    }.get(verb, [run.path, folder])
    summary, _ = run_json(capsys, verb, *words)
    [read] = summary["read"]
    assert read["images"] == len(labels)
    assert sum(read["left_out"].values()) == left_out


@pytest.mark.parametrize("name", SETS)
def test_names_are_whole_and_labels_are_those_of_the_folders(name, places, run, tmp_path):
    folder, labels, _ = places[name]
    rows = pq.read_table(run.embed(str(folder), out=tmp_path / "rows.parquet").path)
    names = rows["name"].to_pylist()
    assert len(set(names)) == len(names) == len(labels)
    if any(labels.values()):
        classes = dict(zip(names, rows["label"].to_pylist(), strict=True))
        by_class = Counter(classes.values())
        assert sorted(by_class.values()) == sorted(count for count, _ in CLASSES.values())
        assert all(classes[row] == label for row, label in labels.items())
    features = np.stack(rows["embedding"].to_pylist())
    assert np.isfinite(features).all()


def test_frames_of_a_series_are_no_copies_and_their_copies_are(places, tmp_path):
    folder, labels, _ = places["many alike"]
    assert not [
        kind
        for kind in nearfar.duplicates(str(folder), out=tmp_path / "a.html")["kind"]
        if kind in ("same file", "same pixels")
    ]
    twice = tmp_path / "twice"
    twice.mkdir()
    for name in labels:
        with Image.open(folder / name) as image:
            image.save(twice / name)
            image.save(twice / name.replace(".png", ".bmp"))
    duplicates = nearfar.duplicates(str(twice), out=tmp_path / "b.html")
    groups = {}
    for group, name, kind in zip(
        duplicates["group"], duplicates["name"], duplicates["kind"], strict=True
    ):
        if kind in ("first", "same pixels", "same file"):
            groups.setdefault(group, set()).add(name.rpartition(".")[0])
    copies = [stems for stems in groups.values() if len(stems) == 1]
    assert len(copies) == len(labels)  # each frame with its other file, and no two frames together


def test_a_test_set_of_a_folder_sorted_by_class_has_every_class(places, run, capsys):
    folder, _, _ = places["sorted by class"]
    results, _ = run_json(capsys, "evaluate", run.path, folder, "--limit", "16", "--held-out", "10")
    assert results["on"]["test_images"] == 10 and results["on"]["classes"] == 3
    assert results["on"]["largest"] == pytest.approx(24 / 38, abs=0.1)


def test_results_of_two_data_sets_stay_apart(places, run, tmp_path):
    folder, _, _ = places["sorted by class"]
    other = tmp_path / "other"
    for label, brightness in (("x", 40), ("y", 180)):
        (other / label).mkdir(parents=True)
        for number in range(12):
            picture(number, brightness).save(other / label / f"{number}.png")
    results = run.evaluate(str(folder), protocol=["knn"])
    two = run.evaluate(str(other), protocol=["knn"], baselines=False)
    again = nearfar.Run.of(run.path).results
    kept = {result.on.data: dict(result) for result in again}
    assert kept[str(folder)] == dict(results) and kept[str(other)] == dict(two)
    assert "raw_pixels" in kept[str(folder)] and "raw_pixels" not in kept[str(other)]


def test_shards_and_splits_with_other_class_lists_keep_their_classes(run, tmp_path):
    datasets = pytest.importorskip("datasets")
    lists = {"train": ["ant", "bee"], "more": ["bee", "cat"]}
    brightness = {"ant": 40, "bee": 110, "cat": 200}
    tables = {}
    for shard, classes in lists.items():
        rows = [(classes[i % 2], picture(i, brightness[classes[i % 2]])) for i in range(12)]
        features = datasets.Features(
            image=datasets.Image(), label=datasets.ClassLabel(names=classes)
        )
        columns = {"image": [image for _, image in rows], "label": [label for label, _ in rows]}
        tables[shard] = datasets.Dataset.from_dict(columns, features=features)
        tables[shard].to_parquet(str(tmp_path / "shards" / f"{shard}.parquet"))
    for number, source in enumerate((str(tmp_path / "shards"), datasets.DatasetDict(tables))):
        out = run.embed(source, out=tmp_path / f"{number}.parquet", split="all").path
        rows = pq.read_table(out)
        assert Counter(rows["label"].to_pylist()) == {"ant": 6, "bee": 12, "cat": 6}


def test_several_folders_are_one_target(places, run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [places[name][0] for name in ("sorted by class", "many alike")]
    total = sum(len(places[name][1]) for name in ("sorted by class", "many alike"))
    for verb in ("duplicates", "check", "cluster"):
        summary, _ = run_json(capsys, verb, *folders)
        assert sum(read["images"] for read in summary["read"]) == total, verb
