import pytest

from nearfar.evaluation.results import best_rows, sentence


def results(trained, **others):
    """Rows of kNN and linear accuracy."""
    return {
        row: dict(zip(("knn", "linear"), pair, strict=True))
        for row, pair in (others | {"trained": trained}).items()
    }


BASELINES = {
    "raw_pixels": (0.30, 0.35),
    "colour_histogram": (0.41, 0.38),
    "hog": (0.40, 0.45),
    "untrained": (0.33, 0.36),
}


ALL = "raw pixels, a colour histogram, HOG and the untrained encoder"
TRY = " Colours tell these classes apart: try --keep-colour 1, whose views change none (docs/views.md)."


@pytest.mark.parametrize(
    ("trained", "said"),
    [
        ((0.6, 0.7), f"The encoder beats {ALL} in every column."),
        ((0.6, 0.44), f"The encoder beats {ALL} in kNN, but not in linear probe."),
        ((0.35, 0.4), "A colour histogram does better in kNN (0.410 against 0.350): do not keep this encoder." + TRY),
        ((0.35, 0.5), "A colour histogram does better in kNN (0.410 against 0.350): keep this encoder for linear probe "
                      "only." + TRY),
        ((0.4101, 0.4), "A colour histogram does as well in kNN (0.410 against 0.410): do not keep this encoder."
                         + TRY),
    ],
)  # fmt: skip
def test_one_sentence_says_whether_to_keep_the_encoder(trained, said):
    assert sentence(results(trained, **BASELINES)) == said


def test_starting_weights_that_were_better_are_kept():
    said = sentence(results((0.5, 0.5), hog=(0.4, 0.4), starting_weights=(0.61, 0.6)))
    assert (
        said
        == "The starting weights do better in kNN (0.610 against 0.500): keep the weights that you started from."
    )


def test_a_column_is_compared_where_it_was_measured():
    """Fine-tuning has rows for encoders alone; a column of the trained encoder alone is compared with nothing."""
    table = results((0.6, 0.7), hog=(0.4, 0.4), untrained=(0.3, 0.3))
    tuned = {"untrained": {"finetune": 0.8}, "trained": {"transfer": 0.2, "finetune": 0.9}}
    assert sentence(tuned) == "The encoder beats the untrained encoder in fine-tuning."
    mixed = {row: numbers | tuned.get(row, {}) for row, numbers in table.items()}
    assert sentence(mixed) == "The encoder beats HOG and the untrained encoder in every column."
    assert sentence(results((0.5, 0.5))) == ""


def test_best_rows_share_their_place_where_the_digits_that_are_shown_agree():
    table = results((0.5, 0.5), hog=(0.5004, 0.4))
    assert best_rows(table, "knn") == ["hog", "trained"] and best_rows(table, "linear") == [
        "trained"
    ]
