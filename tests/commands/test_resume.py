"""--resume works on the folder it is given, on the data that the run began with, and alone."""

import multiprocessing
import os
import re
import shutil
import threading
import time

import numpy as np
import pytest
import torch
import yaml
from filelock import FileLock
from safetensors.torch import load_file

import nearfar
from nearfar.cli import main
from nearfar.training import loop, run_data
from nearfar.training.run_folder import LOCK, lock_run_folder
from tests.pictures import png
from tests.steps import at_step, same_runs

pytestmark = pytest.mark.usefixtures("no_pages")

SETTINGS = dict(
    epochs=2,
    batch_size=8,
    held_out=8,
    encoder="tiny",
    method="simclr",
    log_every=1,
    precision="32-true",
)

FORK = multiprocessing.get_context("fork")


def photographed(folder):
    for number in range(40):
        place = folder / ("cats" if number % 2 else "dogs")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:02d}.png").write_bytes(png(number))
    return folder


@pytest.fixture
def photos(tmp_path, monkeypatch, own_cache):
    """Forty small pictures in the folder photos, and a cache of their own."""
    monkeypatch.chdir(tmp_path)
    return photographed(tmp_path / "photos")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run on such pictures from its start to its end."""
    folder = tmp_path_factory.mktemp("whole")
    return nearfar.pretrain(photographed(folder / "photos"), out=folder / "run", **SETTINGS)


def begin(data, out, **options):
    """Begin a run that is stopped after some steps."""
    with at_step(3), pytest.raises(nearfar.TrainingStopped):
        nearfar.pretrain(data, out=str(out), **SETTINGS | options)


def weights(folder):
    return load_file(folder / "encoder.safetensors")


def same(first, second):
    return all(torch.equal(value, second[name]) for name, value in first.items())


def contents(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_goes_on_in_the_folder_that_is_given(photos, whole, tmp_path, monkeypatch):
    """From another working directory, with DATA and starting weights that were given by relative
    paths.
    """
    shutil.copytree(whole.path, "first")
    start = os.path.join("first", "encoder.safetensors")
    begin("photos", "run", init=start)
    expected = nearfar.pretrain("photos", out="whole", **SETTINGS, init=start)
    other = tmp_path / "elsewhere" / "again"
    other.parent.mkdir()
    shutil.copytree("run", other)
    shutil.rmtree("first")
    before = contents(tmp_path / "run")
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = nearfar.resume("again")
    assert contents(tmp_path / "run") == before
    assert same(weights(other), weights(tmp_path / expected.path))
    assert len(np.load(nearfar.embed(run, out="rows.npz").path)["embedding"]) == 40
    assert "starting_weights" in nearfar.evaluate("again", protocol=("knn",))
    assert nearfar.map("again", epochs=1).path.is_file()
    assert contents(tmp_path / "run") == before


@pytest.mark.slow
def test_data_and_run_that_have_moved_go_on(photos, tmp_path, capsys):
    begin("photos", "run")
    photos.rename(tmp_path / "pictures")
    (tmp_path / "run").rename(tmp_path / "renamed")
    assert main(["pretrain", "--resume", "renamed"]) == 2
    assert "nearfar pretrain --resume renamed DATA" in capsys.readouterr().err
    shutil.copytree("renamed", "copy")
    assert main(["pretrain", "pictures", "--resume", "renamed"]) == 0
    assert nearfar.resume("copy", data=tmp_path / "pictures").settings.data == str(
        tmp_path / "pictures"
    )
    assert nearfar.Run("renamed").settings.data == str(tmp_path / "pictures")


@pytest.mark.slow
def test_data_that_has_changed_is_refused(photos, tmp_path, capsys):
    begin("photos", "run")
    before = contents(tmp_path / "run")
    shutil.copy(photos / "cats/01.png", photos / "cats/99.png")
    shutil.copy(photos / "cats/03.png", photos / "cats/98.png")
    (photos / "dogs/00.png").unlink()
    assert main(["pretrain", "--resume", "run"]) == 2
    err = "".join(
        line for line in capsys.readouterr().err.splitlines(True) if line.startswith("nearfar: ")
    )
    assert "2 images added, 1 removed: " in err and "--data-changed" in err and err.count("\n") == 1
    assert contents(tmp_path / "run") == before
    assert main(["pretrain", "--resume", "run", "--data-changed"]) == 0
    assert (
        main(["pretrain", "--resume", "run"]) == 0
    )  # finished; what it went on with is its data from then on


def test_numbers_of_an_image_never_land_on_another(photos):
    begin("photos", "run", method="sogclr")
    shutil.copy(photos / "cats/01.png", photos / "cats/03.png")
    for changed in (False, True):
        with pytest.raises(ValueError, match=r"1 image changed: first cats/03\.png"):
            nearfar.resume("run", data_changed=changed)


@pytest.mark.slow
def test_objects_are_compared_too(tmp_path):
    given = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    other = given[::-1].copy()
    begin(given, tmp_path / "run")
    with pytest.raises(ValueError, match=r"40 images changed: first 0.*data_changed=True"):
        nearfar.resume(tmp_path / "run", data=other)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    nearfar.resume(tmp_path / "run", data=given)
    nearfar.resume(tmp_path / "copy", data=other, data_changed=True)
    assert not same(weights(tmp_path / "run"), weights(tmp_path / "copy"))


def test_a_run_inside_its_data_goes_on(photos, whole):
    begin("photos", photos / "run")
    shutil.copy(photos / "cats/01.png", photos / "run" / "map.png")
    run = nearfar.resume(photos / "run")
    assert same(weights(run.path), weights(whole.path))


def test_a_folder_has_one_owner(photos, tmp_path, monkeypatch):
    begin("photos", "run")
    before = contents(tmp_path / "run")
    with lock_run_folder(tmp_path / "run"):
        before |= {str(tmp_path / "run" / LOCK): (tmp_path / "run" / LOCK).read_bytes()}
        says = rf"written by process {os.getpid()} "
        with pytest.raises(ValueError, match=says):
            nearfar.resume(tmp_path / "run")
        monkeypatch.setattr(run_data, "open_images", None)  # nothing is decoded for it
        with pytest.raises(ValueError, match=says):
            nearfar.pretrain("photos", out=str(tmp_path / "run"), **SETTINGS)
    assert contents(tmp_path / "run") == before


def test_a_killed_process_leaves_no_lock(tmp_path):
    begun = FORK.Event()

    def hold():
        with lock_run_folder(tmp_path):
            begun.set()
            time.sleep(60)

    holder = FORK.Process(target=hold)
    holder.start()
    assert begun.wait(30)
    with pytest.raises(ValueError, match=f"process {holder.pid} "), lock_run_folder(tmp_path):
        pass
    holder.kill()
    holder.join()
    with lock_run_folder(tmp_path):
        pass


def test_workers_of_a_killed_process_are_waited_for(tmp_path):
    """A process that ended may leave workers that hold its lock for some seconds."""
    gone = FORK.Process(target=int)
    gone.start()
    gone.join()
    with lock_run_folder(tmp_path):
        host = (tmp_path / LOCK).read_text().split()[1]
    left = FileLock(tmp_path / LOCK, thread_local=False)
    left.acquire()
    (tmp_path / LOCK).write_text(f"{gone.pid} {host}\n")
    threading.Timer(0.5, left.release).start()
    with lock_run_folder(tmp_path):
        assert (tmp_path / LOCK).read_text().startswith(f"{os.getpid()} ")


def interrupted_before_a_checkpoint(data, out, monkeypatch, step=0):
    """A run that dies, as from a power cut, after some steps and without a checkpoint."""

    def die(*given):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(loop.TrainingProgress, "advance" if step else "__enter__", die)
        with pytest.raises(MemoryError):
            nearfar.pretrain(data, out=str(out), **SETTINGS)
    assert not (out / "checkpoints").exists()


@pytest.mark.parametrize(("again", "step"), [("--resume", 1), ("the same command", 0)])
def test_no_dead_end_before_the_first_checkpoint(again, step, photos, whole, tmp_path, monkeypatch):
    interrupted_before_a_checkpoint("photos", tmp_path / "run", monkeypatch, step)
    if again == "--resume":
        run = nearfar.resume("run")
    else:
        run = nearfar.pretrain("photos", out="run", **SETTINGS)
    same_runs(run, whole)


def test_a_run_that_diverged_at_once_is_begun_anew(photos):
    with pytest.raises(nearfar.TrainingDiverged, match="can be used again"):
        nearfar.pretrain("photos", out="run", **SETTINGS | dict(method="vicreg", lr=1e18))
    run = nearfar.pretrain("photos", out="run", **SETTINGS | dict(method="vicreg", lr=1e-3))
    assert run.settings.lr == 1e-3 and (run.path / "encoder.safetensors").is_file()


@pytest.mark.parametrize("mine", ["config.yaml", "notes.txt"])
def test_a_folder_with_a_file_of_the_users_is_left_alone(mine, photos, tmp_path, monkeypatch):
    interrupted_before_a_checkpoint("photos", tmp_path / "run", monkeypatch)
    if mine == "config.yaml":  # nothing else is there
        shutil.rmtree("run")
        os.mkdir("run")
    (tmp_path / "run" / mine).write_text("mine")
    before = contents(tmp_path / "run")
    with pytest.raises(ValueError, match="exists already"):
        nearfar.pretrain("photos", out="run", **SETTINGS)
    lock = {str(tmp_path / "run" / LOCK): b""}
    assert contents(tmp_path / "run") | lock == before | lock


def test_a_finished_run_without_its_checkpoint_is_left_alone(photos, whole):
    shutil.copytree(whole.path, "run")
    shutil.rmtree("run/checkpoints")
    for go_on in (
        lambda: nearfar.resume("run"),
        lambda: nearfar.pretrain("photos", out="run"),
    ):
        with pytest.raises(ValueError, match=r"finished run|exists already"):
            go_on()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("views", "g0/yscale"),
        ("recipe", "sma 2"),
        ("frozen", 7),
        ("hyperparameters", {"max_p(": 1}),
    ],
)
def test_a_setting_that_was_damaged_is_said_with_its_run(setting, value, trained, tmp_path):
    run = nearfar.Run(shutil.copytree(trained.path, tmp_path / "run"))
    config = run.path / "config.yaml"
    settings = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(settings | {setting: value}))
    with pytest.raises(ValueError, match=re.escape(str(run.path))):
        nearfar.Run(run.path).model()
