"""Properties of every page: its policy, and that a value stays a value."""

import ast
import base64
import hashlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from jinja2 import UndefinedError

import nearfar
from nearfar.pages.template import policy, render_page, script, section, write_page

HOSTILE = "\"'</script><script>x</script>&"


def test_a_page_runs_nothing_but_the_scripts_that_it_names():
    own = script("duplicates/duplicates.js")
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    text = render_page(
        "duplicates/duplicates.html",
        title=HOSTILE,
        about=HOSTILE,
        data={HOSTILE: HOSTILE, "links": []},
        left=0,
        folded=0,
        images=0,
        scripts=[own],
    )
    [allowed] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert allowed == (
        "default-src 'none'; base-uri 'none'; form-action 'none'; style-src "
        "'unsafe-inline'; img-src data:; "
        f"script-src 'sha256-{digest}'"
    )
    assert f"<script>{own}</script>" in text  # what was hashed, to the byte
    assert text.count("<script") == text.count("</script>") == 2  # and the data
    assert "script-src 'none'" in policy() and "img-src data: file: 'self'" in policy(beside=True)


def test_a_value_is_text_and_one_that_is_missing_is_an_error(tmp_path):
    assert "<script>" not in section(
        "verdict", verdict=SimpleNamespace(state=HOSTILE, words=HOSTILE), outcome=None
    )
    with pytest.raises(UndefinedError):
        section("neighbours", content={"searched": 1})
    with pytest.raises(UndefinedError):
        write_page(tmp_path / "page.html", "report.html", title="a", about="")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "url",
    ["javascript:x", "data:image/svg+xml;base64,AA==", "data:text/html,x", "http://a/b.png", 5],
)
def test_an_image_is_in_the_page_itself(url):
    with pytest.raises(ValueError, match="is none"):
        section("map", page="", picture=url, older=False, folder=False)


def test_html_stands_in_templates():
    tag = re.compile(r"</\w+>|<(img|br|div|p|li|ul|td|tr|meta|table|span)\b")
    for path in Path(nearfar.__file__).parent.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        texts = [
            n.value
            for n in nodes
            if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in prose
        ]
        assert not [text for text in texts if tag.search(text)], path.name
