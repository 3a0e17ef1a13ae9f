"""A run on a stream from end to end: stopped and resumed, on two processes, and what it refuses."""

import re

import pytest

import nearfar
from tests.pictures import png, tar
from tests.steps import at_step, same_runs

SETTINGS = dict(
    epochs=2, batch_size=8, held_out=16, encoder="small", method="simclr", log_every=1, workers=1
)
SETTINGS |= dict(precision="32-true", stream=True, accelerator="cpu")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Four tars of twenty small pictures each; one of the last tar is broken."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(4):
        contents = [
            b"broken" if (shard, number) == (3, 7) else png(20 * shard + number)
            for number in range(20)
        ]
        tar(
            folder / f"{shard}.tar",
            [(f"{number:02d}.png", content) for number, content in enumerate(contents)],
        )
    return folder


@pytest.mark.slow
def test_a_stream_that_was_stopped_goes_on_exactly(shards, tmp_path, own_cache):
    whole = nearfar.pretrain(shards, out=tmp_path / "whole", **SETTINGS)
    steps = [line["step"] for line in whole.metrics if "loss" in line]
    assert steps == list(range(1, 17))  # 64 of 80 images, by 8
    with at_step(3, 11):
        with pytest.raises(nearfar.TrainingStopped):
            nearfar.pretrain(shards, out=tmp_path / "run", **SETTINGS)
        with pytest.raises(nearfar.TrainingStopped):
            nearfar.resume(tmp_path / "run")
    run = nearfar.resume(tmp_path / "run")
    same_runs(run, whole)
    assert next(line["health"]["images"] for line in run.metrics if "health" in line) == 16
    assert [
        line.split("\t")[0] for line in (run.path / "skipped.txt").read_text().splitlines()
    ] == ["3/07"]
    assert (run.path / "neighbours.json").is_file() and (run.path / "views.html").is_file()
    with pytest.raises(ValueError, match="resume with 1"):
        nearfar.resume(run, devices=2)
    assert list(own_cache.rglob("*.arrow")) and not list(own_cache.rglob("pixels.u8"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--method", "saclr", "--scale", "row"],
            r"numbers for each image.*--scale matrix",
        ),
        (
            ["--method", "sogclr"],
            r"sogclr.*--method saclr --scale matrix",
        ),
        (["--method", "isogclr"], "keeps numbers for each image"),
        (["--limit", "20"], "--limit does not go"),
    ],
)
def test_what_a_stream_cannot_do_is_one_line(shards, tmp_path, complaint, words, says, own_cache):
    out = tmp_path / "run"
    assert re.search(
        says, complaint("pretrain", shards, "--stream", "--epochs", "1", "--out", out, *words)
    )
    assert not (tmp_path / "run").exists()
