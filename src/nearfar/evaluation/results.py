"""Measurements: results with what they were measured on, and one sentence on whether to keep the
encoder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from nearfar.messages import listed

Rows = dict[str, dict[str, float]]

PROTOCOLS = {
    "knn": "kNN",
    "linear": "linear probe",
    "linear_sgd": "linear probe by SGD",
    "finetune": "fine-tuning",
    "one_label": "1 label per class",
    "five_labels": "5 labels per class",
}
ENCODERS = {
    "largest_class": "the largest class",
    "raw_pixels": "raw pixels",
    "colour_histogram": "a colour histogram",
    "hog": "HOG",
    "pretrained_frozen": "the frozen pretrained net",
    "untrained": "the untrained encoder",
    "starting_weights": "the starting weights",
    "at_hand": "the features at hand",
    "given": "the given vectors",
    "trained_alone": "the trained net alone",
    "trained": "the trained encoder",
}
"""The rows of a table of results, and their names in a sentence."""
ALONE = "trained_alone"  # a part of the encoder that is judged, which it is not judged by
JUDGED = (
    "trained",
    "at_hand",
    "given",
)  # the row that is judged by the others: the first that is there
BALANCED, DEVIATION, TOP5 = "_balanced", "_std", "_top5"
"""Ends of the keys of balanced accuracies, of deviations over trials, and of top-5 accuracies."""
TRIALS = 20  # of the protocols with few labels
CLEAR = 2.0  # standard errors beyond which two accuracies differ
SMALL = 48  # pixels: grayscale images up to here have views of their own

COLOURS = "pretrain with `keep_colour=1`, whose views change no colours (docs/views.md)"
LONGER = "pretrain longer, with more `minutes`"
START = "keep the weights that you started from"
AS_IT_IS = "take that net as it is, by the data in the place of the run and `encoder='pretrained'`"
AS_A_NET = "take that net, by the images in the place of the vectors and `encoder='pretrained'`"
PRETRAIN = "nearfar pretrain learns features of these images"


@dataclass(frozen=True)
class MeasuredOn:
    """Data and encoder of a measurement: numbers are only compared with numbers of the same data
    and encoder.

    data: as the user named it. test: which images were tested on, in words. train_images,
    test_images: how many. classes, largest: how many classes there are, and the share of the test
    images in the one that most training images have. even_images: test images in equal classes that
    would give balanced accuracies of the same standard error; None where the classes are of equal
    size. limit: of the training images. seed: of all that was drawn. images: digest of both sets
    and their labels. encoder: digest of the weights. epoch: how long it had been trained, where
    known. image_size, channels: as the encoder sees the images. gray: whether their three channels
    are the same. keep_colour: as the encoder was trained.
    """

    data: str
    test: str
    train_images: int
    test_images: int
    classes: int
    largest: float
    seed: int
    images: str
    encoder: str
    even_images: float | None = None
    limit: int | None = None
    epoch: float | None = None
    image_size: int = 0
    channels: int = 3
    gray: bool = False
    keep_colour: float = 0.0

    def same(self, other: MeasuredOn) -> bool:
        """Return whether numbers of both may stand in one row: whatever the data was called, it is
        the same.
        """
        return replace(self, data=other.data, epoch=other.epoch) == other

    def words(self) -> str:
        """Return the data and the numbers of images in one line."""
        sizes = f"{self.train_images} images to fit, {self.test_images} to test ({self.test})"
        most = f"{self.classes} classes, the largest with {self.largest:.1%} of the test images"
        return f"{self.data}: {sizes}, {most if self.classes else 'several labels an image'}"


@dataclass(frozen=True, eq=False)
class Measurement(Mapping[str, dict[str, float]]):
    """Results 0..1 by row and column, as a mapping of rows, with what they were measured on.

    how: the options of each column's protocol, in words; "" where there are none.

    >>> measured = nearfar.evaluate("runs/photos", protocol=["knn"])
    >>> measured["trained"].keys(), measured.on.test_images
    (dict_keys(['knn']), 4)
    """

    on: MeasuredOn
    rows: Rows
    how: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, row: str) -> dict[str, float]:
        return self.rows[row]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def summary(self) -> dict[str, Any]:
        """Return it in plain values: "on", "results" by row, "how" by column, and the "sentence" on
        the encoder.
        """
        return self.to_json() | {"sentence": sentence(self)}

    def to_json(self) -> dict[str, Any]:
        """Return it as results.json holds it."""
        return {"on": asdict(self.on), "results": self.rows, "how": self.how}

    @classmethod
    def from_json(cls, value: Any) -> Measurement:
        """Return what `to_json` gave; ValueError for anything else."""
        if not isinstance(value, dict) or not {"on", "results", "how"} <= value.keys():
            raise ValueError("a measurement has no on, results or how")
        return cls(_measured_on(value["on"]), _rows(value["results"]), _words(value["how"]))

    def joined(self, new: Measurement) -> Measurement:
        """Return both in one: `new` replaces its columns, as a whole where its protocol has other
        options now.
        """
        changed = {
            column
            for column, options in new.how.items()
            if self.how.get(column, options) != options
        }
        rows: Rows = {}
        for row in ENCODERS:
            before = {
                key: number
                for key, number in self.rows.get(row, {}).items()
                if column_of(key) not in changed
            }
            if numbers := before | new.rows.get(row, {}):
                rows[row] = numbers
        return Measurement(new.on, rows, self.how | new.how)


def added(measured: Sequence[Measurement], new: Measurement) -> list[Measurement]:
    """Return all measurements with a new one as the last; one on the same data and encoder takes it
    in.
    """
    same = [measurement for measurement in measured if measurement.on.same(new.on)]
    others = [measurement for measurement in measured if not measurement.on.same(new.on)]
    return [*others, same[0].joined(new) if same else new]


def column_of(key: str) -> str:
    """Return the column that a number belongs to: a deviation or a top-5 accuracy has that of its
    accuracy.
    """
    for end in (DEVIATION, TOP5, BALANCED):
        key = key.removesuffix(end)
    return key


def judged(results: Mapping[str, Any]) -> str:
    """Return the row that is judged by the others: of a trained encoder, of features at hand, or of
    given vectors.
    """
    return next(row for row in JUDGED if row in results)


def accuracies(results: Mapping[str, dict[str, float]], *, balanced: bool = False) -> list[str]:
    """List the columns of a table of results: its accuracies, without their deviations; or its
    balanced accuracies.
    """
    return [
        key
        for key in results[judged(results)]
        if not key.endswith(DEVIATION) and key.endswith(BALANCED) == balanced
    ]


def best_rows(results: Mapping[str, dict[str, float]], column: str) -> list[str]:
    """List the rows with the largest accuracy of a column; those that agree in three digits share
    the place.
    """
    shown = {
        row: round(numbers[column], 3) for row, numbers in results.items() if column in numbers
    }
    return [row for row, accuracy in shown.items() if accuracy == max(shown.values())]


def chance(measured: Measurement, row: str, column: str) -> float:
    """Return the standard error of an accuracy: binomial, of the test images; and of the trials
    with few labels.
    """
    numbers, on = measured[row], measured.on
    count = (on.even_images or on.test_images) if column.endswith(BALANCED) else on.test_images
    accuracy = numbers[column]
    variance = max(0.0, accuracy * (1 - accuracy)) / max(count, 1)
    return math.sqrt(variance + numbers.get(f"{column}{DEVIATION}", 0.0) ** 2 / TRIALS)


def lead(measured: Measurement, row: str, column: str) -> Literal[-1, 0, 1]:
    """Return whether the encoder that is judged is clearly better (1) or worse (-1) than another
    row, or neither (0).

    Clearly: by more than two standard errors of the difference. All rows are tested on the same
    images, which makes the true error smaller. What agrees in three digits is never clear.
    """
    own = judged(measured)
    ours, theirs = measured[own][column], measured[row][column]
    errors = [chance(measured, name, column) for name in (own, row)]
    if round(ours, 3) == round(theirs, 3) or abs(ours - theirs) <= CLEAR * math.hypot(*errors):
        return 0
    return 1 if ours > theirs else -1


@dataclass(frozen=True)
class Outcome:
    """Verdict of a measurement on an encoder: whether it is better than what costs nothing, in a
    few words and whole.
    """

    state: Literal["better", "partly better", "no better", "worse"]
    badge: str
    words: str


def outcome(measured: Measurement) -> Outcome | None:
    """Judge the encoder by the other rows, which cost nothing; None where there are none to compare
    with.

    The first column decides; others that disagree are named. Words name all rows that are as good
    or better, and one thing to do.
    """
    own = judged(measured)
    columns = [
        column
        for column in measured[own]
        if not column.endswith(DEVIATION) and _rivals(measured, column)
    ]
    if not columns:
        return None
    first = columns[0]
    rivals = _rivals(measured, first)
    won = [
        column
        for column in columns
        if all(lead(measured, row, column) > 0 for row in _rivals(measured, column))
    ]
    others = [column for column in columns if column not in won]
    if first in won:
        where = "every column" if won[1:] and not others else _columns(won)
        exceptions = f", but not clearly in {_columns(others)}" if others else ""
        beats = "The encoder beats" if own == "trained" else f"{capital(ENCODERS[own])} beat"
        words = f"{beats} {_encoders(rivals)} in {where}{exceptions}."
        if others:
            return Outcome("partly better", f"Better in {_columns(won)}", words)
        return Outcome("better", "Better than the baselines", words)
    worse = [row for row in rivals if lead(measured, row, first) < 0]
    level = [row for row in rivals if lead(measured, row, first) == 0]
    named = _ranked(measured, worse or level, first)
    numbers = ", ".join(f"{measured[row][first]:.3f}" for row in named)
    where = f"{_columns([first])} ({numbers} against {measured[own][first]:.3f})"
    plural = len(named) > 1 or ENCODERS[named[0]].endswith("s")
    verb = ("do" if plural else "does") + (" better" if worse else " about as well")
    if won:
        advice = f"keep this encoder for {_columns(won)} only"
    elif own == "given" and named[0] == "pretrained_frozen":
        advice = AS_A_NET
    elif own != "trained":
        advice = PRETRAIN
    elif "starting_weights" in named:
        advice = START
    elif named[0] == "pretrained_frozen":
        advice = AS_IT_IS
    else:
        advice = f"do not keep this encoder; {_to_do(measured, named, first)}"
    words = f"{capital(_encoders(named))} {verb} in {where}: {advice}."
    if won:
        return Outcome("partly better", f"Better in {_columns(won)} only", words)
    badge = f"{'Worse' if worse else 'No better'} than {_encoders(named[:1])}"
    return Outcome("worse" if worse else "no better", badge, words)


def sentence(measured: Measurement) -> str:
    """Say whether to keep the trained encoder, as `outcome` does; empty without other rows."""
    judgement = outcome(measured)
    return judgement.words if judgement else ""


def gray_words(gray: bool, image_size: int) -> str:
    """Say how to pretrain on gray images that are stored as red, green and blue; empty for all
    others.
    """
    return f"the images are gray, stored in three channels: {_in_gray(image_size)}" if gray else ""


def _in_gray(image_size: int) -> str:
    views = "" if image_size <= SMALL else " `views='scans'`"
    return f"pretrain with `channels=1`{views}"


def _to_do(measured: Measurement, winners: Sequence[str], column: str) -> str:
    """One thing to do about the rows that win."""
    on = measured.on
    if on.gray:
        return _in_gray(on.image_size)
    histogram = "colour_histogram" in winners and lead(measured, "colour_histogram", column) < 0
    return COLOURS if histogram and on.channels == 3 and on.keep_colour < 1 else LONGER


def _rivals(measured: Measurement, column: str) -> list[str]:
    own = judged(measured)
    return [row for row in measured if row not in (own, ALONE) and column in measured[row]]


def _ranked(measured: Measurement, rows: Sequence[str], column: str) -> list[str]:
    return sorted(rows, key=lambda row: -measured[row][column])


def capital(words: str) -> str:
    """Begin with a capital letter, and leave the others as they are."""
    return words[:1].upper() + words[1:]


def column_name(key: str) -> str:
    """Return the name of a column in a sentence or a table."""
    name = PROTOCOLS.get(key.removesuffix(BALANCED), key.removesuffix(BALANCED).replace("_", " "))
    return f"{name} by balanced accuracy" if key.endswith(BALANCED) else name


def _columns(keys: Sequence[str]) -> str:
    return listed([column_name(key) for key in keys])


def _encoders(rows: Sequence[str]) -> str:
    return listed([ENCODERS[row] for row in rows])


def _measured_on(value: Any) -> MeasuredOn:
    kinds: dict[str, tuple[type, ...]] = {
        "str": (str,),
        "int": (int,),
        "float": (int, float),
        "bool": (bool,),
        "float | None": (int, float, type(None)),
        "int | None": (int, type(None)),
    }
    if not isinstance(value, dict):
        raise ValueError("it is not said what numbers were measured on")
    for entry in fields(MeasuredOn):
        if entry.name not in value:
            raise ValueError(f"what numbers were measured on has no {entry.name}")
        given = value[entry.name]
        if not isinstance(given, kinds[str(entry.type)]) or (
            isinstance(given, bool) and entry.type != "bool"
        ):
            raise ValueError(
                f"{entry.name} of what numbers were measured on is {str(given)[:20]!r}"
            )
    return MeasuredOn(**{field.name: value[field.name] for field in fields(MeasuredOn)})


def _rows(value: Any) -> Rows:
    if not isinstance(value, dict) or not value.keys() <= ENCODERS.keys() or "trained" not in value:
        raise ValueError("the rows of its results are not those that evaluate writes")
    for row in value.values():
        if not isinstance(row, dict) or not all(_is_number(number) for number in row.values()):
            raise ValueError("a row of its results holds something else than numbers")
    return value


def _words(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("the options of its protocols are no words")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
