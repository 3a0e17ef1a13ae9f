"""Published files agree: one version, one list of requirements, four papers, and no address that
nobody has.
"""

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import nearfar
from tools.sbom import bill, text

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REQUIREMENTS = {
    requirement.name: requirement.specifier
    for requirement in map(Requirement, PROJECT["project"]["dependencies"])
}
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
RECIPE = yaml.safe_load((ROOT / "conda/recipe.yaml").read_text())
ON_CONDA = {
    "torch": "pytorch",
    "matplotlib": "matplotlib-base",
}
ON_CONDA |= {"huggingface-hub": "huggingface_hub"}


def test_one_version_everywhere():
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/nearfar/__init__.py"
    log = (ROOT / "CHANGELOG.md").read_text()
    version, date = re.search(
        r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", log, re.MULTILINE
    ).groups()
    assert version == nearfar.__version__ == CITATION["version"] == RECIPE["context"]["version"]
    assert date == str(CITATION["date-released"])


def test_the_changelog_has_the_sections_of_its_form():
    titles = re.findall(r"^##+ (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert titles[0] == "[Unreleased]"
    assert all(
        title in kinds or re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", title)
        for title in titles[1:]
    )


def test_the_oldest_supported_versions_are_the_lower_bounds():
    lines = [
        line
        for line in (ROOT / "constraints-lowest.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    lowest = dict(line.split("==") for line in lines)
    assert lowest.keys() == REQUIREMENTS.keys()
    for name, version in lowest.items():
        (bound,) = REQUIREMENTS[name]
        assert bound.operator == ">=" and SpecifierSet(f"=={version}").contains(bound.version), name


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_each_package_is_pinned_once_for_a_version_of_python(version):
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    wanted = {"python_version": version}
    counts = Counter(pin.name for pin in pins if pin.marker is None or pin.marker.evaluate(wanted))
    assert counts and max(counts.values()) == 1, counts.most_common(1)


def test_the_recipe_for_conda_has_the_same_requirements():
    run = dict(line.split(" ", 1) for line in RECIPE["requirements"]["run"])
    assert SpecifierSet(run.pop("python")) == SpecifierSet(PROJECT["project"]["requires-python"])
    expected = {ON_CONDA.get(name, name): specifier for name, specifier in REQUIREMENTS.items()}
    assert {name: SpecifierSet(bound) for name, bound in run.items()} == expected
    assert RECIPE["about"]["license"] == PROJECT["project"]["license"] == CITATION["license"]
    assert RECIPE["about"]["summary"] == PROJECT["project"]["description"]
    ((name, function),) = PROJECT["project"]["scripts"].items()
    assert RECIPE["build"]["python"]["entry_points"] == [f"{name} = {function}"]


@pytest.mark.parametrize("name", ["saclr", "sigclr", "sce", "lorac"])
def test_each_paper_is_cited_as_the_methods_cite_it(name):
    (paper,) = (
        reference
        for reference in CITATION["references"]
        if reference["abbreviation"].lower() == name
    )
    cited = nearfar.list_methods()[name]["paper"]
    assert paper["title"] in cited or cited in paper["title"]
    year = re.search(r"\d{4}$", cited)
    assert year is None or int(year[0]) == paper["year"]
    first = paper["authors"][0].get("family-names", "")
    assert first in cited or name == "sigclr"


@pytest.mark.parametrize(
    "form", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=str
)
def test_the_forms_for_issues_are_whole(form):
    content = yaml.safe_load(form.read_text())
    assert content["name"] and content["description"] and content["body"]
    assert len({field["id"] for field in content["body"]}) == len(content["body"])
    assert all(
        field["type"] in ("input", "textarea") and field["attributes"]["label"]
        for field in content["body"]
    )


def test_addresses_are_missing_in_one_place_only():
    """The day there is an address, it goes into pyproject.toml, and this test goes."""
    assert "urls" not in PROJECT["project"]
    files = [
        "pyproject.toml",
        "CITATION.cff",
        "SECURITY.md",
        "CODE_OF_CONDUCT.md",
        "conda/recipe.yaml",
        "mkdocs.yml",
    ]
    files += [str(path.relative_to(ROOT)) for path in (ROOT / ".github").rglob("*.yml")]
    assert [name for name in files if "BLANK" in (ROOT / name).read_text()] == ["pyproject.toml"]
    pin = re.compile(r"@[0-9a-f]{40}\b")  # of an action in a workflow
    texts = {name: pin.sub("", (ROOT / name).read_text()) for name in files}
    assert not [name for name, text in texts.items() if re.search(r"https?://|\w@\w", text)]


def test_the_bill_of_materials_names_all_that_is_required_and_shipped():
    """Write it anew with `python -m tools.sbom`."""
    assert (ROOT / "sbom.cdx.json").read_text() == text()
    parts = bill()["components"]
    libraries = {part["name"] for part in parts if part["type"] == "library"}
    shipped = {part["name"] for part in parts if part["type"] != "library"}
    weights = (ROOT / "src").rglob("*.safetensors")
    assert libraries == set(REQUIREMENTS)
    assert shipped == {path.relative_to(ROOT / "src").as_posix() for path in weights}
