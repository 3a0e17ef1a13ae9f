"""A run folder that was damaged anywhere still gives what it gave, or says in one line of ours what
is wrong.
"""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

import nearfar
from nearfar.pages.report import write_report
from tests.torture.test_hostile_runs import is_safe

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


@given(where=st.floats(0, 1, exclude_max=True), bits=st.integers(1, 255))
def test_features_that_were_changed_on_the_disk_are_computed_anew(where, bits, whole):
    path, known = whole.path / "features.safetensors", nearfar.embed(whole).features
    before = path.read_bytes()
    content = bytearray(before)
    content[int(where * len(content))] ^= bits
    path.write_bytes(content)
    try:
        assert torch.allclose(nearfar.embed(whole).features, known, atol=1e-5)
    finally:
        path.write_bytes(before)


PIECES = ["<script>", "</script>", "</style>", "<img src=x onerror=", "'", '"', "&", "&lt;", "-->"]
PIECES += ["<!--", "<", ">", "]]>", "{{", "{%", "javascript:", "\u2028", "\n", "x", " ", "\\"]
MARKUP = st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join)
OF_A_REPORT = ["config.yaml", "metrics.jsonl", "results.json", "neighbours.json"]
OF_A_REPORT += ["environment.json", "views.json", "skipped.txt"]


def places_in(value, above=()):
    """The paths to all values and names of a nested value; those of names end in None."""
    yield above
    inner = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value[:3]) if isinstance(value, list) else inner
    for key, part in inner:
        yield from places_in(part, (*above, key))
        if isinstance(value, dict):
            yield (*above, key, None)


def with_text(value, place, text):
    """A copy of a nested value with a text at a place."""
    if not place:
        return text
    key, *rest = place
    if rest == [None]:
        return {(text if name == key else name): part for name, part in value.items()}
    inner = list(value) if isinstance(value, list) else dict(value)
    inner[key] = with_text(value[key], rest, text)
    return inner


@given(name=st.sampled_from(OF_A_REPORT), text=MARKUP, data=st.data())
def test_texts_in_a_run_folder_stay_texts_in_its_report(name, text, data, whole):
    """In any value or name of its files: no tag, handler or address of theirs is in the page."""
    path = whole.path / name
    before = path.read_text(encoding="utf-8") if path.is_file() else None
    lines = [json.loads(line) for line in before.splitlines()] if name == "metrics.jsonl" else []
    read = yaml.safe_load if name.endswith(".yaml") else json.loads
    known = lines or (before and read(before)) if name != "skipped.txt" else None
    place = data.draw(st.sampled_from(sorted(set(places_in(known)), key=repr)))
    changed = with_text(known, place, text)
    try:
        if name == "skipped.txt":
            path.write_text(f"{text}\t{text}\n", encoding="utf-8")
        elif name == "metrics.jsonl" and isinstance(changed, list):
            path.write_text("".join(f"{json.dumps(line)}\n" for line in changed), encoding="utf-8")
        elif name.endswith(".yaml"):
            path.write_text(yaml.safe_dump(changed), encoding="utf-8")
        else:
            path.write_text(json.dumps(changed), encoding="utf-8")
        is_safe(write_report(whole.path).read_text(encoding="utf-8"))
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_text(before, encoding="utf-8")
