"""The model of a run is chosen by numbers alone: those of the data, and those of a measurement."""

import pytest

from nearfar.training.facts import Facts
from nearfar.training.model_size import (
    LEAST_EPOCHS,
    MODEL_SIZES,
    Candidate,
    Way,
    choose_model,
    model_candidates,
)
from nearfar.training.settings import Settings

FACTS = Facts(
    images=2000,
    side=500,
    channels=3,
    device="cpu",
    place="2 threads",
    half="bf16-mixed",
    processes=1,
    seconds=60.0,
    weights=False,
)


class Machine:
    """Images per second by (encoder, image size), with factors for bfloat16 and torch.compile; what
    was tried is listed.
    """

    def __init__(self, speeds, half=1.0, compiled=1.0, trials=1000):
        self.speeds, self.half, self.compiled, self.trials = dict(speeds), half, compiled, trials
        self.tried = []

    def __call__(self, candidate, channels, ways):
        if len(self.tried) >= self.trials:
            return None
        self.tried.append((candidate.encoder, candidate.image_size, *ways))
        rate = self.speeds[candidate.encoder, candidate.image_size]
        return {
            way: rate
            * (self.half if way.precision == "bf16-mixed" else 1.0)
            * (self.compiled if way.compiled else 1.0)
            for way in ways
        }


def facts(**changes):
    return Facts(**vars(FACTS) | changes)


EXACT = Settings("photos", precision="32-true", compile=False)
SPEEDS = dict(zip(MODEL_SIZES, (800.0, 400.0, 200.0, 50.0, 30.0, 5.0), strict=True))


