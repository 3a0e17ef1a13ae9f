"""Splits of a source to which folders, files and rows belong, by words such as train, val2017 and
test_images.
"""

from __future__ import annotations

import functools
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from nearfar.data.column_names import SPLIT_NAMES, normalized_name
from nearfar.data.labels import NO_NUMBER
from nearfar.messages import say_once

_SPLITS = {
    "train": "train training",
    "validation": "val valid validation dev",
    "test": "test testing",
}
_SPLIT_WORDS = {word: split for split, words in _SPLITS.items() for word in words.split()}
_FILLING = {"data", "image", "images", "img", "imgs", "set", "split"}
_TRUTH = {
    **dict.fromkeys(("true", "1", "1.0", "yes"), True),
    **dict.fromkeys(("false", "0", "0.0", "no"), False),
}
_SHOWN = 3  # words of a column that names no splits
Named = TypeVar("Named")


def folder_splits(files: Sequence[str], source: object) -> dict[str, list[str]]:
    """Splits of an image folder: folders named for one, such as train/, val2017/ or test_images/,
    at any depth.

    {"": all} unless every file lies in one of them, or the training split and another are there:
    then all other files are in no split. {"": all} too where most folders beside those are named
    for something else: of Train, Test, Garden and Holiday, the first are pictures of trains. A line
    says so where a folder of test or validation images is read with the rest.
    """
    counts = Counter(os.path.dirname(name) for name in files)
    named = [
        (folder, _named_alone(part)) for folder in sorted(counts) for part in folder.split("/")
    ]
    split_of = {name: _split_and_others(os.path.dirname(name))[0] for name in files}
    return _divided(split_of, named, source, divided=_most_are_named(counts))


def _most_are_named(counts: Mapping[str, int]) -> bool:
    """Return whether of the folders beside those that are named for a split, most are, or at least
    most of their images.

    counts: images by folder.
    """
    images: Counter[str] = Counter()  # in and below each folder
    for folder, count in counts.items():
        parts = folder.split("/") if folder else []
        for depth in range(1, len(parts) + 1):
            images["/".join(parts[:depth])] += count
    names = {folder: _named_alone(folder.rpartition("/")[2]) is not None for folder in images}
    beside = {folder.rpartition("/")[0] for folder, is_named in names.items() if is_named}
    siblings = [folder for folder in images if folder.rpartition("/")[0] in beside]

    def weight(named: bool) -> tuple[int, int]:
        some = [folder for folder in siblings if names[folder] == named]
        return len(some), sum(images[folder] for folder in some)

    return weight(True) > weight(False)


def class_folders(name: str, split: str) -> tuple[str, ...]:
    """The folders that a file lies in, but for the one that is named for its split."""
    folder = name.rpartition("/")[0]
    return _split_and_others(folder)[1] if split else _every_folder(folder)


@functools.lru_cache(2**16)
def _every_folder(path: str) -> tuple[str, ...]:
    """The folders of a path."""
    return _in_one_form(path.split("/")) if path else ()


@functools.lru_cache(2**16)
def _split_and_others(folder: str) -> tuple[str | None, tuple[str, ...]]:
    """The split that the first folder of a path which is named for one stands for, and the other
    folders.
    """
    parts = folder.split("/") if folder else []
    for place, part in enumerate(parts):
        if split := _named_alone(part):
            return split, _in_one_form((*parts[:place], *parts[place + 1 :]))
    return None, _in_one_form(parts)


def _in_one_form(folders: Iterable[str]) -> tuple[str, ...]:
    """Names of folders with one form of accents, so that a class is one in all splits."""
    return tuple(unicodedata.normalize("NFC", folder) for folder in folders)


def shard_splits(files: Sequence[str], source: object) -> dict[str, list[str]]:
    """Splits of Parquet files or tars, by the last word of their name or folder that is one
    ("cats-train-000.parquet").

    {"": all} unless all files have one, or some are of the training split and some of another: then
    the others are in no split. A line says so where files of a test or validation split are read
    with the rest.
    """

    last_words = {name: _last_word(name) for name in files}
    return _divided(last_words, last_words.items(), source)


def split_columns(columns: Iterable[str]) -> list[str]:
    """The columns whose names say that they hold splits, the likeliest first: "split", "data set",
    "is_valid".
    """
    named = {column: normalized_name(column) for column in columns}
    usual = [column for known in SPLIT_NAMES for column, name in named.items() if name == known]
    return usual + [column for column, name in named.items() if _of_truth(name)]


