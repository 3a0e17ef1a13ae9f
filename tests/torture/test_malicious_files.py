"""Files made to run code, to leave their folder or to fill the memory: nothing runs or leaves,
little is taken.
"""

import io
import json
import os
import pickle
import signal
import subprocess
import sys
import tarfile
import textwrap
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import nearfar
from fuzz import seeds
from nearfar.cli import main
from nearfar.data import list_splits, open_images
from nearfar.messages import load_yaml
from nearfar_papers.paper import read_paper
from tests.pictures import tar

IMAGE = io.BytesIO()
Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(
    IMAGE, "PNG"
)
GOOD = IMAGE.getvalue()


pytestmark = pytest.mark.usefixtures("own_cache", "papers_installed")


class Payload:
    """Loaded as a pickle it makes a folder."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.makedirs, (self.mark,)


def array_of_objects(mark):
    file = io.BytesIO()
    np.save(file, np.array([Payload(mark)], object), allow_pickle=True)
    return file.getvalue()


def checkpoint(mark):
    file = io.BytesIO()
    torch.save({"weight": Payload(mark)}, file)
    return file.getvalue()


def zipped(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


PAYLOADS = {
    "pickle": lambda mark: pickle.dumps(Payload(mark)),
    "objects": array_of_objects,
    "torch": checkpoint,
}
NAMES = ["a.npy", "a.npz", "a.parquet", "a.tar", "a.pkl", "in/a.png", "in/a.tif"]


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("name", NAMES)
def test_a_pickle_under_any_name_is_never_loaded(tmp_path, name, payload):
    mark, content = tmp_path / "ran", PAYLOADS[payload](tmp_path / "ran")
    pickle.loads(pickle.dumps(Payload(mark)))
    assert mark.is_dir()  # the payload works
    mark.rmdir()
    (tmp_path / "in").mkdir()
    (tmp_path / name).write_bytes(content)
    source = tmp_path / name if "/" not in name else tmp_path / "in"
    for ask in (open_images, list_splits, lambda path: open_images(path, few=2)):
        try:
            ask(source)
        except (ValueError, OSError) as error:
            assert len(str(error).splitlines()) == 1
    assert not mark.exists()


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_pickle_inside_an_archive_is_never_loaded(tmp_path, payload):
    mark, content = tmp_path / "ran", PAYLOADS[payload](tmp_path / "ran")
    for names in (["images.npy"], ["images", "x.npy"], ["x.npy", "y.npy"], ["data.pkl"]):
        (tmp_path / "a.npz").write_bytes(zipped(dict.fromkeys(names, content)))
        with pytest.raises(ValueError, match=r"a\.npz"):
            open_images(tmp_path / "a.npz")
    endings = ("pkl", "pickle", "pyd", "pth", "pt", "npy", "npz", "ten", "cls", "json")
    members = {f"0.{ending}": content for ending in endings} | {"0.png": GOOD, "1.png": content}
    tar(tmp_path / "a.tar", members.items())
    images = open_images(tmp_path / "a.tar")
    assert images.names == ["a/0"] and [name for name, _ in images.skipped] == ["a/1"]
    cells = [{"bytes": data, "path": None} for data in (content, GOOD)]
    for notes in (
        {
            "pandas": json.dumps(
                {"columns": [{"name": "img", "pandas_type": "object", "numpy_type": "object"}]}
            )
        },
        {
            "huggingface": json.dumps(
                {"info": {"features": {"img": {"_type": "os.system", "command": "x"}}}}
            )
        },
        {"huggingface": content},
        {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": content},
    ):
        pq.write_table(
            pa.table({"img": cells}).replace_schema_metadata(notes), tmp_path / "a.parquet"
        )
        try:
            assert open_images(tmp_path / "a.parquet").names == ["000001"]
        except ValueError as error:
            assert len(str(error).splitlines()) == 1
    assert not mark.exists()


def test_nothing_outside_the_source_is_read_or_written(tmp_path):
    (tmp_path / "secret.png").write_bytes(GOOD)
    folder = tmp_path / "in"
    folder.mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    paths = [
        "../secret.png",
        str(tmp_path / "secret.png"),
        "file:///etc/passwd",
        "http://127.0.0.1/a.png",
        "~/a.png",
    ]
    cells = [{"bytes": None, "path": path} for path in paths] + [
        {"bytes": GOOD, "path": "../../written.png"}
    ]
    pq.write_table(pa.table({"image": cells}), folder / "a.parquet")
    assert open_images(folder / "a.parquet").names == ["../../written.png"]
    link = tarfile.TarInfo("link.png")
    link.type, link.linkname = tarfile.SYMTYPE, "../secret.png"
    names = ("../../written.png", str(tmp_path / "written.png"), "ok.png")
    tar(folder / "a.tar", [*((name, GOOD) for name in names), link])
    assert len(open_images(folder / "a.tar")) == 3
    (folder / "a.parquet").unlink()
    (folder / "a.tar").unlink()
    for path in paths[:4]:
        (folder / "metadata.csv").write_text(f"file_name,kind\n{path},1\n")
        (folder / "0.png").write_bytes(GOOD)
        with pytest.raises(ValueError, match=r"cannot read|no label in"):
            open_images(folder, label_column="kind")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


LIMITED = """
    import resource, sys
    from nearfar.data import open_images
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        print(len(open_images(sys.argv[1], image_size=32)))
    except ValueError as error:
        print("refused:", str(error).splitlines()[0][:200])
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def bomb(kind, path):
    """Write a small file that claims or unpacks to gigabytes."""
    if kind == "zip":
        with (
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open("images.npy", "w") as file,
        ):
            np.lib.format.write_array_header_1_0(
                file, {"descr": "|u1", "fortran_order": False, "shape": (10**9, 64, 64)}
            )
            for _ in range(300):
                file.write(bytes(2**20))
    elif kind == "sparse":
        info = tarfile.TarInfo("a.png")
        info.pax_headers = {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.realsize": str(2**50),
        }
        info.size = 512
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as file:
            file.addfile(info, io.BytesIO(b"1\n0\n512\n".ljust(512, b"\0")))
    elif kind == "gzip":
        import gzip

        content = gzip.compress(bytes(500 * 2**20))
        with tarfile.open(path, "w") as file:
            info = tarfile.TarInfo("a.png.gz")
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    else:
        cells = pa.array([{"bytes": bytes(2**23)}] * 100)
        pq.write_table(pa.table({"image": cells}), path, use_dictionary=True, compression="zstd")


