"""Runs on two processes, from start to end: what they write, how they stop, and how they end when
one dies.
"""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import nearfar
from nearfar.cli import main
from nearfar.messages import to_argv
from nearfar.training import processes
from nearfar.training.processes import (
    HALF,
    Process,
    check_machine,
    is_follower,
    this_process,
    world_size,
)
from nearfar.training.run_folder import read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("known_speed")]

EXAMPLES = Path(__file__).parents[2] / "examples"
QUIET_CORES = os.environ | {"OMP_NUM_THREADS": "1"}
SETTINGS = dict(
    method="simclr",
    epochs=3,
    batch_size=13,  # odd: one process holds a row more
    held_out=16,
    log_every=1,
    encoder="tiny",
    lr=0.001,  # at higher rates rounding grows beyond the tolerance within these steps
    accelerator="cpu",
    sync_batch_norm=True,
)


def same_run(first, second):
    for key in ("loss", "lr"):
        numbers = [
            torch.tensor([line[key] for line in run.metrics if key in line])
            for run in (first, second)
        ]
        assert len(numbers[0]) > 0
        torch.testing.assert_close(*numbers, rtol=1e-3, atol=1e-4)
    weights = [load_file(run.path / "encoder.safetensors") for run in (first, second)]
    for key, value in weights[0].items():
        torch.testing.assert_close(
            weights[1][key], value, rtol=1e-2, atol=1e-3, msg=lambda text, key=key: key + text
        )


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def after_steps(folder, number, action):
    """Do something as soon as a run has logged a number of steps."""

    def watch():
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if any(line["step"] >= number for line in read_metrics(folder)):
                return action()
            time.sleep(0.003)

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    thread.join()


@pytest.fixture(scope="module")
def on_one(images_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("one") / "run"
    return nearfar.pretrain(images_file, out=str(out), **SETTINGS)


def test_stopped_on_two_processes_resumed_on_one(images_file, on_one, tmp_path):
    """Ctrl-C reaches all processes; what they saved goes on in one process as if it had all been
    done there.
    """
    run = tmp_path / "run"
    with (
        after_steps(run, 1, interrupt),
        pytest.raises(nearfar.TrainingStopped, match=r"nearfar\.resume"),
    ):
        nearfar.pretrain(images_file, out=str(run), **SETTINGS, devices=2)
    assert nearfar.load(run).num_features == nearfar.load(on_one).num_features  # it loads as it is
    same_run(on_one, nearfar.resume(run, devices=1))


def test_stopped_on_one_process_resumed_by_torchrun_on_two(images_file, on_one, tmp_path):
    run = tmp_path / "run"
    with after_steps(run, 1, interrupt), pytest.raises(nearfar.TrainingStopped):
        nearfar.pretrain(images_file, out=str(run), **SETTINGS)
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "-m",
        "nearfar",
        "pretrain",
    ]
    done = subprocess.run(
        [*torchrun, "--resume", str(run), "--json"], env=QUIET_CORES, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("epoch 3.0/3") == 1  # only the first process speaks
    assert json.loads(done.stdout)["path"] == str(run)
    same_run(on_one, nearfar.Run(run))


def test_two_nodes_on_one_machine_are_one_process(images_file, on_one, tmp_path):
    """examples/torchrun.sh as it is called on each of two machines, which are this one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        head = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        "bash",
        str(EXAMPLES / "torchrun.sh"),
        str(images_file),
        str(tmp_path / "run"),
        *to_argv(SETTINGS),
    ]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    of_all = QUIET_CORES | {"NODES": "2", "HEAD": head, "PER_NODE": "1", "PATH": path}
    nodes = [
        subprocess.Popen(
            command, env=of_all | {"NODE": str(node)}, stderr=subprocess.PIPE, text=True
        )
        for node in range(2)
    ]
    for node in nodes:
        _, err = node.communicate(timeout=300)
        assert node.returncode == 0, err
    same_run(nearfar.Run.of(tmp_path / "run"), on_one)


def test_a_killed_process_ends_the_others_with_one_line(images_file, tmp_path, capfd):
    run = tmp_path / "run"

    def kill():
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    with after_steps(run, 1, kill):
        options = to_argv(SETTINGS | {"epochs": 2000, "devices": 2})
        code = main(["pretrain", images_file, "--out", str(run), *options, "--json"])
    assert code == 1
    out, err = capfd.readouterr()
    err = err.splitlines()
    lines = [line for line in err if line.startswith("nearfar: ")]
    assert not [line for line in err if "torch/" in line]
    assert len(lines) == 1 and "of 2" in lines[0] and "--resume" in lines[0]
    printed = json.loads(out)  # and no progress beside it
    assert printed["error"] == lines[0].removeprefix("nearfar: ")
    assert [read["images"] for read in printed["read"]] == [80]
    assert not multiprocessing.active_children()


def failing(images):
    if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
        raise ArithmeticError("no views today")
    return [images, images]


def test_a_process_that_fails_ends_the_others_with_one_line(images_file, tmp_path):
    with pytest.raises(
        nearfar.ProcessLost, match=r"process 2 .*no views today.*nearfar\.resume"
    ) as raised:
        nearfar.pretrain(images_file, out=tmp_path / "run", **SETTINGS, devices=2, views=failing)
    assert len(str(raised.value).splitlines()) == 1 and not multiprocessing.active_children()


HANGS = """
import os, time
import torch
from nearfar.training import processes
def vanish(process):
    os._exit(3)
if __name__ == "__main__":
    processes.RAISES, processes.PATIENCE = (), 0.2
    first = processes.Process(torch.device("cpu"), world_size=2)
    with processes.followers(first, vanish, "runs/a") as store, processes.meeting(first, store):
        time.sleep(100)
"""


def test_a_process_that_waits_where_no_error_reaches_it_ends_with_one_line(tmp_path):
    """As NCCL's processes do, on the GPU."""
    (tmp_path / "script.py").write_text(HANGS)
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=90
    )
    assert ended.returncode == 1 and ended.stdout == ""
    message = (
        "nearfar: process 2 of 2 has ended; resume from the last checkpoint, if there is one, "
    )
    assert ended.stderr.strip() == f"{message}with: `nearfar.resume('runs/a')`"


