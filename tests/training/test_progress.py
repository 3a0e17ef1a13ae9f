"""A run with a time ends when the time does, and its schedule with it; progress where there is no
terminal.
"""

import io
import sys
from itertools import pairwise
from types import ModuleType, SimpleNamespace

import pytest
from rich.console import Console

from nearfar import rendering
from nearfar.progress import say_read, waiting
from nearfar.rendering import ConsoleRenderer, shown_on
from nearfar.training.progress import StepBudget, TrainingProgress


@pytest.fixture
def notebook(monkeypatch):
    """A console as it is in a notebook, and what was shown there, without ipywidgets."""
    shown = []
    display = ModuleType("IPython.display")
    display.display = lambda *things: shown.extend(thing.text for thing in things)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(rendering, "find_spec", lambda name: None)
    return Console(force_jupyter=True, width=100), shown


def train(steps, done=0):
    """Take the steps of a run of ten steps, five an epoch."""
    with TrainingProgress(StepBudget(10), done=done, per_epoch=5) as progress:
        for step in range(done + 1, done + 1 + steps):
            progress.update(loss=2.5, rate=300.0, waiting=0.0)
            progress.advance(step)


def test_a_notebook_shows_lines(notebook, recwarn):
    console, shown = notebook
    with shown_on(console):
        train(10)
        with waiting("choosing"):
            pass
    assert (
        "first step done" in shown[0] and "epoch 2.0/2" in shown[-1] and "300 images/s" in shown[-1]
    )
    assert not recwarn.list  # rich warns of a bar that it cannot show


def test_where_no_bar_moves_a_line_comes_after_the_first_step_at_times_and_at_the_end(monkeypatch):
    now, file = [100.0], io.StringIO()
    monkeypatch.setattr(rendering, "perf_counter", lambda: now[0])
    console = Console(file=file, width=200)
    with shown_on(console), TrainingProgress(StepBudget(10), done=0, per_epoch=5) as progress:
        for step in range(1, 11):
            now[0] += 6.0
            progress.advance(step)
    steps = [
        round(5 * float(line.split("/")[0].split()[1])) for line in file.getvalue().splitlines()
    ]
    assert steps == [1, 4, 7, 10]  # 18 s apart: the first multiple of a step beyond 15


@pytest.mark.parametrize(("steps", "lasting"), [(10, 1), (6, 0)])
def test_on_a_terminal_the_last_line_of_a_whole_run_stays(steps, lasting):
    file = io.StringIO()
    with shown_on(Console(file=file, force_terminal=True, width=200)):
        train(steps)
    last = file.getvalue().splitlines()[-1]
    assert last.count(f"epoch {steps / 5:.1f}/2  loss 2.5000  300 images/s") == lasting


def test_a_second_process_shows_nothing():
    file = io.StringIO()
    with shown_on(Console(file=file, width=200)):
        progress = TrainingProgress(StepBudget(10), done=0, per_epoch=5, shown=False)
        with progress:
            progress.advance(1)
    assert file.getvalue() == ""


def test_a_bar_moves_on_a_terminal_and_in_a_notebook_with_widgets(notebook, monkeypatch):
    console, _ = notebook
    assert not ConsoleRenderer(console).live
    assert not ConsoleRenderer(Console(force_terminal=False, force_jupyter=False)).live
    assert ConsoleRenderer(Console(force_terminal=True, force_jupyter=False)).live
    monkeypatch.setattr(rendering, "find_spec", lambda name: object())
    assert ConsoleRenderer(console).live


@pytest.mark.parametrize(
    ("left_out", "level"), [({}, "INFO"), ({"no image": 2}, "WARNING")], ids=["all", "some"]
)
def test_what_was_read_is_a_line_and_a_warning_where_some_was_left_out(left_out, level, log):
    images = SimpleNamespace(line="3 images read", left_out=left_out)
    say_read(images)
    assert [record.levelname for record in log.records] == [level]
    assert log.lines == ["3 images read"]


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
    positions, _, steps = run(StepBudget(7, clock=Clock()), Clock(), lambda now: 1.0)
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
    pace = StepBudget(1000, seconds=1000.0, clock=clock)
    positions, seconds, steps = run(pace, clock, speed)
    assert 960 < seconds < 1025
    moves = [b - a for a, b in pairwise(positions)]
    assert min(moves) > 0 and max(moves) < 1.35 * max(
        moves[0], moves[-1], 5
    )  # never back, and no jump
    assert pace.position(steps) == pytest.approx(1000)  # the schedule ends with the last step
    assert 1000 - positions[-1] < 2 * max(moves[-1], 1e-9)


@pytest.mark.parametrize("each", [0.7, 0.9, 1.0, 1.1, 1.45])
def test_a_steady_run_is_on_its_schedule_at_every_share_of_its_time(each):
    """Also one that is less than half as slow again as was planned, or as fast."""
    clock = Clock()
    positions, seconds, _ = run(
        StepBudget(1000, seconds=1000.0, clock=clock), clock, lambda now: each
    )
    assert seconds == pytest.approx(1000, abs=15)
    for share in (0.25, 0.5, 0.75):
        assert positions[int(1000 * share / each)] == pytest.approx(1000 * share, abs=25)


def test_no_more_steps_than_asked_for():
    clock = Clock()
    _, seconds, steps = run(
        StepBudget(1000, seconds=1000.0, most=1500, clock=clock), clock, lambda now: 0.1
    )
    assert steps == 1500 and seconds == pytest.approx(150)


def test_a_resumed_run_takes_the_steps_that_it_had_come_to():
    clock = Clock()
    pace = StepBudget(100, seconds=100.0, clock=clock)
    for step in range(1, 31):
        clock.now += 2.0
        pace.change(step, pace.fit(step))
    assert 49 <= pace.steps <= 51
    again = StepBudget(100, seconds=100.0, clock=clock)
    again.load(pace.state(), 30)
    clock.now += 1000.0
    assert again.fit(31) == pace.steps
    assert [again.position(s) for s in range(30, 51)] == [pace.position(s) for s in range(30, 51)]
