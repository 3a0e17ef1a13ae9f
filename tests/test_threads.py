"""The fastest number of threads, one number for a process, and never another than the user's."""

import pytest
import torch

from nearfar import threads
from nearfar.evaluation import extract


@pytest.fixture
def machine(monkeypatch):
    """Two threads, and trials whose seconds a test says: an iterator by the number of threads."""
    seconds, before = {}, torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "_chosen", None)
    monkeypatch.setattr(threads, "_trial", lambda count, at_most: next(seconds[count]))
    torch.set_num_threads(2)
    yield seconds
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("first", "second", "fastest"),
    [
        ([4.0] * 5, [1.0] * 5, 2),
        ([1.0] * 5, [9.0] * 5, 1),  # another process takes a core
        ([1.0] * 5, [1.1] * 5, 2),  # what is as good stays
        ([1.8] * 5, [1.0, 9.0, 1.0, 9.0, 1.0], 2),  # slow trials do not decide
    ],
)
def test_the_number_with_the_best_median_is_taken_once(first, second, fastest, machine):
    machine |= {1: iter(first), 2: iter(second)}
    assert (
        threads.fastest_threads() == fastest == threads.fastest_threads()
    )  # the trials are used up
    assert torch.get_num_threads() == 2


def test_the_number_of_the_user_or_of_a_run_stays(machine, monkeypatch):
    with threads.use_threads(1):
        assert threads.fastest_threads() == 1  # a trial would fail: there are no seconds
    assert torch.get_num_threads() == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads.fastest_threads() == 2


def test_features_are_computed_with_the_fastest_number(machine):
    machine |= {1: iter([1.0] * 5), 2: iter([9.0] * 5)}
    seen = []

    def encoder(images):
        seen.append(torch.get_num_threads())
        return images.flatten(1)

    extract(encoder, torch.rand(600, 1, 4, 4), batch_size=300)
    assert seen == [1, 1] and torch.get_num_threads() == 2


def test_a_trial_leaves_random_numbers_and_modes_alone():
    before, count = torch.random.get_rng_state(), torch.get_num_threads()
    with torch.no_grad():
        assert threads._trial(1, at_most=1.0) > 0
    torch.set_num_threads(count)
    assert torch.equal(torch.random.get_rng_state(), before)
