"""Embeddings as files for other programs."""

import numpy as np
import pyarrow.parquet
import pytest

from nearfar.evaluation import write_table

NAMES, FEATURES = ["a.png", "b.png"], np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.5]], dtype=np.float32)


def test_rows_and_columns(tmp_path):
    labels = np.array([3, 1])
    for ending in ("parquet", "csv", "npz"):
        write_table(tmp_path / f"x.{ending}", NAMES, FEATURES, labels)
    table = pyarrow.parquet.read_table(tmp_path / "x.parquet")
    assert table.to_pydict() == {"name": NAMES, "label": [3, 1], "embedding": FEATURES.tolist()}
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert [line.replace('"', "") for line in lines] == ["name,label,e0,e1,e2", "a.png,3,1,2,3", "b.png,1,4,5,6.5"]
    arrays = np.load(tmp_path / "x.npz")
    assert arrays["name"].tolist() == NAMES and (arrays["embedding"] == FEATURES).all()


@pytest.mark.parametrize("ending", ["parquet", "csv", "npz"])
def test_a_failed_write_leaves_the_file_that_was_there(tmp_path, monkeypatch, ending):
    def full(number):
        raise OSError("no space left on device")

    path = tmp_path / f"x.{ending}"
    path.write_text("before")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_table(path, NAMES, FEATURES)
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
