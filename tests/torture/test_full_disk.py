"""A disk that is full: nothing is left half written, what was there stays, and one line says how to
go on.
"""

import json
import os
import shutil
import subprocess

import pytest

from nearfar.cli import main
from nearfar.training.run_folder import read_metrics

PRETRAIN = (
    "pretrain DATA --epochs 2 --batch-size 16 --held-out 16 --encoder small "
    "--precision 32-true --log-every 1"
)
SIZE = 64 * 2**20


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """A small file system of its own."""
    folder = tmp_path_factory.mktemp("disk")
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="module")
def run(images_file, tmp_path_factory):
    """A finished run that was evaluated."""
    folder = tmp_path_factory.mktemp("run") / "run"
    assert main([*PRETRAIN.replace("DATA", images_file).split(), "--out", str(folder)]) == 0
    assert main(["evaluate", str(folder), "--protocol", "knn", "--no-baselines"]) == 0
    return folder


@pytest.fixture
def place(disk, run):
    """The small disk with a copy of the run, emptied afterwards."""
    shutil.copytree(run, disk / "run")
    yield disk
    for path in disk.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def fill(folder, free=0):
    """Leave so many bytes free."""
    with (folder / "ballast").open("wb", buffering=0) as file:
        left = shutil.disk_usage(folder).free - free
        while left > 0:
            left -= file.write(bytes(min(left, 2**16)))
    assert shutil.disk_usage(folder).free <= free


def contents(folder):
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "ballast"
    }


COMMANDS = {
    "evaluate": "evaluate RUN --protocol knn --no-baselines",
    "embed": "embed RUN --out DISK/rows.csv",
    "embed to parquet": "embed RUN --out DISK/rows.parquet",
    "map": "map RUN --epochs 1",
    "views": "views RUN --out DISK/v.html",
}


@pytest.mark.parametrize("free", [0, 80_000])
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_what_is_there_stays(command, free, place, capsys):
    """Noticed before the work where nothing is free, after it where only the look at the disk found
    room.
    """
    fill(place, free)
    before = contents(place)
    capsys.readouterr()
    code = main(command.replace("RUN", str(place / "run")).replace("DISK", str(place)).split())
    message = capsys.readouterr().err
    after = contents(place)
    if code == 0:  # the page of a small map fits
        assert free and not message
    else:
        assert code == (1 if free else 2)
        assert (
            message.count("\n") == 1
            and "No space left" in message
            and message.startswith("nearfar: cannot write")
        )
        changed = {path.name for path in after if after[path] != before.get(path)}
        assert changed <= (
            {
                "results.json",
                "features.safetensors",
                "map.html",
                "map.png",
                "map.json",
                "map.safetensors",
            }
            if free
            else set()
        )
    assert all(after[path] for path in after)
    assert not [path for path in after if "partial" in path.name]
    json.loads((place / "run" / "results.json").read_text())


@pytest.mark.parametrize("free", [0, 70_000, 1_000_000, 5_000_000])
def test_a_run_on_a_full_disk_says_how_to_go_on(free, disk, images_file, capsys):
    """Wherever the disk becomes full, the folder can be resumed once there is room, or was never
    made.
    """
    fill(disk, free)
    out = disk / "new"
    try:
        code = main([*PRETRAIN.replace("DATA", images_file).split(), "--out", str(out)])
        message = capsys.readouterr().err
        assert code == 1 or not free
        assert (
            message.count("\n") == 1
            and ("cannot write" in message or "cannot be written" in message)
            and "No space left" in message
        )
        assert not [path for path in disk.rglob("*") if "partial" in path.name]
        (disk / "ballast").unlink()
        if not out.exists():
            assert free < 100_000 and "--resume" not in message
            return
        assert f"--resume {out}" in message
        assert (out / "config.yaml").stat().st_size
        if (out / "checkpoints" / "last.ckpt").exists():
            assert main(["pretrain", "--resume", str(out)]) == 0
            assert [line["step"] for line in read_metrics(out) if "loss" in line] == [*range(1, 9)]
            assert (out / "encoder.safetensors").is_file() and (out / "report.html").is_file()
    finally:
        for path in disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else os.unlink(path)
