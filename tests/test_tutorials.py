"""Every tutorial runs as it stands: the files that it shows, its command lines, its Python, and what they print."""

import re
import shlex
from pathlib import Path

import pytest

from nearfar.cli import main

PAGES = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r'^```(\w*)(?: title="(.+?)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)


def test_every_block_says_what_it_is():
    assert [page.stem for page in PAGES] == ["loop", "microscope", "photographs", "sorting", "table"]
    for page in PAGES:
        kinds = [(kind, bool(title)) for kind, title, _ in BLOCK.findall(page.read_text())]
        assert set(kinds) <= {("python", False), ("sh", False), ("text", False), ("yaml", True)}
        assert ("python", False) in kinds


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_it_stands(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": page.stem}
    said = ""
    for kind, title, content in BLOCK.findall(page.read_text()):
        if title:
            Path(title).write_text(content)
        elif kind == "text":
            assert content in said
        elif kind == "sh":
            for line in content.splitlines():
                program, *words = shlex.split(line, comments=True)
                assert program == "nearfar"
                assert main(words) == 0, capsys.readouterr().err
        else:
            exec(compile(content, str(page), "exec"), names)
        said += "".join(capsys.readouterr())
