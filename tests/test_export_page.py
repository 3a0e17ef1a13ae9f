"""The snippets of docs/export.md run as they stand, but for those of tools that are not
installed.
"""

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nearfar

pytestmark = pytest.mark.usefixtures("known_speed")

PAGE = Path(__file__).parents[1] / "docs" / "export.md"
SNIPPETS = re.findall(
    r'^```python(?: title="(\w+)")?\n(.*?)^```', PAGE.read_text(), re.MULTILINE | re.DOTALL
)
NEEDS = {"onnxruntime", "faiss", "fiftyone"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with photographs, a run on them, and what the page exports and embeds before it uses
    it.
    """
    folder = tmp_path_factory.mktemp("page")
    (folder / "photos").mkdir()
    rng = np.random.default_rng(0)
    for number in range(24):
        rough = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8))
        rough.resize((50, 40), Image.Resampling.BICUBIC).save(folder / "photos" / f"{number}.png")
    options = dict(epochs=1, batch_size=8, image_size=32, encoder="small", held_out=0)
    run = nearfar.pretrain(folder / "photos", out=folder / "runs" / "photos", **options)
    if find_spec("onnxruntime") is not None:
        nearfar.export(run, to="onnx")
    return folder


def test_there_are_eight():
    assert [tool for tool, _ in SNIPPETS if tool] == ["faiss", "fiftyone"] and len(SNIPPETS) == 8


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
@pytest.mark.slow
def test_a_snippet_runs_as_it_stands(number, place, monkeypatch, capsys):
    code = SNIPPETS[number][1]
    for library in NEEDS:
        if f"import {library}" in code and find_spec(library) is None:
            compile(code, str(PAGE), "exec")
            pytest.skip(f"{library} is not installed")
    monkeypatch.chdir(place)
    exec(compile(code, str(PAGE), "exec"), {"__name__": f"snippet{number}"})
    assert capsys.readouterr().out.strip()
