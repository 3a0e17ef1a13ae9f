"""The scripts in examples/ run as they stand, and two processes print what one does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"


def printed(*words: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"loss (\d+\.\d+)", text)]


def test_a_plain_loop_learns(tmp_path):
    text = printed(f"{FOLDER}/plain.py", cwd=tmp_path)
    assert float(re.search(r"kNN accuracy (.*)", text)[1]) > 0.95


def test_a_lightning_module_trains_the_bias_too(tmp_path):
    pytest.importorskip("pytorch_lightning")
    text = printed(f"{FOLDER}/lightning_module.py", cwd=tmp_path)
    assert float(re.search(r"bias (.*)", text)[1]) != -10


def test_two_processes_print_what_one_does(tmp_path):
    one = losses(printed(f"{FOLDER}/ddp.py", cwd=tmp_path))
    both = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", f"{FOLDER}/ddp.py"]
    assert len(one) == 3
    assert losses(printed(*both, cwd=tmp_path)) == pytest.approx(one, abs=2e-5)
