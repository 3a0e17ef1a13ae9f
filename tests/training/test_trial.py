"""A trial of speed is steps of training: it has the run's batch, ends in time, and says nothing."""

import time

import pytest
import torch

import nearfar
from nearfar.methods import WMSE, method_class
from nearfar.training import trial
from nearfar.training.model_size import Candidate, Way
from nearfar.training.settings import Settings
from nearfar.training.step import GradientStep
from nearfar.training.trial import Trials, training_speed
from nearfar.views import plan

SIMCLR = method_class("simclr").from_recipe()
SMALL = Candidate("small", 8, 8)


@pytest.fixture
def speeds(monkeypatch):
    """Have training_speed answer 1, and 2 compiled; yields the (batch size, compiled) tried."""
    tried = []

    def speed(*given, batch_size, compiled, **named):
        time.sleep(0.02 * compiled)
        tried.append((batch_size, compiled))
        return 1.0 + compiled

    monkeypatch.setattr(trial, "training_speed", speed)
    return tried


def test_it_has_enough_images_for_the_loss(monkeypatch):
    tried = []

    def speed(*given, batch_size, **named):
        tried.append(batch_size or 64)
        return training_speed(*given, batch_size=tried[-1], **named)

    monkeypatch.setattr(trial, "training_speed", speed)
    given = Settings("digits", method="wmse", precision="32-true")
    rates = Trials(given, WMSE())(SMALL, 1, [Way("32-true")])
    assert rates[Way("32-true")] > 0 and tried == [64, 256]


def test_it_has_the_batch_and_the_parts_that_are_given(images_file, tmp_path, monkeypatch):
    """A run begins even if not even a trial fits into the memory."""
    seen = set()

    def full(self, make_views, index, batch, seed):
        seen.add((len(index), self.micro_batch))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(GradientStep, "__call__", full)
    with pytest.raises(torch.OutOfMemoryError):
        nearfar.pretrain(images_file, out=tmp_path / "run", epochs=1, batch_size=16, micro_batch=4)
    assert seen == {(16, 4)}


def test_a_slow_compiler_is_tried_once(speeds, monkeypatch):
    monkeypatch.setattr(trial, "LONGEST", 0.005)
    trials = Trials(Settings("photos"), SIMCLR)
    compiled, plain = Way("32-true", compiled=True), Way("32-true")
    assert trials(SMALL, 3, [compiled, plain]) == {compiled: 2.0, plain: 1.0}
    assert [kind for _, kind in speeds] == [True, False]


def test_the_first_candidate_is_always_tried_and_another_while_there_is_time(speeds, monkeypatch):
    trials, way = Trials(Settings("photos"), SIMCLR), Way("32-true")
    assert trials(SMALL, 3, [way]) == trials(SMALL, 3, [way]) == {way: 1.0}
    monkeypatch.setattr(trial, "LONGEST", 0.0)
    assert trials(SMALL, 3, [way]) is None


def test_two_precisions_are_tried_in_turn_and_the_best_of_each_counts(monkeypatch):
    rates = iter([1.0, 5.0, 3.0, 4.0, 2.0, 6.0])
    monkeypatch.setattr(trial, "training_speed", lambda *given, **named: next(rates))
    exact, half = Way("32-true"), Way("bf16-mixed")
    assert Trials(Settings("photos"), SIMCLR)(SMALL, 3, [exact, half]) == {exact: 3.0, half: 6.0}


def test_a_compiler_may_fail_with_any_error(monkeypatch):
    def failing(*given, compiled, **named):
        raise AssertionError("what a compiler may raise")

    monkeypatch.setattr(trial, "training_speed", failing)
    trials = Trials(Settings("photos"), SIMCLR)
    assert trials(SMALL, 3, [Way("32-true", compiled=True), Way("32-true")]) is None
    with pytest.raises(AssertionError):
        trials(SMALL, 3, [Way("32-true")])


def test_it_trains_in_either_precision_and_logs_nothing(log):
    for precision in ("32-true", "bf16-mixed"):
        rate = training_speed(
            Settings("photos"),
            SIMCLR,
            plan("strong", 16, 3),
            ("tiny", 16, 16),
            3,
            precision=precision,
        )
        assert 1 < rate < 1e7
    assert not log.records
