"""Files of a run folder are checked before they are believed; a map knows its images by their
content.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file, save_file

import nearfar
from nearfar.atomic import _machine, replacing
from nearfar.cli import main
from tests.pictures import png


@pytest.fixture
def photos(tmp_path):
    """A folder of thirty images, sorted by class, and a run on it with its map."""
    for number in range(30):
        place = tmp_path / "photos" / ("cat" if number < 20 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:02d}.png").write_bytes(png(number, 16))
    options = dict(
        epochs=1, batch_size=8, held_out=6, encoder="tiny", precision="32-true", workers=0
    )
    run = nearfar.pretrain(str(tmp_path / "photos"), out=str(tmp_path / "run"), **options)
    nearfar.map(run, epochs=5)
    return run


def table(run, out, **options):
    nearfar.embed(run, out=out, **options)
    return pyarrow.parquet.read_table(out).to_pydict()


def test_an_image_that_was_replaced_gets_a_new_place_and_the_others_keep_theirs(photos, tmp_path):
    before = table(photos, tmp_path / "before.parquet", map=True)
    (tmp_path / "photos/cat/03.png").write_bytes(png(99, 16))
    after = table(photos, tmp_path / "after.parquet", map=True)
    moved = [
        name
        for name, *places in zip(
            before["name"], before["x"], before["y"], after["x"], after["y"], strict=True
        )
        if places[:2] != places[2:]
    ]
    assert moved == ["cat/03.png"]


def test_few_other_images_push_out_no_features_of_many(photos, log):
    photos.search(str(photos.path.parent / "photos/cat/00.png"), k=2)
    path = photos.path / "features.safetensors"
    assert len(load_file(path)["features"]) == 30
    few = photos.path.parent / "few"
    few.mkdir()
    for number in range(4):
        (few / f"{number}.png").write_bytes(png(200 + number, 16))
    nearfar.check(photos, str(few), out=photos.path.parent / "few.html")
    assert len(load_file(path)["features"]) == 30
    log.clear()
    nearfar.select(photos, n=3)
    assert "4 of 30 images" in log.text


DAMAGE = {
    "nan": lambda path, known: save_file(
        {**known, "features": torch.full_like(known["features"], torch.nan)}, path
    ),
    "narrow": lambda path, known: save_file(
        {**known, "features": known["features"][:, :3].contiguous()}, path
    ),
    "empty": lambda path, known: path.write_bytes(b""),
    "cut off": lambda path, known: path.write_bytes(path.read_bytes()[:200]),
    "text": lambda path, known: path.write_text("features"),
    "folder": lambda path, known: (path.unlink(), path.mkdir()),
    "pipe": lambda path, known: (path.unlink(), os.mkfifo(path)),
    "device": lambda path, known: (path.unlink(), path.symlink_to("/dev/zero")),
    "one bit": lambda path, known: path.write_bytes(
        path.read_bytes()[:-40] + bytes([path.read_bytes()[-40] ^ 64]) + path.read_bytes()[-39:]
    ),
}


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices")
@pytest.mark.parametrize("kind", DAMAGE)
def test_stored_features_that_are_damaged_are_computed_anew(kind, trained, tmp_path):
    run = nearfar.Run(shutil.copytree(trained.path, tmp_path / "run"))
    before = table(run, tmp_path / "before.parquet")
    path = run.path / "features.safetensors"
    DAMAGE[kind](path, load_file(path))
    after = table(run, tmp_path / "after.parquet")
    assert np.allclose(after["embedding"], before["embedding"], atol=1e-5)


@pytest.mark.skipif(os.name != "posix", reason="file descriptors of a shell")
@pytest.mark.parametrize("closed", [">&- 2>&-", "| true"])
@pytest.mark.slow
def test_no_closed_stream_ends_a_verb_before_its_files_are_written(closed, images_file, tmp_path):
    words = f"{sys.executable} -m nearfar duplicates {images_file} --out {tmp_path}/found.html"
    done = subprocess.run(["bash", "-c", f"{words} {closed}"], capture_output=True, text=True)
    assert (tmp_path / "found.html").is_file() and (tmp_path / "found.csv").is_file()
    assert "Traceback" not in done.stderr and done.returncode == 0


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_nor_does_one_that_was_closed_at_the_start(name, images_file, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, name, None)  # as Python sets it then
    assert main(["duplicates", images_file, "--out", f"{tmp_path}/found.html"]) == 0
    assert (tmp_path / "found.html").is_file() and (tmp_path / "found.csv").is_file()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="process numbers")
def test_what_a_killed_process_left_is_removed_and_what_a_live_one_writes_stays(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = tmp_path / f".map.{_machine()}-{gone.pid}.partial.html"
    folder = tmp_path / f".map.{_machine()}-{gone.pid}.partial"
    live = tmp_path / f".map.{_machine()}-{os.getppid()}.partial.html"
    elsewhere = tmp_path / ".map.00000000-1.partial.html"
    old = tmp_path / ".map.00000000-2.partial.html"
    other = tmp_path / f".maps.{_machine()}-{gone.pid}.partial.html"
    for path in (left, live, elsewhere, old, other):
        path.touch()
    folder.mkdir()
    os.utime(old, (0, 0))
    with replacing(tmp_path / "map.html") as unfinished:
        unfinished.write_text("new")
    names = {path.name for path in Path(tmp_path).iterdir()}
    assert names == {"map.html", live.name, elsewhere.name, other.name}


@pytest.mark.parametrize(
    "pace",
    [
        {"steps": 10**12},
        {"steps": -1},
        {"steps": float("nan")},
        {"steps": True},
        {"from_step": -1},
        {"from_step": 10**9},
        {"from_position": float("nan")},
        {"from_position": -5.0},
        {"from_position": 1e9},
    ],
    ids=str,
)
def test_a_checkpoint_on_no_schedule_is_refused(pace, trained, tmp_path, unchecked):
    run = shutil.copytree(trained.path, tmp_path / "run")
    (run / "encoder.safetensors").unlink()
    path = run / "checkpoints" / "last.ckpt"
    state = torch.load(path, weights_only=True)
    torch.save(state | {"pace": state["pace"] | pace}, path)
    with pytest.raises(ValueError, match="checkpoint") as caught:
        nearfar.resume(run)
    assert len(str(caught.value).splitlines()) == 1
