"""Fuzzing of all readers for about a minute, and every input that failed once."""

import json
import subprocess
import sys

import pytest
from PIL import Image

from fuzz.__main__ import MARK, PAGE, RESULTS, table_of
from fuzz.targets import LARGEST_IMAGE, TARGETS
from tools.house import SOURCE

ROOT = SOURCE.parents[1]
KEPT = sorted(path for path in (ROOT / "fuzz" / "findings").glob("*/*") if path.is_file())


def fuzzed(*words):
    return subprocess.run(
        [sys.executable, "-m", "fuzz", *map(str, words)], cwd=ROOT, capture_output=True, text=True
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_input_that_failed_once_is_taken_now(path, tmp_path, monkeypatch):
    """It gives what it holds, or an error of one line that names the file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", LARGEST_IMAGE // 2)
    target, inside = TARGETS[path.parent.name], tmp_path / "in"
    inside.mkdir()
    try:
        lines = list(target.use(path.read_bytes(), inside) or ())
    except (ValueError, OSError) as error:
        lines = [str(error)]
        assert target.name in lines[0]
    assert all(line.strip() and len(line.splitlines()) == 1 for line in lines), lines
    assert list(tmp_path.iterdir()) == [inside]


@pytest.mark.slow
def test_every_input_that_failed_once_is_judged():
    """In a process of its own, which sees memory, processes and files outside too."""
    assert sum(path.stat().st_size for path in KEPT) < 100_000
    done = fuzzed("--replay")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == f"{len(KEPT)} inputs, 0 findings"


@pytest.mark.slow
def test_two_hundred_inputs_of_each_target_find_nothing(tmp_path):
    """The same ones each time, so that the test fails by what was changed and not by chance."""
    pytest.importorskip("atheris", reason="fuzzing needs atheris, which is made for Linux")
    out, findings = tmp_path / "fuzz.json", tmp_path / "findings"
    words = ("--seconds", 60, "--count", 200, "--seed", 1)
    done = fuzzed(*words, "--out", out, "--findings", findings)
    texts = [path.read_text(errors="replace")[-3000:] for path in findings.rglob("*.txt")]
    assert done.returncode == 0, done.stdout[-3000:] + "\n".join(texts)
    report = json.loads(out.read_text())
    assert report["inputs"] == sum(part["inputs"] for part in report["targets"].values())
    assert all(part["inputs"] > 0 for part in report["targets"].values()), report


def test_the_page_has_the_numbers_of_the_file():
    report = json.loads(RESULTS.read_text())
    assert PAGE.read_text(encoding="utf-8").partition(MARK)[2] == table_of(report)
    assert report["inputs"] == sum(part["inputs"] for part in report["targets"].values()) > 10**5


FAILING = """
import sys
from pathlib import Path
from fuzz.judge import Judge
from fuzz.targets import Target

uses = {
    "error": lambda data, scratch: {}["key"],
    "nameless": lambda data, scratch: int("x"),
    "lines": lambda data, scratch: ["one\\ntwo"],
    "outside": lambda data, scratch: Path(sys.argv[1] + "-outside").write_text("x") and None,
    "beside": lambda data, scratch: Path("beside").write_text("x") and None,
    "started": lambda data, scratch: __import__("subprocess").run(["true"]) and None,
    "memory": lambda data, scratch: len(bytes(1200 * 2**20)) and None,
    "fine": lambda data, scratch: (scratch / "file").write_text("x") and None,
}
for name, use in uses.items():
    scratch = Path(sys.argv[1]) / name
    scratch.mkdir()
    judge = Judge(Target(lambda *given: None, lambda: [b""], "file"), scratch)
    judge.target = judge.target._replace(use=use)
    with judge.at_work():
        failure = judge.failure(b"")
    print(name, "-" if failure is None else failure.key)
"""


@pytest.mark.slow
def test_each_kind_of_failure_is_noticed(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FAILING, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    keys = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert keys.pop("fine") == "-"
    assert keys.pop("beside").startswith("outside")
    assert keys.pop("started").startswith("outside: subprocess.Popen")
    assert keys.pop("error").startswith("KeyError")
    assert keys.pop("nameless").startswith("names no file")
    assert keys.pop("lines").startswith("not one line")
    assert keys == {"outside": "outside: open", "memory": "memory"}