def test_a_script_without_a_main_guard_is_told_so(images_file, tmp_path):
    call = f"nearfar.pretrain({str(images_file)!r}, out='run', devices=2, **{SETTINGS!r})"
    (tmp_path / "script.py").write_text(f"import nearfar\n{call}\n")
    ended = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=QUIET_CORES,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 1
    assert "under if __name__" in ended.stderr.splitlines()[-1]


def test_torchrun_says_how_many(monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert world_size(None) == world_size(4) == 4 and is_follower()
    with pytest.raises(ValueError, match="torchrun started 4 processes"):
        world_size(2)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_a_step_is_clipped_in_every_precision(precision):
    process, weight = Process(torch.device("cpu"), precision), torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    process.backward((weight * torch.tensor([3.0, 4.0])).sum())
    process.update(optimizer, clip=1.0)
    torch.testing.assert_close(weight.detach(), torch.tensor([-0.6, -0.8]))
    optimizer.zero_grad()
    process.backward((weight * torch.tensor([3.0, 4.0])).sum())
    process.update(optimizer)
    torch.testing.assert_close(weight.detach(), torch.tensor([-3.6, -4.8]))
    with process.autocast():
        kind = (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    assert kind == HALF.get(precision, torch.float32)


def test_float16_leaves_out_a_step_that_it_cannot_hold():
    process = Process(torch.device("cpu"), "16-mixed")
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    process.backward((weight * torch.inf).sum())
    scale = process.scaler.get_scale()
    process.update(optimizer, clip=1.0)
    assert weight.tolist() == [0, 0] and process.scaler.get_scale() == scale / 2
    assert "scale" in process.scaler.state_dict()
    assert Process(torch.device("cpu"), "bf16-mixed").scaler.state_dict() == {}


def test_a_process_of_torchrun_has_its_own_gpu(monkeypatch):
    monkeypatch.setattr(processes, "find_device", lambda kind: torch.device("cuda"))
    monkeypatch.setattr(processes, "check_precision", lambda *given: None)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert this_process("auto", "32-true", 2) == Process(torch.device("cuda:0"), world_size=2)
    check_machine("auto", "32-true", 2)
    with pytest.raises(ValueError, match=r"3 processes .* has 2"):
        check_machine("auto", "32-true", 3)
    of_torchrun = {"RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {"TORCHELASTIC_RUN_ID": "none", **of_torchrun}.items():
        monkeypatch.setenv(name, value)
    assert this_process("auto", "32-true", 4) == Process(
        torch.device("cuda:1"), rank=3, world_size=4
    )
    check_machine("auto", "32-true", 4)
