"""The scripts in examples/ run as they stand, and two processes print what one does."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"


@pytest.fixture
def printed(capsys, monkeypatch, tmp_path):
    """Run a script in this process and in an empty folder; what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(name):
        runpy.run_path(str(FOLDER / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def losses(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"loss (\d+\.\d+)", text)]


def test_a_plain_loop_learns(printed):
    assert float(re.search(r"kNN accuracy (.*)", printed("plain.py"))[1]) > 0.95


def test_a_lightning_module_trains_the_bias_too(printed):
    pytest.importorskip("pytorch_lightning")
    assert float(re.search(r"bias (.*)", printed("lightning_module.py"))[1]) != -10


def test_two_processes_print_what_one_does(printed, tmp_path):
    one = losses(printed("ddp.py"))
    both = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        FOLDER / "ddp.py",
    ]
    done = subprocess.run(both, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(one) == 3
    assert losses(done.stdout) == pytest.approx(one, abs=2e-5)
