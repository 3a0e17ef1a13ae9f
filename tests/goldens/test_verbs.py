"""Every verb writes the files and prints the lines that it did when tests/goldens/verbs.json was written.

Numbers in the lines are replaced by #. `python -m tests.goldens.test_verbs` writes it anew; a change of it belongs into
the changelog.
"""

import contextlib
import io
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nearfar.cli import main

KEPT = Path(__file__).with_name("verbs.json")
RUN = "pretrain photos --out run --encoder tiny --epochs 1 --batch-size 16 --image-size 16 --precision 32-true"
LINES = {
    "pretrain": f"{RUN} --held-out 8 --temperature 0.3",
    "pretrain again": RUN,
    "resume": "pretrain --resume run",
    "evaluate": "evaluate run",
    "embed": "embed run --out features.parquet",
    "map": "map run --epochs 20 --out map.html",
    "onto": "map run photos/a --onto map.html --out more.html",
    "search": "search run photos/a/1.png --out alike.html",
    "duplicates": "duplicates run --out copies.html",
    "select": "select run --by typical --n 5",
    "cluster": "cluster run --clusters 3 --out groups.html",
    "check": "check run --out checked.html",
    "export": "export run --to torch",
    "views": "views photos --out views.html",
    "methods": "methods",
    "help": "--help",
    "pretrain help": "pretrain --help",
    "search help": "search --help",
    "json": "search run photos/a/1.png --json",
    "no verb": "pretrian photos",
    "no option": "pretrain photos --epocs 3",
    "no value": "pretrain photos --epochs many",
    "no data": "pretrain nowhere",
    "no run": "evaluate nowhere",
    "no method": "pretrain photos --method simclear",
}


def photos(folder: Path) -> None:
    chance = np.random.default_rng(0)
    for kind in ("a", "b"):
        (folder / kind).mkdir(parents=True)
        for number in range(24):
            pixels = chance.integers(0, 120, (16, 16, 3), dtype=np.uint8) + (100 if kind == "a" else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / kind / f"{number}.png")
    (folder / "b" / "copy.png").write_bytes((folder / "b" / "3.png").read_bytes())


def recorded() -> dict[str, Any]:
    """Run every line in the working directory: its exit code, what it printed, and the files that it made."""
    photos(Path("photos"))
    os.environ |= {"COLUMNS": "120", "XDG_CACHE_HOME": str(Path("cache").absolute())}
    found = {}
    for name, words in LINES.items():
        before = files()
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words.split())
        text = "\n".join(read(stream) for stream in (out, err))
        printed = [line for line in map(plain, text.splitlines()) if line]
        found[name] = {"code": code, "printed": printed, "files": sorted(files() - before)}
    return found


def files() -> set[str]:
    return {str(path) for path in Path().rglob("*") if path.is_file() and path.parts[0] != "cache"}


def read(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined]


def plain(line: str) -> str:
    """A line without the borders of tables, folders, and numbers."""
    line = re.sub(r"[\u2500-\u257f]+", " ", re.sub(r"/\S*/(?=\w)", "", line))
    return " ".join(re.sub(r"\d+(\.\d+)?(e-?\d+)?", "#", line).split())


@pytest.fixture(scope="module")
def now(tmp_path_factory):
    home = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("verbs"))
    kept = dict(os.environ)
    yield recorded()
    os.environ.clear()
    os.environ |= kept
    os.chdir(home)


@pytest.mark.parametrize("name", LINES)
def test_a_verb_writes_and_prints_what_it_did(name, now):
    assert now[name] == json.loads(KEPT.read_text())[name]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        found = recorded()
        os.chdir("/")
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(one, indent=1)}" for name, one in found.items())
    KEPT.write_text(f"{{\n{lines}\n}}\n")
