"""Runs that are killed at any moment, that two processes want, or whose terminal closes: nothing is
lost.

Processes are forked from one server that has imported everything, so that a moment is a moment of
the run.
"""

import contextlib
import importlib
import multiprocessing
import os
import pty
import random
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

import nearfar
from nearfar.cli import main
from nearfar.training import loop, run_folder
from tests.pictures import png, tar

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["nearfar.commands.pretrain", "nearfar.cli", "sklearn", "matplotlib.figure", "datasets"]
)
SETTINGS = dict(
    epochs=6, batch_size=8, held_out=8, encoder="tiny", log_every=1, precision="32-true"
)
STREAM = dict(method="simclr", stream=True, workers=0)  # else a killed run leaves its reader
METHODS = {
    "saclr-row": dict(method="saclr", scale="row"),
    "moco-v2": dict(method="moco-v2", queue_size=20),
    "two-processes": dict(method="simclr", devices=2, accelerator="cpu"),
    "stream": STREAM,
    "stream-of-two-processes": dict(**STREAM, devices=2, accelerator="cpu"),
}
LONG = 600  # seconds that nothing here takes, but on a machine that does other things too


def train(data: str, out: str, **options: object) -> None:
    """Begin a run, or resume it where it has begun."""
    loop.SAVE_SECONDS = 0.0  # a checkpoint after each epoch
    with (
        open(Path(out).with_suffix(".log"), "a") as log,
        contextlib.redirect_stderr(log),
        contextlib.redirect_stdout(log),
    ):
        if (Path(out) / "config.yaml").is_file():
            code = main(["pretrain", "--resume", out])
        else:
            words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
            code = main(["pretrain", data, "--out", out, *words])
    os._exit(code)


def stop_in(where: str, number: int, data: str, out: str, **options: object) -> None:
    """Begin a run that gets a signal, twice, as a function of it is called."""

    def called(*args: object, **named: object) -> None:
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)

    module, _, name = where.rpartition(".")
    setattr(importlib.import_module(module), name, called)
    train(data, out, **options)


def move_in(place: bool, data: str, out: str, **options: object) -> None:
    """Begin a run whose folder is renamed after the second epoch; place: another folder then stands
    in its place.
    """
    save = run_folder.save_checkpoint

    def saved(path: Path, state: dict) -> None:
        save(path, state)
        if state["step"] == 8:
            os.rename(out, f"{out}-moved")
            if place:
                os.mkdir(out)

    run_folder.save_checkpoint = saved
    train(data, out, **options)


def started(data, out, *first, target=train, **options):
    process = SERVER.Process(
        target=target, args=(*first, str(data), str(out)), kwargs=SETTINGS | options
    )
    process.start()
    return process


def finished(data, out, **options):
    process = started(data, out, **options)
    process.join(LONG)
    assert process.exitcode == 0, out.with_suffix(".log").read_text()
    return (out / "encoder.safetensors").read_bytes()


def data_of(name, photos):
    return f"{photos}.tar" if name.startswith("stream") else photos


def losses(out):
    return [line["loss"] for line in nearfar.Run(out).metrics if "loss" in line]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder, images = (
        tmp_path_factory.mktemp("photos"),
        [(f"{number:02d}.png", png(number)) for number in range(40)],
    )
    for name, content in images:
        (folder / name).write_bytes(content)
    tar(folder.with_suffix(".tar"), images)
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def whole(photos, tmp_path_factory):
    """Uninterrupted runs by name: their weights, losses and seconds."""
    folder = tmp_path_factory.mktemp("whole")

    @cache
    def of(name):
        began = time.monotonic()
        weights = finished(data_of(name, photos), folder / name, **METHODS[name])
        return weights, losses(folder / name), time.monotonic() - began

    return of


@pytest.mark.parametrize(
    ("name", "number", "times"),
    [
        ("saclr-row", signal.SIGKILL, 4),
        ("saclr-row", signal.SIGHUP, 3),
        ("moco-v2", signal.SIGKILL, 4),
        ("two-processes", signal.SIGKILL, 1),
        ("stream", signal.SIGKILL, 3),
        ("stream-of-two-processes", signal.SIGKILL, 1),
    ],
)
def test_killed_at_random_moments_and_resumed_is_uninterrupted(
    name, number, times, photos, whole, tmp_path
):
    weights, logged, seconds = whole(name)
    moments = random.Random(f"{number} {name}")
    out = tmp_path / "run"
    for _ in range(times):
        process = started(data_of(name, photos), out, **METHODS[name])
        time.sleep(moments.uniform(0, seconds))
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
        process.join(LONG)
        assert process.exitcode is not None
    assert finished(data_of(name, photos), out, **METHODS[name]) == weights, out.with_suffix(
        ".log"
    ).read_text()
    assert losses(out) == logged


def test_one_of_two_processes_owns_the_folder(photos, whole, tmp_path):
    out = tmp_path / "run"
    both = [started(photos, out, **METHODS["saclr-row"]) for _ in range(2)]
    for process in both:
        process.join(LONG)
    assert sorted(process.exitcode for process in both) == [0, 2]
    winner = next(process for process in both if process.exitcode == 0)
    lines = [
        line
        for line in out.with_suffix(".log").read_text().splitlines()
        if line.startswith("nearfar: ")
    ]
    assert len(lines) == 1 and f"being written by process {winner.pid} " in lines[0]
    assert (out / "encoder.safetensors").read_bytes() == whole("saclr-row")[0]
    assert losses(out) == whole("saclr-row")[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    "where",
    ["training.prepare.open_data", "training.prepare.choose_model", "pages.views.write_views"],
)
def test_a_run_that_is_stopped_before_it_trains_leaves_nothing(where, number, photos, tmp_path):
    out = tmp_path / "run"
    process = started(photos, out, f"nearfar.{where}", number, target=stop_in, **METHODS["moco-v2"])
    process.join(LONG)
    assert process.exitcode == 130
    assert [
        line for line in out.with_suffix(".log").read_text().splitlines() if "nearfar" in line
    ] == ["nearfar: stopped"]
    assert not out.exists()


@pytest.mark.parametrize("place", [False, True])
def test_a_folder_that_is_renamed_while_it_trains(place, photos, whole, tmp_path):
    out, moved = tmp_path / "run", tmp_path / "run-moved"
    process = started(photos, out, place, target=move_in, **METHODS["saclr-row"])
    process.join(LONG)
    lines = [
        line
        for line in out.with_suffix(".log").read_text().splitlines()
        if line.startswith("nearfar: ")
    ]
    assert process.exitcode == 1
    assert len(lines) == 1 and f"the run folder {out} was renamed or removed" in lines[0]
    assert out.is_dir() == place and not (place and list(out.iterdir()))
    assert finished(photos, moved) == whole("saclr-row")[0]
    assert losses(moved) == whole("saclr-row")[1]


def test_a_terminal_that_closes_leaves_a_checkpoint(photos, tmp_path):
    """The output of the run goes to the terminal, and every line after its end is an error."""
    out = tmp_path / "run"
    options = SETTINGS | dict(epochs=2000, method="simclr")
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "nearfar", "pretrain", str(photos), "--out", str(out), *words]
    attach = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", attach, *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    deadline = time.monotonic() + LONG
    while len(losses(out)) < 3 and time.monotonic() < deadline:
        os.read(ours, 2**16)  # a full terminal would block the run
        time.sleep(0.05)
    assert not (out / "checkpoints").exists()
    os.close(ours)
    assert process.wait(LONG) == 130
    assert (out / "checkpoints/last.ckpt").is_file()
