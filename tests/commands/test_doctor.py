"""`nearfar doctor`: what it finds, and that its exit code says whether a run would work."""

import json
import os
import timeit
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest
from PIL import Image

import nearfar
from nearfar import device as device_module
from nearfar.cli import main
from nearfar.commands import doctor
from nearfar.data import open_images, resources
from nearfar.data.resources import usable_cores
from nearfar.training import trial

pytestmark = pytest.mark.usefixtures("known_speed")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A cache that holds one data set of five images, and a file that is not nearfar's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(5):
        Image.new("RGB", (12, 10), (40 * number, 9, 9)).save(photos / f"{number}.png")
    open_images(str(photos), image_size=8)
    (tmp_path / "nearfar" / "note.txt").write_text("mine")
    return tmp_path / "nearfar"


def files_in(folder):
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_it_tells_what_a_run_would_take(home):
    diagnosis = nearfar.doctor()
    assert diagnosis["problems"] == []
    assert (
        diagnosis["versions"]["nearfar"] == nearfar.__version__ and diagnosis["versions"]["torch"]
    )
    assert (
        set(diagnosis["extras"]) >= {"onnx", "detection", "tensorboard"}
        and "test" not in diagnosis["extras"]
    )
    assert (
        1 <= diagnosis["cores"] <= os.cpu_count()
        and diagnosis["memory"]["available"] <= diagnosis["memory"]["total"]
    )
    assert (
        diagnosis["images_per_second"] == 1000.0 and diagnosis["precision"] == "32-true"
    )  # as the tests measure every machine
    bytes_there = sum(path.stat().st_size for path in files_in(home) if path.name != "note.txt")
    assert (
        diagnosis["cache"]["data_sets"] == 1
        and diagnosis["cache"]["bytes"] == bytes_there > 5 * 3 * 8 * 8
    )


def test_it_times_convolutions(monkeypatch, log):
    monkeypatch.setattr(timeit, "repeat", lambda run, **_: run() is not None and [0.002, 0.001])
    diagnosis = nearfar.doctor()
    assert diagnosis["convolutions"] == {"float32": 1.0, "bfloat16": 1.0, "product": 1.0}
    assert not [note for note in diagnosis["notes"] if "convolution" in note]
    assert "float32 1.0 ms, bfloat16 1.0 ms, matrix" in log.text


def test_a_slow_convolution_is_a_note_in_the_types_that_a_run_would_use(monkeypatch):
    def notes(seconds, bfloat16):
        measured = iter([[time] for time in seconds])
        monkeypatch.setattr(timeit, "repeat", lambda run, **_: next(measured))
        monkeypatch.setattr(device_module, "has_bfloat16", lambda device: bfloat16)
        return [note for note in nearfar.doctor()["notes"] if "convolution" in note]

    [note] = notes((0.001, 0.030, 0.001), bfloat16=True)
    assert (
        note.startswith("a convolution in bfloat16 takes 30 times as long")
        and "reference kernel" in note
    )
    assert notes((0.001, 0.030, 0.001), bfloat16=False) == []
    assert len(notes((0.030, 0.030, 0.001), bfloat16=False)) == 1


def test_the_cache_is_emptied_where_that_is_asked_for(home, capsys):
    assert main(["doctor"]) == 0
    assert "nearfar doctor --empty-cache" in capsys.readouterr().out and len(files_in(home)) > 2
    assert main(["doctor", "--empty-cache", "--json"]) == 0
    emptied = json.loads(capsys.readouterr().out)["cache"]
    assert emptied["freed"] > 960 and emptied["data_sets"] == emptied["bytes"] == 0
    assert [path.name for path in files_in(home)] == ["note.txt"]
    assert Path(emptied["folder"]) == home


def test_what_is_missing_is_a_problem_with_a_way_out(monkeypatch, capsys):
    message = Message()
    for line in (
        "torch>=99",
        "timm>=1",
        "no-such-package>=2",
        'no-such-tool>=3; extra == "onnx"',
        'x; extra == "test"',
    ):
        message["Requires-Dist"] = line
    for extra in ("onnx", "test"):
        message["Provides-Extra"] = extra
    monkeypatch.setattr(metadata, "metadata", lambda name: message)
    assert main(["doctor", "--json"]) == 1
    diagnosis = json.loads(capsys.readouterr().out)
    old, missing = diagnosis["problems"]
    assert old.endswith("is not >=99: pip install 'torch>=99'")
    assert missing == "no-such-package is missing: pip install 'no-such-package>=2'"
    assert diagnosis["extras"] == {"onnx": {"no-such-tool": None}}


def test_a_step_that_fails_is_a_problem(monkeypatch, capsys):
    def broken(*given, **named):
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(trial, "training_speed", broken)
    assert main(["doctor"]) == 1
    assert "problem    a trial step failed: no kernel image" in capsys.readouterr().out
    monkeypatch.setattr(trial, "training_speed", lambda *given, **named: 0.0)
    assert (
        main(["doctor"]) == 1 and "problem    there is not enough memory" in capsys.readouterr().out
    )


def test_a_folder_that_cannot_be_written_is_a_problem(monkeypatch):
    def refused(folder):
        raise OSError(f"cannot write into {folder}: Read-only file system")

    monkeypatch.setattr(doctor, "check_folder", refused)
    here, cache = nearfar.doctor()["problems"]
    assert "Read-only" in here and "`out`" in here and "XDG_CACHE_HOME" in cache


def test_limits_of_a_container_count(monkeypatch, tmp_path):
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    cores = usable_cores()
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores() == cores
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert usable_cores() == 1
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert resources.machine_memory() == {"total": 1_000_000, "available": 600_000}
