"""The scripts in examples/ run as they stand, and two processes print what one does."""

import re
import runpy
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType

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


class Tracker(ModuleType):
    """Stands for wandb and for mlflow: keeps what it is given."""

    def __init__(self):
        super().__init__("tracker")
        self.lines, self.settings = [], {}

    @contextmanager
    def init(self, project, config):
        self.settings = config
        yield self

    start_run = nullcontext

    def log_params(self, settings):
        self.settings = settings

    def log(self, numbers, step):
        self.lines.append((step, numbers))

    log_metrics = log


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_gets_every_number_of_a_run(name, monkeypatch, tmp_path):
    tracker = Tracker()
    monkeypatch.setitem(sys.modules, name, tracker)
    trackers = runpy.run_path(str(FOLDER / "trackers.py"))
    settings = {"out": str(tmp_path / "run"), "encoder": "tiny", "epochs": 1, "held_out": 100}
    run = trackers[f"with_{name}"]("digits", **settings)
    assert tracker.settings == settings
    assert [step for step, _ in tracker.lines] == [line["step"] for line in run.metrics]
    last = run.metrics[-1]["health"]
    assert tracker.lines[-1][1]["health/knn"] == last["knn"] and None not in last
    assert any("loss" in numbers and "lr" in numbers for _, numbers in tracker.lines)


def test_a_search_ends_runs_that_fall_behind(tmp_path):
    optuna = pytest.importorskip("optuna")
    trackers = runpy.run_path(str(FOLDER / "trackers.py"))
    settings = {"encoder": "tiny", "epochs": 2, "held_out": 100, "limit": 400}
    study = trackers["search"]("digits", trials=2, folder=str(tmp_path), **settings)
    assert study.trials[0].state == optuna.trial.TrialState.COMPLETE
    assert 0.05 <= study.best_params["temperature"] <= 1 and 0.3 < study.best_value <= 1


def test_two_processes_print_what_one_does(printed, tmp_path):
    single = losses(printed("ddp.py"))
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
    assert len(single) == 3
    assert losses(done.stdout) == pytest.approx(single, abs=2e-5)
