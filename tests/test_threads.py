"""The fastest number of threads, one number for a run, and never another than the user's."""

import pytest
import torch

from nearfar import threads


@pytest.fixture
def machine(monkeypatch):
    """Two or more threads to choose among; the seconds of a trial are those of a table that a test may change."""
    seconds, before = {}, torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    clock = [0.0]
    monkeypatch.setattr(threads.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(threads, "_trial", lambda count, at_most: seconds[count])
    yield seconds, clock
    torch.set_num_threads(before)


def test_the_fastest_number_is_taken(machine):
    seconds, clock = machine
    torch.set_num_threads(4)
    watch = threads.Threads()
    seconds |= {1: 4.0, 2: 2.0, 3: 1.4, 4: 1.0}
    watch.adapt()
    assert torch.get_num_threads() == 4
    seconds |= {2: 3.0, 3: 2.0, 4: 9.0}  # another process takes a core
    watch.adapt()
    assert torch.get_num_threads() == 4  # not time to try yet
    clock[0] += threads.SECONDS
    watch.adapt()
    assert torch.get_num_threads() == 3
    seconds |= {3: 1.4, 4: 1.0}  # and gives it back
    clock[0] += threads.SECONDS
    watch.adapt()
    assert torch.get_num_threads() == 3  # trials are rarer while cores are taken
    clock[0] += threads.SECONDS
    watch.adapt()
    assert torch.get_num_threads() == 4


def test_a_number_that_is_as_good_is_kept(machine):
    seconds, _ = machine
    torch.set_num_threads(2)
    watch = threads.Threads()
    seconds |= {1: 1.0, 2: 1.1}
    watch.adapt()
    assert torch.get_num_threads() == 2


def test_all_threads_are_there_again_for_who_comes_next(machine):
    seconds, _ = machine
    torch.set_num_threads(2)
    seconds |= {1: 1.0, 2: 9.0}
    with threads.Threads() as watch:
        watch.adapt()
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with threads.Threads("cuda") as watch:
        watch.adapt()
        assert torch.get_num_threads() == 2


def test_the_users_number_stays(machine, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)
    threads.Threads().adapt()  # a trial would fail: the table is empty
    assert torch.get_num_threads() == 2 == threads.fastest_threads()


def test_one_slow_trial_does_not_decide_for_a_run(machine, monkeypatch):
    torch.set_num_threads(2)
    taken = {1: iter([1.8] * 5), 2: iter([1.0, 9.0, 1.0, 9.0, 1.0])}
    monkeypatch.setattr(threads, "_trial", lambda count, at_most: next(taken[count]))
    assert threads.fastest_threads() == 2
    taken |= {1: iter([1.8] * 5), 2: iter([9.0, 9.0, 1.0, 9.0, 1.0])}
    assert threads.fastest_threads() == 1
    assert torch.get_num_threads() == 2


def test_a_number_in_use_is_held(machine):
    seconds, _ = machine
    seconds |= {1: 9.0, 2: 1.0}
    torch.set_num_threads(2)
    with threads.use_threads(1):
        with threads.use_threads(1):
            pass
        with threads.Threads() as watch:
            watch.adapt()
        assert torch.get_num_threads() == 1 == threads.fastest_threads()
    assert torch.get_num_threads() == 2


def test_a_trial_leaves_random_numbers_and_modes_alone():
    before, count = torch.random.get_rng_state(), torch.get_num_threads()
    with torch.no_grad():
        assert threads._trial(1, at_most=1.0) > 0
    torch.set_num_threads(count)
    assert torch.equal(torch.random.get_rng_state(), before)
