"""A run folder that was damaged anywhere still gives what it gave, or says in one line of ours what
is wrong.
"""

import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import nearfar

FILES = (
    "config.yaml",
    "config.json",
    "encoder.safetensors",
    "checkpoints/last.ckpt",
    "metrics.jsonl",
    "environment.json",
    "data.arrow",
    "results.json",
    "features.safetensors",
)
OURS = (ValueError, FileNotFoundError, nearfar.TrainingDiverged)


@pytest.fixture(scope="module")
def whole(images_file, tmp_path_factory):
    """A run with results and features, and its images."""
    run = nearfar.pretrain(
        images_file,
        out=tmp_path_factory.mktemp("whole") / "run",
        epochs=2,
        batch_size=16,
        held_out=16,
        encoder="tiny",
        precision="32-true",
    )
    nearfar.evaluate(run)
    nearfar.duplicates(run)
    return run


@st.composite
def damages(draw, present):
    """A function that changes the bytes of one of the files."""
    name = draw(st.sampled_from(present))
    kind = draw(st.sampled_from(["cut", "flip", "insert", "empty", "gone", "other"]))
    where = draw(st.floats(0, 1, exclude_max=True))
    value = draw(st.binary(min_size=1, max_size=8))
    another = draw(st.sampled_from(present))

    def damage(folder):
        path = folder / name
        content = path.read_bytes()
        place = int(where * len(content))
        if kind == "gone":
            path.unlink()
        elif kind == "other":
            path.write_bytes((folder / another).read_bytes())
        else:
            ends = {"cut": b"", "empty": b"", "insert": content[place:]}
            start = b"" if kind == "empty" else content[:place]
            middle = value if kind in ("flip", "insert") else b""
            path.write_bytes(start + middle + ends.get(kind, content[place + len(value) :]))

    return damage


@given(data=st.data())
def test_a_damaged_run_gives_what_it_gave_or_says_what_is_wrong(data, whole, tmp_path_factory):
    present = [name for name in FILES if (whole.path / name).is_file()]
    damage = data.draw(damages(present))
    folder = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(whole.path, folder)
    damage(folder)
    images = torch.from_numpy(np.zeros((2, 1, 8, 8), np.uint8))
    for use in (
        lambda: nearfar.load(folder)(images),
        lambda: nearfar.Run(folder).metrics,
        lambda: nearfar.Run(folder).verdict,
        lambda: nearfar.duplicates(folder),
        lambda: nearfar.evaluate(folder),
        lambda: nearfar.resume(folder),
    ):
        try:
            use()
        except OURS as error:
            assert str(error) and "\n" not in str(error)
    shutil.rmtree(folder)
