import pytest

from nearfar.evaluation.results import (
    MeasuredOn,
    Measurement,
    accuracies,
    best_rows,
    gray_words,
    outcome,
    sentence,
)

ON = dict(
    data="photos",
    test="the test split",
    train_images=4000,
    test_images=1000,
    classes=4,
    largest=0.25,
    seed=0,
    images="i",
    encoder="e",
)


def measured(trained, on=None, **others):
    """Rows of kNN and linear accuracy on 1000 images."""
    rows = {
        row: dict(zip(("knn", "linear"), pair, strict=True))
        for row, pair in (others | {"trained": trained}).items()
    }
    return Measurement(MeasuredOn(**ON | (on or {})), rows)


BASELINES = {
    "raw_pixels": (0.30, 0.35),
    "colour_histogram": (0.47, 0.38),
    "hog": (0.40, 0.45),
    "untrained": (0.33, 0.36),
}
ALL = "raw pixels, a colour histogram, HOG and the untrained encoder"
COLOURS = "pretrain with `keep_colour=1`, whose views change no colours (docs/views.md)."
LONGER = "pretrain longer, with more `minutes`."


@pytest.mark.parametrize(
    ("trained", "expected"),
    [
        ((0.6, 0.7), f"The encoder beats {ALL} in every column."),
        ((0.6, 0.46), f"The encoder beats {ALL} in kNN, but not clearly in linear probe."),
        (
            (0.33, 0.4),
            "A colour histogram and HOG do better in kNN (0.470, 0.400 against "
            "0.330): do not keep this "
            f"encoder; {COLOURS}",
        ),
        (
            (0.33, 0.6),
            "A colour histogram and HOG do better in kNN (0.470, 0.400 against "
            "0.330): keep this encoder for "
            "linear probe only.",
        ),
        (
            (0.463, 0.4),
            "A colour histogram does about as well in kNN (0.470 against "
            "0.463): do not keep this encoder; "
            f"{LONGER}",
        ),
        (
            (0.49, 0.4),
            "A colour histogram does about as well in kNN (0.470 against 0.490): "
            "do not keep this encoder; "
            f"{LONGER}",
        ),
    ],
)
def test_one_sentence_names_all_that_win_and_one_thing_to_do(trained, expected):
    assert sentence(measured(trained, **BASELINES)) == expected


@pytest.mark.parametrize(
    ("trained", "state", "badge"),
    [
        ((0.6, 0.7), "better", "Better than the baselines"),
        ((0.6, 0.46), "partly better", "Better in kNN"),
        ((0.33, 0.6), "partly better", "Better in linear probe only"),
        ((0.33, 0.4), "worse", "Worse than a colour histogram"),
        ((0.463, 0.4), "no better", "No better than a colour histogram"),
    ],
)
def test_the_outcome_has_a_state_and_a_badge(trained, state, badge):
    verdict = outcome(measured(trained, **BASELINES))
    assert (verdict.state, verdict.badge) == (state, badge)


def test_the_accuracies_of_a_table_are_its_columns_but_for_deviations():
    own = {"knn": 0.5, "knn_std": 0.1, "knn_balanced": 0.4, "linear": 0.6, "linear_balanced": 0.3}
    results = {"hog": {"knn": 0.3}, "trained": own}
    assert accuracies(results) == ["knn", "linear"]
    assert accuracies(results, balanced=True) == ["knn_balanced", "linear_balanced"]


@pytest.mark.parametrize("on", [{"channels": 1}, {"keep_colour": 1.0}, {"gray": True}])
def test_colours_are_only_advised_where_there_are_some_to_keep(on):
    text = sentence(measured((0.33, 0.4), on, **BASELINES))
    assert "A colour histogram and HOG do better" in text and "--keep-colour" not in text


def test_gray_images_in_three_channels_have_one_line():
    assert gray_words(True, 224).endswith("pretrain with `channels=1` `views='scans'`")
    assert gray_words(True, 32).endswith("with `channels=1`")
    assert gray_words(False, 224) == ""


def test_a_frozen_pretrained_net_that_is_better_is_named_and_taken():
    text = sentence(measured((0.5, 0.5), hog=(0.4, 0.4), pretrained_frozen=(0.8, 0.8)))
    assert text == (
        "The frozen pretrained net does better in kNN (0.800 against 0.500): take that net as it "
        "is, by the data in the place of the run and `encoder='pretrained'`."
    )
    beaten = sentence(measured((0.9, 0.9), hog=(0.4, 0.4), pretrained_frozen=(0.8, 0.8)))
    assert beaten == "The encoder beats HOG and the frozen pretrained net in every column."


def test_without_a_run_the_features_at_hand_are_judged():
    def at_hand(knn):
        rows = {"hog": {"knn": 0.4}, "at_hand": {"knn": knn}}
        return sentence(Measurement(MeasuredOn(**ON), rows))

    assert at_hand(0.6) == "The features at hand beat HOG in kNN."
    assert at_hand(0.3) == (
        "HOG does better in kNN (0.400 against 0.300): nearfar pretrain learns features of these "
        "images."
    )


def test_starting_weights_that_were_better_are_kept():
    text = sentence(measured((0.5, 0.5), hog=(0.4, 0.4), starting_weights=(0.61, 0.6)))
    assert text == (
        "The starting weights do better in kNN (0.610 against 0.500): keep the weights "
        "that you started from."
    )


def test_more_images_make_a_small_lead_clear():
    table = measured((0.5, 0.5), hog=(0.48, 0.48))
    assert outcome(table).state == "no better"
    table = measured((0.5, 0.5), {"test_images": 100_000}, hog=(0.48, 0.48))
    assert outcome(table).state == "better"


def test_a_column_is_compared_where_it_was_measured():
    """Fine-tuning has rows for encoders alone; a column of the trained encoder alone is compared
    with nothing.
    """
    rows = {"untrained": {"finetune": 0.8}, "trained": {"transfer": 0.2, "finetune": 0.9}}
    tuned = Measurement(MeasuredOn(**ON), rows)
    assert sentence(tuned) == "The encoder beats the untrained encoder in fine-tuning."
    assert sentence(measured((0.5, 0.5))) == ""


def test_best_rows_share_their_place_where_the_digits_that_are_shown_agree():
    table = measured((0.5, 0.5), hog=(0.5004, 0.4))
    assert best_rows(table, "knn") == ["hog", "trained"]
    assert best_rows(table, "linear") == ["trained"]


def test_a_measurement_that_lacks_a_word_of_what_it_was_measured_on_is_refused():
    on = MeasuredOn(**ON)
    whole = Measurement(on, {"trained": {"knn": 0.5}}).to_json()
    assert Measurement.from_json(whole).on == on
    for name in whole["on"]:
        part = whole | {"on": {key: value for key, value in whole["on"].items() if key != name}}
        with pytest.raises(ValueError, match=name):
            Measurement.from_json(part)