@pytest.mark.parametrize(
    ("kind", "ending"), [("zip", "npz"), ("sparse", "tar"), ("gzip", "tar"), ("table", "parquet")]
)
def test_a_bomb_takes_little_memory(tmp_path, kind, ending):
    bomb(kind, tmp_path / f"a.{ending}")
    assert (tmp_path / f"a.{ending}").stat().st_size < 2_000_000
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED), str(tmp_path / f"a.{ending}")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.startswith("refused:"), done.stderr
    assert int(done.stdout.split()[-1]) < 400


@pytest.fixture
def finished(tmp_path):
    """A run folder."""
    options = dict(
        epochs=1, limit=64, held_out=0, batch_size=16, encoder="small", precision="32-true"
    )
    return nearfar.pretrain("digits", out=tmp_path / "run", **options).path


def refused(capsys, *words):
    """The message, in one line, within half a minute."""

    def late(*_):
        raise TimeoutError("it waited")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(30)
    try:
        assert main([str(word) for word in words]) == 2
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    message = capsys.readouterr().err
    assert message.count("\n") == 1, message
    return message


def test_pipes_and_devices_are_not_read_as_settings_or_names(tmp_path, finished, capsys):
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    assert "not a regular file" in refused(capsys, "pretrain", "digits", "--config", pipe)
    assert "not a regular file" in refused(capsys, "pretrain", "digits", f"--config={pipe}")
    assert "not a regular file" in refused(capsys, "reproduce", f"{pipe}/table-1")
    words = "evaluate", finished, "--protocol", "finetune-50", "--labels"
    assert "a named pipe" in refused(capsys, *words, pipe)
    assert "a device" in refused(capsys, *words, "/dev/zero")
    assert "not a regular file" in refused(capsys, "pretrain", "digits", "--config", "/dev/zero")


BILLION = "a: &a [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + "".join(
    f"{name}: &{name} [{', '.join(9 * ['*' + before])}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize("text", [BILLION, "a: &a [*a]\n", "a: &a {b: *a}\n"])
