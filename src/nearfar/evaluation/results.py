"""The verdict on a table of results: its best rows, and one sentence on whether to keep the encoder."""

from __future__ import annotations

from collections.abc import Sequence

Results = dict[str, dict[str, float]]

PROTOCOLS = {
    "knn": "kNN",
    "linear": "linear probe",
    "linear_sgd": "linear probe by SGD",
    "transfer": "transfer",
    "transfer_sgd": "transfer by SGD",
    "low_shot_all": "SVMs on all labels",
    "finetune": "fine-tuning",
    "one_label": "1 label per class",
    "five_labels": "5 labels per class",
}
ENCODERS = {
    "raw_pixels": "raw pixels",
    "colour_histogram": "a colour histogram",
    "hog": "HOG",
    "untrained": "the untrained encoder",
    "starting_weights": "the starting weights",
    "trained": "the trained encoder",
}
"""The rows of a table of results, and their names in a sentence."""
COLOURS = " Colours tell these classes apart: try --keep-colour 1, whose views change none (docs/views.md)."


def accuracies(results: Results) -> list[str]:
    """List the columns of a table of results: its accuracies, without their deviations."""
    return [key for key in results["trained"] if not key.endswith("_std")]


def best_rows(results: Results, column: str) -> list[str]:
    """List the rows with the largest accuracy of a column; those that agree in three digits share the place."""
    shown = {
        row: round(numbers[column], 3) for row, numbers in results.items() if column in numbers
    }
    return [row for row, accuracy in shown.items() if accuracy == max(shown.values())]


def sentence(results: Results) -> str:
    """Say whether to keep the trained encoder: whether it beats the other rows in the first column.

    Columns that disagree with the first are named. A tie counts against the encoder. Where a colour histogram wins in
    some column, a second sentence says what to try. Empty without other rows.
    """
    rows = [numbers for row, numbers in results.items() if row != "trained"]
    columns = [
        column for column in accuracies(results) if any(column in numbers for numbers in rows)
    ]
    if not columns:
        return ""
    first = columns[0]
    others = {
        row: numbers for row, numbers in results.items() if row != "trained" and first in numbers
    }
    won = [column for column in columns if best_rows(results, column) == ["trained"]]
    lost = [column for column in columns if column not in won]
    advice = (
        COLOURS if any("colour_histogram" in best_rows(results, column) for column in lost) else ""
    )
    if first in won:
        where = "every column" if won[1:] and not lost else _listed(PROTOCOLS, won)
        exceptions = f", but not in {_listed(PROTOCOLS, lost)}" if lost else ""
        return (
            f"The encoder beats {_listed(ENCODERS, list(others))} in {where}{exceptions}.{advice}"
        )
    rival = max(others, key=lambda row: others[row][first])
    theirs, own = others[rival][first], results["trained"][first]
    if won:
        verdict = f"keep this encoder for {_listed(PROTOCOLS, won)} only"
    elif rival == "starting_weights":
        verdict = "keep the weights that you started from"
    else:
        verdict = "do not keep this encoder"
    verb = "do" if rival.endswith("s") else "does"
    better = "as well" if "trained" in best_rows(results, first) else "better"
    where = f"{_listed(PROTOCOLS, [first])} ({theirs:.3f} against {own:.3f})"
    return f"{capital(ENCODERS[rival])} {verb} {better} in {where}: {verdict}.{advice}"


def capital(words: str) -> str:
    """Begin with a capital letter, and leave the others as they are."""
    return words[:1].upper() + words[1:]


def _listed(names: dict[str, str], keys: Sequence[str]) -> str:
    words = [names.get(key, key.replace("_", " ")) for key in keys]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
