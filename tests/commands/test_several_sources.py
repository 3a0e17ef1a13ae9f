"""Several sources from end to end: trained, resumed, embedded and drawn with the columns of a table
of paths.
"""

import json
import os
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file

import nearfar
from nearfar.cli import main
from tests.steps import at_step

pytestmark = pytest.mark.usefixtures("known_speed")

FAST = [
    "--epochs",
    "2",
    "--batch-size",
    "8",
    "--held-out",
    "8",
    "--encoder",
    "small",
    "--log-every",
    "1",
]
FAST += ["--precision", "32-true", "--method", "simclr"]


@pytest.fixture
def places(tmp_path, monkeypatch):
    """The folders a and b of twelve small pictures each, and c.csv with eight more, of which one is
    not there.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for number in range(32):
        folder = ("a", "b", "loose")[min(number // 12, 2)]
        place = tmp_path / folder / f"{'cat' if number % 2 else 'dog'}-{number % 12}.png"
        place.parent.mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place)
    rows = [
        f"loose/{name},{len(name)},{name[:3]}\n" for name in sorted(os.listdir(tmp_path / "loose"))
    ]
    (tmp_path / "c.csv").write_text(
        "path,length,label\n" + "".join(rows) + "loose/lost.png,0,dog\n"
    )
    return ["a", "b", "c.csv"]


@pytest.mark.slow
def test_a_run_on_several_sources(places, tmp_path, capsys):
    with at_step(3):
        assert main(["pretrain", *places, "--out", "run", *FAST]) == 130
    saved = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert saved["data"] == [str(tmp_path / name) for name in places]
    assert (
        tmp_path / "run/skipped.txt"
    ).read_text() == "c.csv/loose/lost.png\tthere is no such file\n"
    assert main(["pretrain", "--resume", "run"]) == 0
    options = dict(
        epochs=2, batch_size=8, held_out=8, encoder="small", precision="32-true", method="simclr"
    )
    whole = nearfar.pretrain([tmp_path / name for name in places], out="whole", **options)
    weights, expected = (
        load_file("run/encoder.safetensors"),
        load_file(whole.path / "encoder.safetensors"),
    )
    assert all(torch.equal(value, expected[name]) for name, value in weights.items())
    assert "<h1>a + b + c.csv</h1>" in (tmp_path / "run/report.html").read_text()
    again = ["pretrain", "--config", "run/config.yaml", "--out", "again"]
    assert (
        main(again) == 0
        and yaml.safe_load((tmp_path / "again/config.yaml").read_text())["data"] == saved["data"]
    )

    assert main(["embed", "run", "--out", "rows.parquet"]) == 0
    rows = pq.read_table("rows.parquet")
    assert rows.column_names == ["name", "length", "label", "embedding"] and len(rows) == 32
    assert rows["length"].to_pylist()[-8:] == [len(name) for name in sorted(os.listdir("loose"))]
    assert rows["label"].to_pylist()[:24] == [None] * 24
    assert main(["embed", "run", "c.csv", "--out", "own.parquet"]) == 0
    own = pq.read_table("own.parquet")
    assert own.column_names == ["name", "label", "length", "table_label", "embedding"]
    assert own["label"].to_pylist() == own["table_label"].to_pylist() and set(
        own["label"].to_pylist()
    ) == {
        "cat",
        "dog",
    }
    for ending in ("csv", "npz"):
        assert main(["embed", "run", "c.csv", "--out", f"own.{ending}"]) == 0
    assert (
        (tmp_path / "own.csv").read_text().startswith('"name","label","length","table_label","e0",')
    )
    assert np.load("own.npz")["table_label"].tolist() == own["table_label"].to_pylist()
    assert np.load("own.npz")["label"].tolist() == own["label"].to_pylist()

    page = nearfar.map("run", "c.csv", out="map.html", epochs=1).path
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))[1])
    assert [column["name"] for column in data["columns"]][:2] == ["label", "length"]
    nearest = nearfar.search("run", ["a/cat-1.png"], data=["a", "c.csv"], k=2)
    assert nearest["path"][0].startswith(str(tmp_path)) and len(nearest["name"]) == 2


def test_a_label_column_is_evaluated(places, tmp_path):
    run = nearfar.pretrain("c.csv", out="run", epochs=1, batch_size=4, held_out=0, encoder="small")
    with open("c.csv") as file:
        lines = file.read().splitlines()
    lines = [
        lines[0] + ",kind",
        *(f"{line},{'odd' if place % 2 else 'even'}" for place, line in enumerate(lines[1:])),
    ]
    (tmp_path / "k.csv").write_text("\n".join(lines))
    options = dict(protocol=("knn_1",), test_share=0.25, baselines=False)
    assert set(nearfar.evaluate(run, "k.csv", label_column="kind", **options)) == {"trained"}
    with pytest.raises(
        ValueError,
        match=r"k\.csv' .*'sort'.*: length, label, kind",
    ):
        nearfar.evaluate(run, "k.csv", label_column="sort", **options)


def test_image_files_from_the_command_line(tmp_path, capsys, complaint, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for number in range(12):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(f"{number:02d}.png")
    files = sorted(path.name for path in tmp_path.glob("*.png"))
    options = (
        "--epochs 1 --batch-size 4 --held-out 0 --encoder small --precision 32-true "
        "--method simclr --out run"
    )
    assert main(["pretrain", *files, *options.split()]) == 0
    assert "simclr on 12 images of 16 px" in capsys.readouterr().out
    run = tmp_path / "run"
    assert nearfar.Run(run).settings.data == [str(tmp_path / name) for name in files]
    monkeypatch.chdir("/")
    assert main(["embed", str(run), "--out", str(tmp_path / "e.parquet")]) == 0
    assert pq.read_table(tmp_path / "e.parquet")["name"].to_pylist() == files
    assert main(["pretrain", "--resume", str(run)]) == 0
    assert "no file or folder '00.png'" in complaint("pretrain", "00.png", "nowhere.png")
