"""Every snippet of docs/extending.md runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
SECTIONS = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
SNIPPETS = {title: re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL) for title, text in SECTIONS}


def test_there_are_five():
    assert [len(found) for found in SNIPPETS.values()] == [1] * 5


@pytest.mark.parametrize("title", SNIPPETS)
def test_a_snippet_runs_as_it_stands(title, tmp_path):
    (tmp_path / "snippet.py").write_text(SNIPPETS[title][0])
    done = subprocess.run([sys.executable, "snippet.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
