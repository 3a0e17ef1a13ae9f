"""A run with a time ends when the time does, on a machine of any speed, and its schedule ends with it."""

from itertools import pairwise

import pytest

from nearfar.training.progress import Pace


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def run(pace, clock, seconds_of_step, resume_at=None):
    """Take every step of a run; returns the positions before each step and the seconds that it took."""
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
    assert min(moves) > 0 and max(moves) < 1.35 * max(moves[0], moves[-1], 5)  # never back, and no jump
    assert pace.position(steps) == pytest.approx(1000)  # the schedule ends with the last step
    assert 1000 - positions[-1] < 2 * max(moves[-1], 1e-9)


def test_no_more_steps_than_asked_for():
    clock = Clock()
    _, seconds, steps = run(Pace(1000, seconds=1000.0, most=1500, clock=clock), clock, lambda now: 0.1)
    assert steps == 1500 and seconds == pytest.approx(150)


def test_a_resumed_run_takes_the_steps_that_it_had_come_to():
    clock = Clock()
    pace = Pace(100, seconds=100.0, clock=clock)
    for step in range(1, 31):
        clock.now += 2.0
        pace.change(step, pace.fit(step))
    assert 49 <= pace.steps <= 51
    again = Pace(100, seconds=100.0, clock=clock)
    again.load(pace.state())
    clock.now += 1000.0
    assert again.fit(31) == pace.steps
    assert [again.position(s) for s in range(30, 51)] == [pace.position(s) for s in range(30, 51)]
