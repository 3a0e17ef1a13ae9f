"""The files that a run, an export and a map write from the command line, and no others;
test_contract.py has the tools.
"""

from pathlib import Path

import pytest
from PIL import Image

from nearfar.cli import main
from tests.pictures import noise

pytestmark = pytest.mark.usefixtures("known_speed")

LINES = {
    "pretrain photos --out run --encoder tiny --epochs 1 --batch-size 16 --image-size 16 "
    "--held-out 8": "run/.lock "
    "run/checkpoints/last.ckpt run/config.json run/config.yaml run/data.arrow "
    "run/encoder.safetensors run/report.html "
    "run/environment.json run/metrics.jsonl run/neighbours.json run/views.html run/views.json",
    "pretrain --resume run": "",
    "evaluate run": "run/features.safetensors run/predictions.npz run/results.json",
    "embed run --out features.parquet": "features.parquet",
    "map run --epochs 20 --out map.html": "map.html map.json map.png map.safetensors",
    "map run photos/a --add-to map.html --out more.html": "more.html more.json more.png",
    "export run --to torch": "run/export/encoder.pt2",
    "views photos --out views.html": "views.html",
    "methods": "",
    "--help": "",
    "pretrain --help": "",
}


def files():
    return {str(path) for path in Path().rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_verb_writes_its_files_and_no_others(tmp_path, monkeypatch, own_cache):
    monkeypatch.chdir(tmp_path)
    for kind in "ab":
        Path("photos", kind).mkdir(parents=True)
        for number in range(24):
            pixels = noise(number, 16) // 2 + (100 if kind == "a" else 0)
            Image.fromarray(pixels).save(f"photos/{kind}/{number}.png")
    for line, written in LINES.items():
        before = files()
        assert main(line.split()) == 0, line
        assert files() - before == set(written.split()), line
