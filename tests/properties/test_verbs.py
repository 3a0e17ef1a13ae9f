"""Rules of all verbs: each counts what it left out, takes the labels of the column that is asked
for, and knows an image by whatever path leads to it.
"""

import json
import os
import random
import re
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nearfar
from tests.commands.test_map import classes, described
from tests.properties.given import FEW, folder_of, numbered_png
from tests.properties.test_tables import written

COUNT = 8
IMAGES = {f"{n}.png": numbered_png(n, 16) for n in range(COUNT)}
VERBS = {
    "check": {},
    "cluster": {"clusters": 2},
    "duplicates": {},
    "embed": {},
    "evaluate": {"protocol": ["knn_1"], "baselines": False, "test_share": 0.5},
    "map": {"epochs": 1},
    "search": {"images": "0.png", "k": 1},
    "select": {"n": 2},
}


@contextmanager
def inside(files):
    """A folder "photos" with these files, in the folder where pages are written."""
    below = {f"photos/{name}": content for name, content in files.items()}
    with folder_of(below) as folder, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder / "photos"


LEFT_OUT = {
    "cut.png": numbered_png(1, 16)[:40],
    "empty.jpg": b"",
    "raw.dng": b"II*\0" + bytes(100),
    "page.png": b"<html>",
    "blob": bytes(range(256)),
    "film.mp4": b"\0\0\0\x18ftypmp42",
    "numbers.npy": b"\x93NUMPY",
}
BESIDE = {"notes.txt": b"x", "labels.json": b"{}", "Thumbs.db": b"", ".hidden.png": b""}


@FEW
@given(
    st.sampled_from(sorted(VERBS)),
    st.sets(st.sampled_from(sorted(LEFT_OUT))),
    st.sets(st.sampled_from(sorted(BESIDE))),
)
def test_every_verb_counts_what_was_left_out(caplog, verb, left_out, beside):
    files = IMAGES | {name: (LEFT_OUT | BESIDE)[name] for name in (*left_out, *beside)}
    options = VERBS[verb]
    if verb == "evaluate":
        rows = [(name, str(n % 2)) for n, name in enumerate(IMAGES)]
        files["metadata.csv"] = written(rows, ["file_name", "label"])
        options = options | {"label_column": "label"}
    caplog.set_level("INFO", "nearfar")
    with inside(files):
        caplog.clear()
        made = getattr(nearfar, verb)("photos", **options)
    if verb == "embed":
        assert sorted(name for name, _ in made.images.skipped) == sorted(left_out)
    lines = [line for line in caplog.messages if re.match(r".*\d+ images? read", line)]
    line = f"{COUNT} images read" + (f", {len(left_out)} left out: " if left_out else "")
    assert len(lines) <= 1 and all(line in shown for shown in lines)
    assert lines or not left_out


VALUES = {"label": ["ant", "bee"], "kind": ["x", "y", "z"], "colour of it": ["blue", "red"]}


def classes_by(verb, source, column):
    """The class of each image by its name, as far as a verb's result says it."""
    named = {} if column is None else {"label_column": column}
    options = VERBS[verb] | ({"out": Path("map.html")} if verb == "map" else {})
    made = getattr(nearfar, verb)(source, **named, **options)
    if verb == "map":
        data = described(made.path)
        return dict(zip(data["parts"]["names-0"], classes(data, "label"), strict=True))
    if verb == "check":
        return Counter(dict(zip(made.classes["label"], made.classes["images"], strict=True)))
    if verb == "evaluate":
        return made.on.classes
    return dict(zip(made.images.names, made.images.label_names, strict=True))


