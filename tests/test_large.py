"""Examples for more images than one machine holds: the rows are those of `embed`, the neighbours
the true ones.
"""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest

import nearfar
from tests.pictures import encoded

pytestmark = pytest.mark.usefixtures("known_speed")

EXAMPLES = Path(__file__).parents[1] / "examples"


def called(name, *words):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, words)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def embeddings(folder):
    table = pyarrow.concat_tables(
        [pq.read_table(file) for file in sorted(folder.glob("*.parquet"))]
    )
    return dict(zip(table["name"].to_pylist(), table["embedding"].to_pylist(), strict=True))


def test_two_workers_of_ray_write_the_rows_of_embed(tmp_path):
    pytest.importorskip("ray")
    rng = np.random.default_rng(0)
    pixels = np.kron(
        rng.integers(0, 256, (40, 4, 5, 3), dtype=np.uint8), np.ones((1, 8, 8, 1), dtype=np.uint8)
    )
    rows = [
        {"bytes": encoded(image), "path": f"{number:02d}.png"}
        for number, image in enumerate(pixels)
    ]
    (tmp_path / "images").mkdir()
    for part in range(2):
        some = rows[20 * part : 20 * part + 20]
        if part:
            some[3] = {"bytes": b"no image", "path": "broken.png"}
        pq.write_table(pyarrow.table({"image": some}), tmp_path / "images" / f"{part}.parquet")
    options = dict(
        epochs=1,
        batch_size=8,
        held_out=4,
        image_size=32,
        encoder="small",
        method="simclr",
    )
    run = nearfar.pretrain(tmp_path / "images", out=tmp_path / "run", **options)
    nearfar.embed(run, out=tmp_path / "one.parquet")
    expected = pq.read_table(tmp_path / "one.parquet")

    called("embed_with_ray.py", run.path, tmp_path / "images", tmp_path / "many", "--batch-size", 7)
    table = embeddings(tmp_path / "many")
    assert len(table) == len(expected) == 39
    for name, row in zip(
        expected["name"].to_pylist(), expected["embedding"].to_pylist(), strict=True
    ):
        assert table[name] == pytest.approx(row, abs=1e-5)
    assert "broken.png" not in table


def test_rows_on_disk_that_are_fewer_than_k_have_a_distance_each(tmp_path):
    pytest.importorskip("faiss")
    (tmp_path / "parts").mkdir()
    rows = np.eye(6, dtype=np.float32)
    table = pyarrow.table({"name": list("abcdef"), "embedding": list(rows)})
    file = tmp_path / "parts" / "0.parquet"
    pq.write_table(table, file)
    message = called("neighbours_on_disk.py", "build", file.parent, tmp_path / "index")
    assert float(re.search(r"recall .* (\d\.\d+)", message)[1]) == 1
    called("neighbours_on_disk.py", "search", tmp_path / "index", file, tmp_path / "near.parquet")
    near = pq.read_table(tmp_path / "near.parquet")
    for distances, nearest in zip(
        near["distance"].to_pylist(), near["neighbour"].to_pylist(), strict=True
    ):
        assert len(distances) == len(nearest) == 6 and sorted(nearest) == list("abcdef")
        assert distances == [0, 1, 1, 1, 1, 1]


def test_neighbours_on_disk_are_the_true_ones(tmp_path):
    pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    rows = (
        rng.normal(size=(3000, 16)).astype(np.float32)
        + 3 * rng.normal(size=(30, 16))[np.arange(3000) % 30]
    )
    rows = rows.astype(np.float32)
    names = [f"image-{number}" for number in range(3000)]
    (tmp_path / "parts").mkdir()
    for part in range(3):
        of_part = slice(1000 * part, 1000 * part + 1000)
        table = pyarrow.table({"name": names[of_part], "embedding": list(rows[of_part])})
        pq.write_table(table, tmp_path / "parts" / f"{part}.parquet")
    message = called(
        "neighbours_on_disk.py", "build", tmp_path / "parts", tmp_path / "index", "--probes", 8
    )
    assert float(re.search(r"recall .* (0\.\d+|1\.000)", message)[1]) > 0.9
    assert {file.name for file in (tmp_path / "index").iterdir()} == {
        "index.faiss",
        "lists.faiss",
        "names.parquet",
    }

    queries = tmp_path / "parts" / "2.parquet"
    called(
        "neighbours_on_disk.py",
        "search",
        tmp_path / "index",
        queries,
        tmp_path / "near.parquet",
        "--k",
        5,
    )
    near = pq.read_table(tmp_path / "near.parquet")
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    true = np.argsort(-(unit[2000:] @ unit.T), 1)[:, :5]
    neighbours = near["neighbour"].to_pylist()
    shared = [
        len({names[row] for row in rows} & set(neighbours[query]))
        for query, rows in enumerate(true)
    ]
    assert np.mean(shared) / 5 > 0.9
    assert [nearest[0] for nearest in neighbours] == names[2000:]
