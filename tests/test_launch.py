"""The launch scripts and the Dockerfile: what they would start is a command that nearfar takes."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nearfar.app import pretrain_app

ROOT = Path(__file__).parents[1]
RECORD = """#!/usr/bin/env python3
import json, os, sys
name = os.path.basename(sys.argv[0])
if name == "srun":
    os.execvp(sys.argv[1], sys.argv[1:])
if sys.argv[1:3] == ["show", "hostnames"]:
    print("node3\\nnode4")
if name == "torchrun":
    print(json.dumps(sys.argv[1:]))
"""
SLURM = {
    "SLURM_JOB_NODELIST": "node[3-4]",
    "SLURM_NNODES": "2",
    "SLURM_GPUS_ON_NODE": "4",
    "SLURM_JOB_ID": "7",
}


@pytest.fixture
def started(tmp_path):
    """Run a script where torchrun, srun and scontrol only record; the words of torchrun before and
    behind nearfar's.
    """
    for name in ("torchrun", "srun", "scontrol", "scancel", "nvidia-smi"):
        (tmp_path / name).write_text(RECORD)
        (tmp_path / name).chmod(0o755)

    def run(script, *words, **variables):
        path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
        command = ["bash", str(ROOT / "examples" / script), *words]
        done = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **path, **variables}, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        place = report.index("nearfar")
        assert report[place - 1] == "-m" and report[place + 1] == "pretrain"
        return " ".join(report[: place - 1]), report[place + 2 :]

    return run


def settings(words):
    """The settings that pretrain takes from words."""
    app = pretrain_app(methods=[])
    given = app.parse_args(words, exit_on_error=False, print_error=False)[1].arguments
    return given | given.pop("settings", {})


def test_torchrun_starts_one_process_without_a_gpu(started):
    before, words = started("torchrun.sh", "a b/", "runs/a", "--epochs", "3")
    assert "--nnodes 1 --node-rank 0" in before and before.endswith("--nproc-per-node 1")
    assert settings(words) == {"data": ("a b/",), "out": "runs/a", "epochs": 3} | {
        "data": settings(words)["data"]
    }
    assert "a b/" in words
    before, _ = started(
        "torchrun.sh", "a", "b", NODES="2", NODE="1", HEAD="node0:29500", PER_NODE="4"
    )
    assert (
        "--nnodes 2 --node-rank 1 --rdzv-backend c10d --rdzv-endpoint node0:29500 "
        "--nproc-per-node 4" in before
    )


def test_slurm_resumes_where_there_is_a_checkpoint(started, tmp_path):
    before, words = started("slurm.sh", "photos/", "runs/photos", **SLURM)
    assert "--nnodes 2 --nproc-per-node 4" in before and "--rdzv-endpoint node3:29500" in before
    assert settings(words)["batch_size"] == 1024 and words[0] == "photos/"
    (tmp_path / "runs/photos/checkpoints").mkdir(parents=True)
    (tmp_path / "runs/photos/checkpoints/last.ckpt").touch()
    assert settings(started("slurm.sh", "photos/", "runs/photos", **SLURM)[1]) == {
        "resume": "runs/photos"
    }


@pytest.mark.parametrize("script", ["slurm.sh", "torchrun.sh"])
def test_scripts_stop_at_the_first_error(script):
    path = ROOT / "examples" / script
    assert "set -euo pipefail" in path.read_text()
    if checker := shutil.which("shellcheck"):
        subprocess.run([checker, path], check=True)


def test_the_image_is_built_from_files_that_are_there():
    text = (ROOT / "Dockerfile").read_text()
    if checker := shutil.which("hadolint"):
        subprocess.run([checker, ROOT / "Dockerfile"], check=True)
    lines = [
        line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")
    ]
    assert next(line.split()[0] for line in lines) == "FROM" and re.fullmatch(
        r"FROM \S+:[\d.]+\S*", lines[0]
    )
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    assert all((ROOT / word).exists() for word in copied)
    sent = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert sent == {*copied}
    users = [line for line in lines if line.startswith("USER")]
    assert users and users[-1].split()[1] not in ("root", "0")
    assert 'ENTRYPOINT ["nearfar"]' in lines
