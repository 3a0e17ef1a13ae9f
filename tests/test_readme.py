"""The front page: short, its links lead somewhere, its code runs, and its numbers are those of the
files.
"""

import json
import re
import shlex
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from PIL import Image

import nearfar
from nearfar.cli import main

pytestmark = pytest.mark.usefixtures("known_speed")

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
ROW = re.compile(
    r"^\| \d{4}-\d\d-\d\d \| .*\(`([\w-]+)`\) \| ([\w-]+) \| (\d+) \| (.*) \| (.*) \|$",
    re.MULTILINE,
)


def test_it_is_short_and_its_links_lead_somewhere():
    assert len(PAGE.splitlines()) <= 150
    links = re.findall(r"\]\((?!https?:)([^)#]+)", PAGE)
    assert len(links) > 20 and not [link for link in links if not (ROOT / link).exists()]
    assert (ROOT / "docs/pictures/front.jpg").stat().st_size < 250_000


def test_the_two_commands_of_a_fresh_machine_are_targets_of_the_makefile():
    assert ("", "make demo\nmake test\n") in BLOCKS
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test", "demo-photos", "docs"} <= set(targets)


def test_the_time_to_accuracy_is_that_of_the_files():
    rows = ROW.findall(PAGE)
    assert len(rows) == 10
    for name, data, minutes, *shown in rows:
        file = ROOT / f"docs/results/time-{data.lower().replace('-', '')}.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        runs = [
            line for line in lines if (line["contender"], line["minutes"]) == (name, float(minutes))
        ]
        assert shown == [f"{100 * mean(run[key] for run in runs):.1f}" for key in ("knn", "linear")]
    assert f"{len(nearfar.list_methods())} methods" in PAGE


def test_the_accuracies_beside_a_pretrained_network_are_those_of_the_file():
    text = (ROOT / "docs/results/time-cifar10-pretrained.jsonl").read_text()
    runs = {line["contender"]: line for line in map(json.loads, text.splitlines())}
    pairs = [
        " / ".join(f"{100 * runs[name][key]:.1f}" for key in ("knn", "linear"))
        for name in ("nearfar[pretrained]", "frozen")
    ]
    after, alone = re.search(
        r"CIFAR-10\shas ([\d. /]+) after [^:]+ alone: ([\d. /]+) \(", PAGE
    ).groups()
    assert [after, alone] == pairs


def test_the_accuracy_of_nano_is_that_of_its_log():
    log, shown = re.search(
        r"^\| 2.*\((docs/results/nano-.*\.log)\)\).* \| (.*) \|$", PAGE, re.MULTILINE
    ).groups()
    accuracy = re.search(r"kNN accuracy (\S+) on 10000 test images", (ROOT / log).read_text())[1]
    assert shown == f"{100 * float(accuracy):.1f}"


@pytest.mark.parametrize("by", ["python", "commands"])
def test_the_first_lines_take_a_folder_to_report_map_and_duplicates(
    by, tmp_path, monkeypatch, capsys
):
    """As they stand, but for the minutes."""
    (tmp_path / "photos/deep").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(24):
        rough = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8))
        rough.resize((50, 40), Image.Resampling.BICUBIC).save(
            tmp_path / f"photos/deep/{number}.png"
        )
    (tmp_path / "photos/copy.png").write_bytes((tmp_path / "photos/deep/3.png").read_bytes())
    monkeypatch.chdir(tmp_path)
    code = next(code for kind, code in BLOCKS if kind == "python" and "pretrain" in code)
    lines = next(
        code for kind, code in BLOCKS if not kind and code.startswith("nearfar pretrain")
    ).splitlines()
    assert code.count("minutes=10") == lines[0].count("--minutes 10") == 1
    if by == "python":
        try:
            exec(code.replace("minutes=10", "epochs=2, batch_size=8"), {})
        finally:
            nearfar.show_progress(False)  # which the lines switch on
    else:
        lines[0] = lines[0].replace("--minutes 10", "--epochs 2 --batch-size 8")
        assert [main(shlex.split(line)[1:]) for line in lines] == [0, 0, 0], capsys.readouterr().err
    pages = re.findall(r"^- `(\w+\.html)`", PAGE, re.MULTILINE)
    assert pages == ["report.html", "map.html", "duplicates.html"]
    assert all((tmp_path / "runs/photos" / page).is_file() for page in pages)
    assert "copy.png" in (tmp_path / "runs/photos/duplicates.csv").read_text()


def test_the_example_of_a_loss_runs():
    names = {}
    exec(next(code for kind, code in BLOCKS if kind == "python" and "losses" in code), names)
    assert names["z1"].grad_fn is not None and names["loss"].partition.isfinite().all()
