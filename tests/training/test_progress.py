"""A run with a time ends when the time does, and its schedule with it; progress where there is no
terminal.
"""

import sys
from itertools import pairwise
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
            progress.update(loss=2.5, rate=300.0, waiting=0.0)
            progress.advance(step)
    assert (
        "first step done" in shown[0] and "epoch 2.0/2" in shown[-1] and "300 images/s" in shown[-1]
    )
    with waiting(console, "choosing"):
        pass
    assert not recwarn.list  # rich warns of a bar that it cannot show


def test_a_bar_moves_on_a_terminal_and_in_a_notebook_with_widgets(notebook, monkeypatch):
    console, _ = notebook
    assert not shows_bars(console) and not shows_bars(
        Console(force_terminal=False, force_jupyter=False)
    )
    assert shows_bars(Console(force_terminal=True, force_jupyter=False))
    monkeypatch.setattr("nearfar.training.progress.find_spec", lambda name: object())
    assert shows_bars(console)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def run(pace, clock, seconds_of_step, resume_at=None):
    """Take every step of a run; returns the positions before each step and the seconds that it
    took.
    """
    step, positions, began = 0, [], clock.now
    while step < pace.steps:
        positions.append(pace.position(step))
        clock.now += seconds_of_step(clock.now - began)
        step += 1
        pace.change(step, pace.fit(step))
    return positions, clock.now - began, step


def test_without_a_time_a_step_is_a_step():
    positions, _, steps = run(Pace(7, clock=Clock()), Clock(), lambda now: 1.0)
    assert positions == [0, 1, 2, 3, 4, 5, 6] and steps == 7


@pytest.mark.parametrize(
    "speed",
    [
        lambda now: 1.0,  # as fast as measured
        lambda now: 4.0,  # four times slower all along
        lambda now: 0.3,  # faster
        lambda now: 1.0 if now < 300 else 5.0,  # another process comes
        lambda now: 3.0 if 200 < now < 500 else 1.0,  # and goes
    ],
)
def test_a_run_ends_with_its_time(speed):
    clock = Clock()
    pace = Pace(1000, seconds=1000.0, clock=clock)
    positions, seconds, steps = run(pace, clock, speed)
    assert 960 < seconds < 1025
    moves = [b - a for a, b in pairwise(positions)]
    assert min(moves) > 0 and max(moves) < 1.35 * max(
        moves[0], moves[-1], 5
    )  # never back, and no jump
    assert pace.position(steps) == pytest.approx(1000)  # the schedule ends with the last step
    assert 1000 - positions[-1] < 2 * max(moves[-1], 1e-9)


def test_no_more_steps_than_asked_for():
    clock = Clock()
    _, seconds, steps = run(
        Pace(1000, seconds=1000.0, most=1500, clock=clock), clock, lambda now: 0.1
    )
    assert steps == 1500 and seconds == pytest.approx(150)


def test_a_resumed_run_takes_the_steps_that_it_had_come_to():
    clock = Clock()
    pace = Pace(100, seconds=100.0, clock=clock)
    for step in range(1, 31):
        clock.now += 2.0
        pace.change(step, pace.fit(step))
    assert 49 <= pace.steps <= 51
    again = Pace(100, seconds=100.0, clock=clock)
    again.load(pace.state(), 30)
    clock.now += 1000.0
    assert again.fit(31) == pace.steps
    assert [again.position(s) for s in range(30, 51)] == [pace.position(s) for s in range(30, 51)]