def test_aliases_that_make_a_small_file_large_are_refused(tmp_path, capsys, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert "aliases" in refused(capsys, "pretrain", "digits", "--config", path)
    assert "aliases" in refused(capsys, "reproduce", f"{path}/table-1")
    (tmp_path / "environment.json").write_text("{}")
    assert "aliases" in refused(capsys, "pretrain", "--resume", tmp_path)


def test_an_alias_is_no_harm(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("mean: &one [0.5, 0.5, 0.5]\nstd: *one\ndata: [" + "x, " * 2000 + "x]\n")
    assert load_yaml(path)["std"] == [0.5, 0.5, 0.5]


PAPER = seeds.PAPER.decode()
ELSEWHERE = [
    "../x",
    "../../x",
    "/x",
    "a/b",
    "a\\\\b",
    "..",
    ".",
    "",
    " ",
    "a\\nb",
    "a\\0b",
    300 * "x",
]
ABSURD = ["1000000000", "-1", "0", "1.5", "true", ".inf", "[1]", "'3'", "1e9", "null"]


@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.parametrize(
    "place", ["table-1:", "simclr: {", "digits: {data", "{data: digits}", "method: simclr"]
)
def test_a_name_in_a_foreign_paper_leads_nowhere_else(tmp_path, capsys, monkeypatch, name, place):
    inside = tmp_path / "in" / "side"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    word = next(
        word
        for word in ("table-1", "simclr: {", "digits: {data", "digits}", "simclr")
        if word in place
    )
    word = word.removesuffix(": {").removesuffix(": {data").removesuffix("}")
    if place == "method: simclr":
        text = PAPER.replace(place, f'method: "{name}"')
    else:
        text = PAPER.replace(
            place,
            place.replace(word, f'"{name}"', 1)
            if place != "{data: digits}"
            else f'{{data: "{name}"}}',
        )
    assert text != PAPER
    (inside / "own.yaml").write_text(text)
    message = refused(capsys, "reproduce", "own.yaml", "--data", "data", "--out", "out")
    assert (
        "no plain name" in message
        or "there is no method" in message
        or "YAML" in message
        or "own.yaml" in message
    )
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["in", "own.yaml", "side"]


def test_a_paper_whose_own_name_leads_elsewhere_is_refused(tmp_path, capsys):
    path = tmp_path / "...yaml"
    path.write_text(PAPER)
    assert "the paper '..' is no plain name" in refused(capsys, "reproduce", path)


def test_a_foreign_paper_does_not_choose_where_runs_are_written(tmp_path, capsys):
    path = tmp_path / "own.yaml"
    path.write_text(PAPER.replace("limit: 64", "limit: 64, out: /tmp/x"))
    assert "a table sets no out" in refused(capsys, "reproduce", path)


@pytest.mark.parametrize("number", ABSURD)
@pytest.mark.parametrize("place", ["    seeds: 1", "{seeds: 1", "first_seed: 0"])
def test_absurd_counts_in_a_foreign_paper_are_refused(tmp_path, capsys, place, number):
    path = tmp_path / "own.yaml"
    path.write_text(PAPER.replace(place, f"{place[:-1]}{number}"))
    if (place, number) in {("first_seed: 0", "0"), ("first_seed: 0", "1000000000")}:
        assert read_paper(path).tables["table-1"].first_seed == int(number)
    else:
        assert "must be a whole number from" in refused(capsys, "reproduce", path)


NUMBER = {"value": 1.0, "seconds": 1.0, "commands": []}
OUTCOME = {
    "paper": "a paper",
    "table": "table-1",
    "cells": {"simclr/digits": {"key": "0", "reading": "run knn", "seeds": {"0": NUMBER}}},
    "claims": [{"text": "x", "section": "", "holds": "yes", "numbers": "1", "p": 0.5}],
}


def variants(value):
    """A value of JSON, each with one part of another kind, or without it."""
    for other in (None, 3, "x", [], {}, [1], float("nan"), 1e308, [[]]):
        if type(other) is not type(value) or isinstance(value, float):
            yield other
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {name: part for name, part in value.items() if name != key}
            for variant in variants(inner):
                yield {**value, key: variant}
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            for variant in variants(inner):
                yield [*value[:place], variant, *value[place + 1 :]]


def test_damaged_numbers_beside_a_table_are_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(PAPER)
    path = tmp_path / "out" / "own" / "table-1.json"
    path.parent.mkdir(parents=True)
    path.with_suffix(".md").touch()
    texts = ["", "{", "[]", "\0", "[" * 10**5, *map(json.dumps, variants(OUTCOME))]
    outcomes = set()
    for text in texts:
        path.write_text(text)
        code = main(["reproduce", "own.yaml", "--no-run", "--out", "out"])
        message = capsys.readouterr().err
        assert code in (0, 2), text
        assert message.count("\n") == (code == 2), (text, message)
        outcomes.add(code)
    assert outcomes == {0, 2}
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in refused(capsys, "reproduce", "own.yaml", "--out", "out")
    path.unlink()
    measured = tmp_path / "out" / "runs" / f"simclr-digits-{key_of(tmp_path)}-0" / "measured.json"
    measured.parent.mkdir(parents=True)
    for text in [
        "",
        "{",
        "[]",
        '{"run knn": 3}',
        '{"pretrain": {}}',
        '{"run knn": {"value": "x"}}',
    ]:
        measured.write_text(text)
        assert "measured.json is damaged" in refused(
            capsys, "reproduce", "own.yaml", "--out", "out"
        )


def key_of(folder):
    return read_paper(folder / "own.yaml").tables["table-1"].cells()[0].key