def row_splits(column: str, values: Sequence[Any], source: object) -> dict[str, list[int]]:
    """Places of rows by the split that a column names, as for the names of shards; {} if it divides
    nothing.

    A column such as "is_train" holds truth values. A line says which column divides the rows,
    unless it is called "split"; and where a column of that name names no splits.
    """
    own, words = _of_truth(normalized_name(column)), [str(value).strip() for value in values]
    if own:
        other = "test" if own == "train" else "train"
        truths = [_TRUTH.get(word.lower()) for word in words]
        of_row = [None if truth is None else own if truth else other for truth in truths]
    else:
        of_row = [_last_word(word) for word in words]
    is_split = normalized_name(column) == "split"
    named = zip(words, of_row, strict=True) if is_split else ()
    rows_of = _divided(dict(enumerate(of_row)), named, source)
    if set(rows_of) == {""}:
        present = [word for word in dict.fromkeys(words) if word.lower() not in NO_NUMBER]
        if is_split and present and set(of_row) <= {"train", None}:
            shown = ", ".join(map(repr, present[:_SHOWN])) + ", ..." * (len(present) > _SHOWN)
            say_once(
                f"column 'split' of '{source}' holds {shown}, which name no splits: all rows "
                f"are read; such words are train, val and test"
            )
        return {}
    if not is_split:
        say_once(f"'{source}' is divided by its column '{column}'")
    return rows_of


def _of_truth(name: str) -> str | None:
    """The split whose rows a column of truth values marks, by its usual name, such as "istrain"."""
    return _SPLIT_WORDS.get(name.removeprefix("is")) if name.startswith("is") else None


def _last_word(name: str) -> str | None:
    """The split that the last word of a name or path stands for that stands for one."""
    words = (word for part in reversed(name.split("/")) for word in reversed(_words(part)))
    return next((_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS), None)


def _divided(
    split_of: Mapping[Named, str | None],
    named: Iterable[tuple[str, str | None]],
    source: object,
    divided: bool = True,
) -> dict[str, list[Named]]:
    """Names by split, at last under "" those in none of them; or all under "" if they are not
    divided.

    Then a line says which is named for a held-out split. divided: whether they may be.
    """
    splits = set(split_of.values())
    if (
        divided
        and splits - {None}
        and (None not in splits or ("train" in splits and len(splits) > 2))
    ):
        return {
            split or "": [name for name, own in split_of.items() if own == split]
            for split in (*_SPLITS, None)
            if split in splits
        }
    held_out = next((name for name, split in named if split not in (None, "train")), None)
    if held_out is not None:
        say_once(
            f"'{held_out}' in '{source}' is named for a test or validation split, and is "
            f"read with the rest: "
            "to leave it out, name the folders or files to read"
        )
    return {"": list(split_of)}


def say_splits(source: object, splits: Iterable[str]) -> None:
    """Say which split of a source is read where none is asked for, if there is any but the training
    split.
    """
    named = [split for split in splits if split]
    if set(named) - {"train"}:
        read = "train is" if "train" in named else "all is"
        say_once(
            f"'{source}' is divided into {', '.join(named)}: {read} read where no split is "
            f"asked for"
        )


def choose_splits(available: Iterable[str], wanted: str | None, source: object) -> list[str]:
    """The splits to read: the one asked for; all for "all"; for None "train", or all where there is
    no train.

    What is in none of the splits is read with all. ValueError lists what there is.
    """
    names = list(available)
    if wanted is None:
        return ["train"] if "train" in names else names
    if wanted == "all":
        return names
    name = _SPLIT_WORDS.get(wanted, wanted)
    name = name if name in names else wanted
    if name in names:
        return [name]
    if names == [""]:
        raise ValueError(
            f"'{source}' is not divided into splits, so there is no split '{wanted}'; "
            f"leave split out"
        )
    named = ", ".join(split for split in names if split)
    raise ValueError(f"'{source}' has no split '{wanted}'; it has {named} (and 'all')")


def _words(name: str) -> list[str]:
    """The words of a name in lower case; "TrainImages" has two."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return re.findall(r"[^\W\d_]+", apart.lower())


def _named_alone(folder: str) -> str | None:
    """The split that a folder is named for, with digits, single letters or words like "images" at
    most beside it.
    """
    words = {word for word in _words(folder) if len(word) > 1} - _FILLING
    return _SPLIT_WORDS.get(words.pop()) if len(words) == 1 else None
