"""Every tutorial runs as a notebook: its Python, its command lines, and what they print.

The pages are Markdown that jupytext reads: blocks of `python` and `sh` are cells, `text` is what
was printed so far.
"""

import re
from pathlib import Path

import pytest

jupytext = pytest.importorskip("jupytext")
nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

PAGES = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = """
import contextlib, io, rich.console, shlex
from nearfar.cli import main

rich.console._is_jupyter = lambda: False  # as in a shell

def sh(line, cell):
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), write_through=True)) as out:
        failed = [line for line in cell.splitlines() if main(shlex.split(line, comments=True)[1:])]
    print(out.buffer.getvalue().decode())
    assert not failed and all(line.startswith("nearfar ") for line in cell.splitlines()), failed

get_ipython().register_magic_function(sh, "cell")
"""  # `%%sh` runs in the kernel, as each shell would spend seconds on importing torch


def printed(cell) -> str:
    texts = (
        output.get("text") or output.get("data", {}).get("text/plain", "")
        for output in cell.get("outputs", [])
    )
    return "".join(texts)


def test_every_block_says_what_it_is():
    assert [page.stem for page in PAGES] == [
        "loop",
        "microscope",
        "photographs",
        "sorting",
        "table",
    ]
    for page in PAGES:
        kinds = {kind for kind, _ in BLOCK.findall(page.read_text())}
        assert "python" in kinds <= {"python", "sh", "text"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_a_notebook(page, tmp_path):
    notebook = jupytext.read(page)
    assert notebook.metadata.kernelspec.name == "python3"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(COMMANDS))
    nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": tmp_path}}
    ).execute()
    output = ""
    for cell in notebook.cells:
        for kind, content in BLOCK.findall(cell.source if cell.cell_type == "markdown" else ""):
            assert kind == "text" and content in output
        output += printed(cell)
