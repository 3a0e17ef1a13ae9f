"""Commands and sections of the report that other installed packages add."""

import subprocess
import sys

import pytest

import nearfar
from nearfar import plugins
from nearfar.cli import main
from nearfar.pages.report import write_report

MODULE = '''
"""Shades.

nearfar shade runs/photos --level 2
"""

def shade(run: str, *, level: int = 1, name: str | None = None) -> dict:
    """Return how dark a run is.

    Args:
        run: run folder.
        level: how much darker.
        name: of the shade.
    """
    return {"run": run, "level": level, "name": name}

def section(folder):
    if (folder / "shade.txt").exists():
        raise ValueError(f"{folder / 'shade.txt'} is damaged")
    return "<section><h2>Shade &amp; light</h2></section>"

def defect(folder):
    raise KeyError("shade")
'''


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package with these entry points, in other processes too."""

    def installed(entry_points):
        about = tmp_path / "shades-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shades\nVersion: 1\n")
        (about / "entry_points.txt").write_text(entry_points)
        (tmp_path / "shades.py").write_text(MODULE)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
        monkeypatch.delitem(sys.modules, "shades", raising=False)

    return installed


@pytest.mark.slow
def test_a_command_of_another_package_is_listed_explained_and_run(install, capsys, complaint):
    assert "shade" not in plugins.commands()
    install("[nearfar.commands]\nshade = shades:shade\n")
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert "shade" in listed and "Return how dark a run is." in listed
    assert main(["shade", "--help"]) == 0
    page = capsys.readouterr().out
    assert "how much darker" in page and "nearfar shade runs/photos --level 2" in page
    assert main(["shade", "runs/a", "--level", "3", "--json"]) == 0
    assert capsys.readouterr().out == '{"run": "runs/a", "level": 3, "name": null}\n'
    assert '"x"' in complaint("shade", "runs/a", "--level", "x")
    assert "did you mean 'shade'" in complaint("shad", "runs/a")
    done = subprocess.run(
        [sys.executable, "-m", "nearfar", "shade", "runs/b", "--json"], capture_output=True
    )
    assert done.returncode == 0 and b'"run": "runs/b"' in done.stdout


def test_a_package_that_is_broken_does_not_take_the_commands_of_nearfar_away(install, capsys):
    install("[nearfar.commands]\nlight = shades_gone:light\nevaluate = shades:shade\n")
    assert main(["--help"]) == 0
    assert "cannot be imported: No module named 'shades_gone'" in capsys.readouterr().out
    from nearfar.app import command_paths, function_of

    assert (
        function_of("evaluate") is nearfar.evaluate and list(command_paths()).count("evaluate") == 1
    )


def test_a_section_of_another_package_stands_in_the_report(install, tmp_path, caplog):
    run = tmp_path / "run"
    run.mkdir()
    install("[nearfar.report]\nshade = shades:section\nlight = shades:defect\n")
    report = write_report(run).read_text()
    assert "<h2>Shade &amp; light</h2>" in report
    assert "The section light could not be made" in report  # and the rest is there
    (run / "shade.txt").touch()
    report = write_report(run).read_text()
    assert "<h2>Shade" not in report and "shade is damaged and left out" in report
    assert "shade.txt is damaged" in caplog.text
