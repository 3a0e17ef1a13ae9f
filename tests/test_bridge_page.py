"""The commands and fields of docs/bridge.md are those that nearfar has."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nearfar

pytestmark = pytest.mark.usefixtures("known_speed")

PAGE = (Path(__file__).parents[1] / "docs" / "bridge.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def block(kind, text):
    """The block of the page with this text."""
    [found_block] = [code for of, code in BLOCKS if of == kind and text in code]
    return found_block


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with photographs, two of them twice, and a shell in which `nearfar` is this one."""
    (tmp_path / "photos/other folder").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(8):
        rough = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8))
        rough.resize((50, 40), Image.Resampling.BICUBIC).save(tmp_path / f"photos/{number}.png")
    shutil.copy(tmp_path / "photos/1.png", tmp_path / "photos/other folder/1.png")
    shutil.copy(tmp_path / "photos/2.png", tmp_path / "photos/a copy\nof 2.png")
    own = tmp_path / "bin/nearfar"
    own.parent.mkdir()
    own.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m nearfar "$@"\n')
    own.chmod(0o755)
    monkeypatch.setenv("PATH", f"{own.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shell(commands):
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands], check=True, capture_output=True
    ).stdout


def test_the_fields_are_the_columns(place):
    table = PAGE.split("| field |")[1].split("\n\n")[0]
    cells = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    fields = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert fields == {*nearfar.duplicates("photos", out="x.html"), "edit", "read"}
    against = nearfar.duplicates("photos/other folder", against="photos", out="y.html")
    named = set(re.findall(r"`(archive_\w+)`", PAGE))
    assert {name for name in against if name.startswith("archive")} == named
    assert "group" not in against and "of" not in against


@pytest.mark.slow
def test_the_groups_are_read_as_the_page_says(place, capsys):
    exec(block("python", "groupby"), {})
    printed = capsys.readouterr().out
    assert f"2 same file {place}/photos/a copy\nof 2.png {place}/photos/2.png" in printed
    assert printed.count("first") == printed.count("same file") == 2


@pytest.mark.slow
def test_lists_links_and_the_way_back(place):
    """Every name reads the same after each command."""
    pictures = sorted((place / "photos").rglob("*.png"))
    before = [path.read_bytes() for path in pictures]

    def inodes():
        return len({path.stat().st_ino for path in pictures})

    listed = shell(block("", "wc -l"))
    assert listed.splitlines()[0].strip() == b"2" and b"a copy\nof 2.png" in listed
    assert inodes() == len(pictures) == 10
    shell(block("", "nearfar link"))
    assert inodes() == 8 and [path.read_bytes() for path in pictures] == before
    shell(block("", "-links +1"))
    assert inodes() == 10 and [path.read_bytes() for path in pictures] == before
    assert sorted((place / "photos").rglob("*.png")) == pictures


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git-annex") is None, reason="git-annex is not installed")
def test_an_annex_takes_copies_and_moves_what_was_chosen(place, monkeypatch):
    for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "EMAIL"):
        monkeypatch.setenv(name, "name@localhost")
    monkeypatch.setenv("HOME", str(place))
    shell(
        "git init -q --bare archive.git; cd archive.git; git annex init -q archive; cd ../photos;"
        "git init -q; git annex init -q; git annex add -q 1.png 2.png; git commit -qm two;"
        "git remote add archive ../archive.git; git annex sync -q; git config annex.thin true"
    )
    shell(block("", "git annex add"))
    (place / "photos/to-remove.list").write_bytes(b"a copy\nof 2.png\0" + b"2.png\0")
    copies = [place / "photos" / name for name in ("1.png", "other folder/1.png", "2.png")]
    content = [path.read_bytes() for path in copies]
    assert all(path.is_symlink() for path in copies)
    assert copies[0].resolve() == copies[1].resolve()
    move, get = block("", "git annex move").splitlines()
    shell(f"cd photos; {move}")
    assert copies[2].is_symlink() and not copies[2].exists() and copies[0].exists()
    shell(f"cd photos; {get}")
    assert [path.read_bytes() for path in copies] == content
