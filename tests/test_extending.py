"""Every snippet of docs/extending.md runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_eight_snippets_run_as_they_stand(tmp_path):
    """In one new process, as torch takes seconds to import."""
    for number, snippet in enumerate(SNIPPETS):
        (tmp_path / f"snippet{number}.py").write_text(snippet)
    assert len(SNIPPETS) == len(list(tmp_path.iterdir())) == 8
    code = (
        "import runpy; [runpy.run_path(f'snippet{number}.py', run_name='__main__') for "
        "number in range(8)]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
