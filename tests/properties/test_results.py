"""Results of several data sets in one file: none takes a number of another."""

import json
import math

from hypothesis import example, given
from hypothesis import strategies as st

from nearfar.evaluation.results import (
    ENCODERS,
    MeasuredOn,
    Measurement,
    added,
    column_of,
    lead,
    outcome,
    sentence,
)

COLUMNS = ("knn", "linear", "one_label")
ROWS = ("raw_pixels", "hog", "trained")
NUMBERS = st.floats(0, 1)
OPTIONS = st.sampled_from(["", "k 20", "k 5"])


def measured_on(data, seed):
    sizes = {"train_images": 9, "test_images": 3, "classes": 2, "largest": 0.5}
    return MeasuredOn(data, "the test split", seed=seed, images=data, encoder="e", **sizes)


@st.composite
def measurements(draw):
    """A measurement of some columns, with deviations, on one of several sets by one of two seeds."""
    columns = draw(st.sets(st.sampled_from(COLUMNS), min_size=1))
    keys = [key for column in sorted(columns) for key in (column, f"{column}_std")]
    row = st.fixed_dictionaries({key: NUMBERS for key in keys})
    rows = {name: draw(row) for name in ROWS if name == "trained" or draw(st.booleans())}
    options = {column: draw(OPTIONS) for column in sorted(columns)}
    on = measured_on(draw(st.sampled_from("abc")), draw(st.integers(0, 1)))
    return Measurement(on, rows, options)


def expected_of(measured):
    """Return rows and options after all measurements on one set, number by number."""
    numbers, options = {}, {}
    for each in measured:
        for column, new in each.how.items():
            if options.get(column, new) != new:  # numbers by other options are gone
                numbers = {key: x for key, x in numbers.items() if column_of(key[1]) != column}
            options[column] = new
        numbers |= {(row, key): x for row, of_row in each.items() for key, x in of_row.items()}
    return numbers, options


@given(st.lists(measurements(), min_size=1, max_size=6))
def test_each_set_keeps_its_own_numbers_and_the_last_options(sequence):
    kept = []
    for measured in sequence:
        kept = added(kept, measured)
        assert kept[-1].on == measured.on
    places = [(each.on.data, each.on.seed) for each in kept]
    assert len(set(places)) == len(places)
    assert set(places) == {(each.on.data, each.on.seed) for each in sequence}
    for each in kept:
        numbers, options = expected_of([other for other in sequence if other.on == each.on])
        assert each.how == options
        assert {(row, key): x for row in each for key, x in each[row].items()} == numbers
        assert list(each) == [row for row in ENCODERS if row in each]
        again = Measurement.from_json(json.loads(json.dumps(each.to_json())))
        assert (again.on, again.rows, again.how) == (each.on, each.rows, each.how)


def compared(ours, theirs, images):
    """A measurement of a trained encoder beside HOG."""
    on = MeasuredOn("a", "b", 9, images, 2, 0.5, seed=0, images="c", encoder="d")
    return Measurement(on, {"hog": {"knn": theirs}, "trained": {"knn": ours}})


@given(NUMBERS, NUMBERS, st.integers(1, 10**6))
@example(0.5004, 0.4996, 10**12)
@example(0.5006, 0.4994, 10**12)
@example(0.6, 0.4, 10**12)
@example(0.4, 0.6, 10**12)
@example(0.9, 0.1, 1)
@example(0.9, 0.1, 4)
def test_an_encoder_is_better_or_worse_by_two_standard_errors(ours, theirs, images):
    measured = compared(ours, theirs, images)
    error = math.sqrt((ours * (1 - ours) + theirs * (1 - theirs)) / images)
    clear = abs(ours - theirs) > 2 * error and round(ours, 3) != round(theirs, 3)
    sign = (1 if ours > theirs else -1) if clear else 0
    assert lead(measured, "hog", "knn") == sign
    assert lead(compared(theirs, ours, images), "hog", "knn") == -sign
    verdict = outcome(measured)
    assert verdict.state == {1: "better", 0: "no better", -1: "worse"}[sign]
    assert verdict.badge.startswith({1: "Better", 0: "No better", -1: "Worse"}[sign])
    assert "HOG" in verdict.words and sentence(measured) == verdict.words
