"""The site: every page has its place, every public name is explained, and nothing is loaded from
elsewhere.
"""

import importlib
import inspect
import json
import re
from pathlib import Path

import pytest
import yaml

import nearfar
import nearfar_papers
from nearfar.training.settings import settings_fields

ROOT = Path(__file__).parents[2]
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def pages_of(nav):
    """The pages of a navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    return [
        page
        for entry in (nav.values() if isinstance(nav, dict) else nav)
        for page in pages_of(entry)
    ]


def test_every_page_is_in_the_navigation_once():
    docs = ROOT / "docs"
    pages = {
        str(path.relative_to(docs))
        for path in docs.rglob("*.md")
        if path.parent != docs / "results"
    }
    named = pages_of(SITE["nav"])
    assert pages == set(named) and len(named) == len(pages)


def test_every_result_names_what_made_it():
    """A script is in benchmarks/, or stands beside the last commit that has it."""
    files = {path.name for path in (ROOT / "docs/results").iterdir()} - {"README.md"}
    page = (ROOT / "docs/results/README.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|.*\| (.*) \|$", page, re.MULTILINE)
    named = [name for row, _ in rows for name in re.findall(r"`(.*?)`", row)]
    assert sorted(named) == sorted(files)
    scripts = {f"benchmarks/{path.name}" for path in (ROOT / "benchmarks").glob("*.py")}
    texts = [*(text for _, text in rows), *_paragraphs(ROOT / "README.md")]
    texts += [part for path in (ROOT / "docs").glob("*.md") for part in _paragraphs(path)]
    for text in texts:
        gone = {*re.findall(r"benchmarks/\w+\.py", text)} - scripts
        assert not gone or re.search(r"\bof\s+(commit\s+)?[0-9a-f]{7}\b", text), (gone, text)
    for path in (ROOT / "docs/results").glob("*.json"):
        results = json.loads(path.read_text())
        if isinstance(results, dict) and "made_by" in results:
            assert re.fullmatch(r"benchmarks/\w+\.py of commit [0-9a-f]{7}", results["made_by"])


def _paragraphs(path):
    return path.read_text().split("\n\n")


def test_every_public_name_is_explained():
    page = (ROOT / "docs/reference/nearfar.md").read_text()
    named = re.findall(r"^::: nearfar\.(\w+)$", page, re.MULTILINE)
    tools = re.findall(r"^::: nearfar\.tools\.(\w+)\.\1$", page, re.MULTILINE)
    assert sorted(tools) == sorted(name for name in nearfar.tool_names())
    assert sorted([*named, *tools]) == sorted({*nearfar.__all__, "map"} - {"__version__"})
    papers = re.findall(r"^::: nearfar_papers\.(\w+)$", page, re.MULTILINE)
    assert sorted(papers) == sorted(nearfar_papers.__all__)


@pytest.mark.parametrize("module", ["losses", "pairs"])
def test_public_names_of_a_module_have_a_docstring(module):
    """A name without one is left out of the page."""
    module_object = importlib.import_module(f"nearfar.{module}")
    assert not [
        name for name in module_object.__all__ if not inspect.getdoc(getattr(module_object, name))
    ]


@pytest.fixture(scope="module")
def tree():
    griffe = pytest.importorskip("griffe")
    extensions = griffe.load_extensions(str(ROOT / "tools" / "docstrings.py"))
    return griffe.load("nearfar", search_paths=[ROOT / "src"], extensions=extensions)


def test_the_page_shows_the_signature_and_the_documentation_that_pretrain_has(tree):
    shown, real = tree["commands.pretrain.pretrain"], inspect.signature(nearfar.pretrain)
    assert [parameter.name for parameter in shown.parameters] == list(real.parameters)
    assert [parameter.kind.value for parameter in shown.parameters][:2] == [
        "positional or keyword",
        "keyword-only",
    ]
    for parameter in shown.parameters:
        default = real.parameters[parameter.name].default
        assert parameter.default == (None if default is inspect.Parameter.empty else repr(default))
    text = shown.docstring.value
    assert all(f"- `{setting.name}`: " in text for setting in settings_fields())
    assert "- `seed`: random seed. Default: 0.\n" in text
    assert text.index("**Arguments**") < text.index("**Returns**") < text.index("**Raises**")


def test_a_docstring_becomes_markdown():
    docstrings = pytest.importorskip("tools.docstrings")
    text = """-|Q|_* / t, mean over the 2 * batch rows.

Shapes: z1 [batch, dim],
raw embeddings.
`scale`: "matrix" keeps one Z_i.
rows: of each rank.
Differs from the paper:
1. One thing,
   at length.
2. Another.

    code(*words)

Args:
    run: run folder
        of *yours*.
    data: images.

Returns:
    Columns "rank": from 1.

>>> a * b  # a_ * b
1"""
    markdown = r"""-|Q|\_\* / t, mean over the 2 \* batch rows.

Shapes: z1 [batch, dim],
raw embeddings.

`scale`: "matrix" keeps one Z_i.

rows: of each rank.

Differs from the paper:

1. One thing,
   at length.
2. Another.

    code(*words)


**Arguments**

- `run`: run folder
of \*yours\*.
- `data`: images.


**Returns**

Columns "rank": from 1.


```pycon
>>> a * b  # a_ * b
1
```"""
    assert docstrings.as_markdown(text, ["rows"]) == markdown
    numpy = "Two.\n\nParameters\n----------\nfirst, second : numbers\nthird : text"
    assert (
        docstrings.as_markdown(numpy, [])
        == "Two.\n\n\n**Parameters**\n\n- `first, second`: numbers\n- `third`: text"
    )


def test_a_page_that_loads_from_elsewhere_is_refused():
    offline = pytest.importorskip("tools.offline")
    plain = (
        '<a href="https://a.org">a</a> <script src="../a.js"></script> <img '
        'src="data:image/png;base64,//8="/>'
    )
    page = type("Page", (), {"file": type("File", (), {"src_uri": "index.md"})})
    assert offline.on_post_page(output=plain, page=page) == plain
    for part in (
        '<script src="https://a.org/a.js">',
        '<img alt="a" src=//a.org/a.png>',
        '<link href="http://a.org/a.css">',
    ):
        with pytest.raises(
            offline.PluginError, match=r"index\.md loads from elsewhere: .*//a\.org/a\."
        ):
            offline.on_post_page(output=plain + part, page=page)
