"""An archive holds the package: each of its files, and a wheel nothing else."""

import io
import subprocess
import tarfile
import zipfile

import pytest

from tools.check_wheel import ROOT, check_contents

SHEET = "nearfar/pages/templates/style.css"


@pytest.fixture(scope="module")
def sources():
    listed = subprocess.run(
        ["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    names = [name.removeprefix("src/") for name in listed.split()]
    assert SHEET in names and any(name.endswith(".yaml") for name in names)
    return names


def wheel(folder, names):
    with zipfile.ZipFile(folder / "nearfar-1-py3-none-any.whl", "w") as archive:
        for name in [*names, "nearfar-1.dist-info/METADATA"]:
            archive.writestr(name, "")
    return folder / "nearfar-1-py3-none-any.whl"


def sdist(folder, names):
    with tarfile.open(folder / "nearfar-1.tar.gz", "w:gz") as archive:
        for name in ["README.md", "docs/maps.md", *(f"src/{name}" for name in names)]:
            archive.addfile(tarfile.TarInfo(f"nearfar-1/{name}"), io.BytesIO())
    return folder / "nearfar-1.tar.gz"


@pytest.mark.parametrize("make", [wheel, sdist])
def test_every_file_must_be_there(make, sources, tmp_path):
    check_contents([make(tmp_path, sources)])
    with pytest.raises(SystemExit, match=SHEET):
        check_contents([make(tmp_path, [name for name in sources if name != SHEET])])


def test_a_wheel_holds_nothing_else(sources, tmp_path):
    with pytest.raises(SystemExit, match=r"runs/photos/config\.yaml"):
        check_contents([wheel(tmp_path, [*sources, "runs/photos/config.yaml"])])