@pytest.mark.parametrize(
    ("rate", "largest"), [(1e9, 0), (801, 0), (799, 0), (399, 1), (199, 2), (49, 3), (29, 4)]
)
def test_the_largest_that_leaves_epochs_enough(rate, largest):
    """The time is what a model of that rate needs; the fastest is taken even where it does not
    fit.
    """
    machine = Machine(SPEEDS)
    chosen = choose_model(EXACT, facts(seconds=LEAST_EPOCHS * 2000 / rate), machine)
    encoder, size = MODEL_SIZES[largest]
    assert (chosen.encoder, chosen.image_size, chosen.crop_size) == (encoder, size, size * 2 // 3)
    assert chosen.rate == SPEEDS[encoder, size]
    tried = [(encoder, size) for encoder, size, _ in machine.tried]
    assert tried == list(MODEL_SIZES[: 1 if rate > 800 else largest + 2])  # none behind a misfit


def test_nothing_is_tried_when_the_time_for_trials_is_over():
    machine = Machine(SPEEDS, trials=2)
    assert choose_model(EXACT, facts(seconds=1e9), machine).image_size == MODEL_SIZES[1][1]


def test_a_limit_leaves_time_for_a_larger_model():
    seconds = LEAST_EPOCHS * 2000 / 800
    limited = Settings("photos", precision="32-true", compile=False, limit=250)
    assert choose_model(EXACT, facts(seconds=seconds), Machine(SPEEDS)).encoder == "small"
    assert choose_model(limited, facts(seconds=seconds), Machine(SPEEDS)).image_size == 192


@pytest.mark.parametrize(
    ("images", "seconds", "encoder"),
    [(50_000, 490.0, "small"), (50_000, 510.0, "medium"), (1000, 260.0, "medium")],
)
def test_the_medium_net_where_a_run_sees_200_000_images_of_32_pixels(images, seconds, encoder):
    """Of a thousand images, 100 epochs are enough."""
    machine = Machine({("small", 32): 900.0, ("medium", 32): 400.0})
    assert (
        choose_model(EXACT, facts(images=images, side=32, seconds=seconds), machine).encoder
        == encoder
    )


@pytest.mark.parametrize(
    ("given", "side", "expected"),
    [
        (dict(encoder="vit", image_size=64), 500, [("vit", 64, 64)]),
        (dict(image_size=64), 500, [("small", 64, 64)]),
        (dict(), 8, [("small", 8, 8)]),
        (dict(), 32, [("small", 32, 24), ("medium", 32, 24)]),
        (dict(epochs=5.0, crop_size=32), 32, [("small", 32, 32)]),
        (dict(recipe="cifar", encoder="resnet18"), 32, [("resnet18", 32, 32)]),
        (dict(epochs=5.0), 500, [("small", 96, 64)]),
        (dict(epochs=5.0, crop_size=300), 500, [("small", 300, 300)]),
        (dict(epochs=5.0, crop_size=300), 200, [("small", 200, 300)]),
        (dict(epochs=5.0, crop_size=300, image_size=64), 500, [("small", 64, 300)]),
    ],
)
def test_candidates_agree_with_what_is_given(given, side, expected):
    assert model_candidates(Settings("photos", **given), side) == expected


def test_candidates_are_never_larger_than_the_images():
    sizes = {size for _, size, _ in model_candidates(Settings("photos", encoder="vit"), 500)}
    assert sizes == {96, 144, 192, 240}
    assert {size for _, size, _ in model_candidates(Settings("photos"), 150)} == {96, 144}


def test_nothing_is_measured_where_all_is_given():
    given = Settings("photos", encoder="vit", image_size=64, epochs=5.0, precision="32-true")
    machine = Machine({})
    assert choose_model(given, FACTS, machine).rate is None and machine.tried == []


@pytest.mark.parametrize(("gain", "precision"), [(2.0, "bf16-mixed"), (1.05, "32-true")])
def test_the_faster_precision_by_the_first_candidate(gain, precision):
    machine = Machine({MODEL_SIZES[0]: 4000.0, MODEL_SIZES[1]: 50.0}, half=gain)
    chosen = choose_model(Settings("photos"), FACTS, machine)
    assert chosen.precision == precision
    assert chosen.rate == 4000.0 * (gain if precision == "bf16-mixed" else 1.0)
    both = Way("32-true"), Way("bf16-mixed")
    assert [ways for _, _, *ways in machine.tried] == [[*both], [Way(precision)]]


def test_a_cpu_without_bfloat16_is_not_slowed_down_by_its_trial():
    """There it is emulated: the trial of the first net would leave no time to try a larger one."""
    machine = Machine({("small", 32): 900.0, ("medium", 32): 400.0})
    given = Settings("cifar", compile=False)
    known = facts(images=50_000, side=32, half=None, seconds=3600.0)
    chosen = choose_model(given, known, machine)
    assert (chosen.encoder, chosen.precision) == ("medium", "32-true")
    assert "no bfloat16" in chosen.reason
    assert machine.tried == [("small", 32, Way("32-true")), ("medium", 32, Way("32-true"))]


@pytest.mark.parametrize(
    ("gain", "seconds", "compiled"), [(1.2, 700.0, True), (1.03, 700.0, False), (1.2, 500.0, False)]
)
def test_torch_compiles_a_long_run_where_that_pays(gain, seconds, compiled):
    machine = Machine({MODEL_SIZES[0]: 100.0, MODEL_SIZES[1]: 1.0}, compiled=gain)
    chosen = choose_model(Settings("photos", precision="32-true"), facts(seconds=seconds), machine)
    assert chosen.compiled == compiled
    assert chosen.rate == pytest.approx(100.0 * (gain if compiled else 1.0))
    assert ("1.2 times as fast compiled" in chosen.reason) == compiled
    assert not choose_model(EXACT, facts(seconds=seconds), machine).compiled


def test_a_failing_compiler_leaves_the_run_as_it_is():
    def measure(candidate, channels, ways):
        return None if any(way.compiled for way in ways) else dict.fromkeys(ways, 100.0)

    chosen = choose_model(Settings("photos", precision="32-true"), facts(seconds=700.0), measure)
    assert not chosen.compiled and chosen.rate == 100.0


def test_where_float32_does_not_fit_half_precision_is_taken_for_that():
    def half_alone(candidate, channels, ways):
        return {way: 50.0 * (way.precision == "bf16-mixed") for way in ways}

    given = Settings("photos", compile=False)
    chosen = choose_model(given, FACTS, half_alone)
    reason = ", bf16-mixed as float32 does not fit into the memory"
    assert (chosen.precision, chosen.reason) == ("bf16-mixed", reason)
    nothing = choose_model(given, FACTS, lambda candidate, channels, ways: dict.fromkeys(ways, 0.0))
    assert nothing.rate == 0.0


@pytest.mark.parametrize(("device", "rate"), [("cpu", 100.0), ("cuda", 400.0)])
def test_gpus_add_up_and_processes_on_a_cpu_share_it(device, rate):
    machine = Machine({("small", 8): 100.0})
    given = Settings("photos", precision="32-true", compile=False)
    known = facts(side=8, processes=4, device=device)
    assert choose_model(given, known, machine, [Candidate("small", 8, 8)]).rate == rate