@FEW
@given(
    st.sampled_from(["check", "embed", "evaluate", "map"]),
    st.sampled_from([None, *VALUES]),
    st.permutations(sorted(VALUES)),
    st.integers(0, 99),
    st.booleans(),
)
def test_every_verb_has_the_labels_of_the_column_that_is_named(verb, column, order, seed, by_table):
    """Of a table of paths, or of a folder with metadata, whose labels must be asked for."""
    drawn = random.Random(seed)
    rows = {
        name: {key: values[n % len(values)] for key, values in VALUES.items()}
        for n, name in enumerate(drawn.sample(sorted(IMAGES), COUNT))
    }
    table = written(
        [(name, *(rows[name][key] for key in order)) for name in rows], ["file_name", *order]
    )
    with inside(IMAGES | {"metadata.csv": table}) as folder:
        by_table = by_table or column is None
        labels = classes_by(verb, folder / "metadata.csv" if by_table else folder, column)
    expected = {name: rows[name][column or "label"] for name in rows}
    if verb == "evaluate":
        assert labels == len({*expected.values()})
    else:
        assert labels == (Counter(expected.values()) if verb == "check" else expected)


@FEW
@given(st.permutations(range(COUNT)), st.sampled_from(["csv", "parquet", "tsv", "jsonl"]))
def test_columns_of_a_file_colour_the_images_that_they_name(order, ending):
    """A map's `columns`, and those of a table of paths, which `embed` copies too."""
    sites = {f"{n}.png": f"site {n % 3}" for n in order}
    table = written(sites.items(), ["file_name", "site"])
    with inside(IMAGES) as folder:
        about = Path("..", f"about.{ending}")
        write_table(folder / about, sites)
        options = VERBS["map"] | {"columns": folder / about}
        data = described(nearfar.map("photos", out="m.html", **options).path)
        names = data["parts"]["names-0"]
        assert dict(zip(names, classes(data, "site"), strict=True)) == sites
        (folder / "t.csv").write_bytes(table)
        nearfar.embed(folder / "t.csv", out="e.parquet")
        read = pq.read_table("e.parquet").to_pydict()
        assert dict(zip(read["name"], read["site"], strict=True)) == sites


def write_table(path, sites):
    columns = {"name": list(sites), "site": list(sites.values())}
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    elif path.suffix == ".jsonl":
        rows = zip(*columns.values(), strict=True)
        lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
        path.write_text("\n".join(lines))
    else:
        separator = "," if path.suffix == ".csv" else "\t"
        path.write_bytes(written(sites.items(), list(columns), separator))


def leading_to(kind, path, top):
    """Another way to an image below the folder `top`: a path that leads to its file."""
    beside = top.parent / f"by {kind}"
    if kind == "as it is":
        return path
    if kind == "relative":
        return Path(os.path.relpath(path))
    if kind == "up and down":
        return path.parent / ".." / path.parent.name / path.name
    if kind == "link to the folder":
        beside.symlink_to(top)
        return beside / path.relative_to(top)
    beside.mkdir()
    if kind == "hard link":
        os.link(path, beside / "other.png")
        return beside / "other.png"
    (beside / "other.png").symlink_to(path)
    if kind == "link to the file":
        return beside / "other.png"
    (beside / "another.png").symlink_to("other.png")
    return beside / "another.png"


WAYS = ["as it is", "relative", "up and down", "link to the folder", "hard link"]
WAYS += ["link to the file", "link to a link"]


@FEW
@given(st.sampled_from(WAYS), st.integers(0, 7), st.booleans(), st.booleans())
def test_a_query_is_itself_by_whatever_path_it_comes(way, number, linked, as_text):
    """And so are images to start from, which are not chosen again."""
    files = {f"own/{name}": content for name, content in list(IMAGES.items())[:4]}
    others = {f"{n}.png": IMAGES[f"{n}.png"] for n in range(4, COUNT)}
    with inside(files) as top, folder_of(others) as other:
        (top / "linked").symlink_to(other)
        name = f"own/{number}.png" if number < 4 else f"linked/{number}.png"
        path = leading_to(way, top / name, top)
        word = str(path) if as_text else path
        nearest = nearfar.search("photos", word, k=COUNT - 1)
        assert set(nearest["query"]) == {name} and name not in nearest["name"]
        assert len(set(nearest["name"])) == COUNT - 1
        chosen = nearfar.select("photos", n=COUNT - 1, labelled=[word])
        assert sorted(chosen["name"]) == sorted(nearest["name"])
