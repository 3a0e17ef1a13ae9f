"""Progress where there is no terminal: in a notebook, with ipywidgets and without."""

import sys
from types import ModuleType

import pytest
from rich.console import Console

from nearfar.training.progress import Pace, TrainingProgress, shows_bars, waiting


@pytest.fixture
def notebook(monkeypatch):
    """A console as it is in a notebook, and what was shown there, without ipywidgets."""
    shown = []
    display = ModuleType("IPython.display")
    display.display = lambda *things: shown.extend(thing.text for thing in things)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr("nearfar.training.progress.find_spec", lambda name: None)
    return Console(force_jupyter=True, width=100), shown


def test_a_notebook_shows_lines(notebook, recwarn):
    console, shown = notebook
    with TrainingProgress(console, Pace(10), done=0, per_epoch=5) as progress:
        for step in range(1, 11):
            progress.update(step, loss=2.5, rate=300.0, waiting=0.0)
            progress.advance(step)
    assert "first step done" in shown[0] and "epoch 2.0/2" in shown[-1] and "300 images/s" in shown[-1]
    with waiting(console, "choosing"):
        pass
    assert not recwarn.list  # rich warns of a bar that it cannot show


def test_a_bar_moves_on_a_terminal_and_in_a_notebook_with_widgets(notebook, monkeypatch):
    console, _ = notebook
    assert not shows_bars(console) and not shows_bars(Console(force_terminal=False, force_jupyter=False))
    assert shows_bars(Console(force_terminal=True, force_jupyter=False))
    monkeypatch.setattr("nearfar.training.progress.find_spec", lambda name: object())
    assert shows_bars(console)
