"""Types and shapes are checked in all of nearfar; a small set of images for tests that run the
whole thing.
"""

import gc
import logging
import os
import shutil
import signal
import tomllib
from contextlib import nullcontext
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch

import tools.typechecker

gc.disable()  # until `pytest_collection_finish`
tools.typechecker.install()  # before nearfar is imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")
IN_MEMORY = Path("/dev/shm")
if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > 8 * 2**30:  # deleting from a disk
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))  # takes longer than many tests
os.environ.setdefault(
    "OMP_NUM_THREADS", "2"
)  # a fixed number: runs repeat bit for bit on a busy machine too
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
pytest_plugins = ["tests.annotated"]

from nearfar.progress import Bar, drawn_by  # noqa: E402  # behind the hook


def pytest_collection_finish():
    """Leave the objects of libraries and tests, which stay, out of garbage collections."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


def pytest_sessionfinish():
    gc.unfreeze()  # libraries say that they leak what is left at the end


@pytest.fixture(scope="session")
def images_file(tmp_path_factory):
    """Eighty grey images of 8 px in an .npz file, in two classes: bright above, bright below."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 80, (80, 8, 8), dtype=np.uint8), np.arange(80) % 2
    images[labels == 0, :4] += 120
    images[labels == 1, 4:] += 120
    path = tmp_path_factory.mktemp("images") / "halves.npz"
    np.savez(path, images=images, labels=labels)
    return str(path)


@pytest.fixture(scope="session")
def trained(images_file, tmp_path_factory):
    """A finished run on `images_file`, not to be written to: take a copy by `run`."""
    import nearfar

    out = tmp_path_factory.mktemp("trained") / "halves"
    options = dict(
        epochs=2,
        batch_size=16,
        held_out=16,
        encoder="small",
        method="sce",
        seed=3,
        precision="32-true",
    )
    return nearfar.pretrain(images_file, out=out, **options)


@pytest.fixture(scope="session")
def papers_metadata(tmp_path_factory):
    """A folder with the entry points of pyproject.toml, as an installed package has them."""
    declared = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    folder = tmp_path_factory.mktemp("metadata")
    about = folder / "nearfar_under_test-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: nearfar-under-test\nVersion: 0\n")
    lines = []
    for group, names in declared["project"]["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {where}" for name, where in names.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def papers_installed(papers_metadata):
    """Has `nearfar` find the commands and the section of nearfar_papers, in other processes too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(papers_metadata)
        patch.setenv("PYTHONPATH", str(papers_metadata), prepend=os.pathsep)
        yield


@pytest.fixture
def own_cache(tmp_path_factory, monkeypatch):
    """The cache of decoded images, for one test alone: its folder."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


class _Recorded(Bar):
    def __init__(self, moves, title, total):
        self.moves, self.title, self.total = moves, title, total

    def update(self, done, total=None, text="", now=False):
        self.done, self.total = done, self.total if total is None else total
        self.moves.append((self.title, done, self.total))


class _Recorder:
    def __init__(self):
        self.moves = []

    def bar(self, title, total):
        return nullcontext(_Recorded(self.moves, title, total))

    def waiting(self, title):
        return nullcontext()


@pytest.fixture
def bars():
    """The moves of bars during a test: a list of (title, done, total)."""
    recorder = _Recorder()
    with drawn_by(recorder):
        yield recorder.moves


class Log:
    """The lines of the log "nearfar", as a program that listens to it gets them."""

    def __init__(self, caplog):
        self._caplog = caplog

    @property
    def records(self):
        return [record for record in self._caplog.records if record.name == "nearfar"]

    @property
    def text(self):
        return "".join(f"{record.getMessage()}\n" for record in self.records)

    @property
    def lines(self):
        return self.text.splitlines()

    def clear(self):
        self._caplog.clear()


@pytest.fixture
def log(caplog):
    """The lines that nearfar logs while a test runs: `.text`, `.lines`."""
    caplog.set_level(logging.INFO, "nearfar")
    return Log(caplog)


@pytest.fixture
def complaint(capsys, tmp_path, monkeypatch):
    """A function that runs words as a mistaken command line and returns its one-line message.

    They run in the folder of the test, unless that goes elsewhere: if the mistake is not noticed,
    nothing is written into the project.
    """
    monkeypatch.chdir(tmp_path)

    def run(*words):
        from nearfar.cli import main

        assert main([str(word) for word in words]) == 2
        err = capsys.readouterr().err
        read, _, message = err.rpartition("nearfar: ")  # lines on the images read may precede it
        assert message.count("\n") == 1 and read.count("\n") == read.count(" read"), err
        return f"nearfar: {message}"

    return run


@pytest.fixture
def unchecked(monkeypatch):
    """Let wrong arguments through to the code's own checks where annotations are checked while the
    tests run.
    """
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="module")
def known_speed():
    """For modules that ask for it: runs whose precision or length is not given are planned for 1000
    images a second, whatever this machine can do.
    """
    from nearfar.training import trial

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "training_speed", lambda *given, **named: 1000.0)
        yield


@pytest.fixture
def no_pages(monkeypatch):
    """Runs write nothing for people to look at, which takes a good part of a short one's time."""
    from nearfar.pages import report, views

    for room, name in (
        (views, "write_views"),
        (report, "write_neighbours"),
        (report, "write_report"),
    ):
        monkeypatch.setattr(room, name, lambda *given, **named: None)


@pytest.fixture(autouse=True, scope="session")
def no_pretrained_weights():
    """Let data without a run have the same features whether a package of weights is installed or
    not.
    """
    from nearfar.embeddings import untrained
    from nearfar.training import facts, readout

    with pytest.MonkeyPatch.context() as patch:
        for room in (untrained, readout, facts):
            patch.setattr(room, "installed_weights", lambda: None)
        yield
