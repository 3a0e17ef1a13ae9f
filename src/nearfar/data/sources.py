"""What a named source holds: which files, of which kind, in which splits. Nothing is decoded here."""

from __future__ import annotations

import functools
import logging
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from nearfar.data.decode import suffixes
from nearfar.messages import did_you_mean

HUB = "hf:"
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_NOT_FILES = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}
_FILLING = {"data", "image", "images", "img", "imgs", "set", "split"}
_ORDER = ("train", "validation", "test")
_RUN = {"config.yaml", "environment.json"}  # what every run folder of nearfar holds
_told: set[str] = set()
Named = TypeVar("Named")


def are_paths(source: Any) -> bool:
    """Whether it is a list of paths or names."""
    given = isinstance(source, (list, tuple)) and len(source) > 0
    return given and all(isinstance(one, (str, os.PathLike)) for one in source)


def are_files(source: Any) -> bool:
    """Whether it is a list of image files, by their endings: one source."""
    return are_paths(source) and all(_kind(os.fspath(one)) == "images" and not os.path.isdir(one) for one in source)


def are_several(source: Any) -> bool:
    """Whether it is a list of paths or names, each a source of images."""
    return are_paths(source) and not are_files(source)


def short_names(given: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The end of each path or name, of as many parts as make all of them differ; ValueError for one given twice."""
    names = [os.fspath(one) for one in given]
    whole = [os.path.abspath(os.path.expanduser(n)) if os.path.exists(os.path.expanduser(n)) else n for n in names]
    seen: set[str] = set()
    for name, real in zip(names, map(os.path.realpath, whole), strict=True):
        if real in seen:
            raise ValueError(f"'{name}' is given twice")
        seen.add(real)
    parts = [Path(name).parts for name in whole]
    shorter = (["/".join(one[-depth:]) for one in parts] for depth in range(1, max(map(len, parts)) + 1))
    return next(short for short in shorter if len(set(short)) == len(short))


def hub_name(source: str) -> str:
    """The "owner/name" in "hf:owner/name"; ValueError for anything else, such as a path."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    name = source.removeprefix(HUB)
    try:
        validate_repo_id(name)
    except HFValidationError:
        name = ""
    if name.count("/") != 1:  # a name alone may be a format of `datasets`, which would look for files
        raise ValueError(f"'{source}' is no name on the Hugging Face Hub: write hf:owner/name; a path needs no hf:")
    return name


def existing(source: str) -> Path:
    """The file or folder, or FileNotFoundError that names the nearest existing one; ValueError for a pipe or device."""
    path = Path(source).expanduser()
    if source and path.exists():
        if special(path):
            raise ValueError(f"'{source}' is {special(path)}, neither a file nor a folder")
        return path
    there = path.parent
    while not there.exists():
        path, there = there, there.parent
    names = [entry.name for entry in there.iterdir()] if there.is_dir() else []
    near = did_you_mean(path.name, names, cutoff=0.5)
    hub = f"; a data set of that name on the Hugging Face Hub is called 'hf:{source}'"
    raise FileNotFoundError(
        f"there is no file or folder '{source}'"
        + (f"; in '{there}', {near}" if near else hub if _HUB_NAME.fullmatch(source) else "")
    )


def special(path: str | Path) -> str:
    """What a path is that is neither a file nor a folder ("a named pipe"): opening it may wait for ever; else ""."""
    try:
        return _NOT_FILES.get(stat.S_IFMT(os.stat(path).st_mode), "")
    except OSError:  # such as a link to nothing, which is listed as unreadable later
        return ""


def list_files(root: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Every file under `root`, as sorted relative paths with "/"; hidden ones and names starting with "__" left out.

    And (path, reason) of what might have been data: folders that cannot be read, pipes and devices with the name of an
    image, a Parquet file or a tar. Links to folders are followed, each real folder once; folders of runs are left out,
    with one line.
    """
    found: list[str] = []
    problems: list[tuple[str, str]] = []
    seen: set[str] = set()

    def unreadable(error: OSError) -> None:
        if os.path.samefile(error.filename, root):
            raise ValueError(f"the folder '{root}' cannot be read: {error.strerror}") from error
        problems.append((_inside(root, error.filename), f"the folder cannot be read: {error.strerror}"))

    for folder, inner, names in os.walk(root, followlinks=True, onerror=unreadable):
        inner[:] = sorted(name for name in inner if not name.startswith((".", "__")))
        real = os.path.realpath(folder)
        if real in seen:
            inner.clear()
            continue
        seen.add(real)
        if len(seen) > 1 and set(names) >= _RUN:
            inner.clear()
            say_once(f"'{folder}' is the folder of a run, not of images: left out")
            continue
        prefix = _inside(root, folder)
        with os.scandir(folder) as entries:
            plain = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}  # known without a stat
        for name in names:
            if name.startswith((".", "__")):
                continue
            what = "" if name in plain else special(f"{folder}/{name}")
            if not what:
                found.append(prefix + name)
            elif _kind(name) is not None:
                problems.append((prefix + name, f"{what}, not a file"))
    return sorted(found), sorted(problems)


def _inside(root: Path, folder: str) -> str:
    """A folder's path below `root`, with "/" behind it; "" for the root itself."""
    above = os.path.relpath(folder, root).replace(os.sep, "/")
    return "" if above == "." else f"{above}/"


def _kind(name: str) -> str | None:
    suffix = os.path.splitext(name)[1].lower()
    if suffix == ".parquet":
        return None if os.path.basename(name) in METADATA else "parquet"
    return "tars" if suffix == ".tar" else "images" if suffix in suffixes() else None


def kind_of(
    root: Path, files: Iterable[str], problems: Sequence[tuple[str, str]] = ()
) -> tuple[str, list[str], list[str]]:
    """("images" | "parquet" | "tars", its files, those of the other kinds): whichever `root` holds most of.

    ValueError where there is none; it names the first of the problems that `list_files` found.
    """
    groups: dict[str, list[str]] = {"parquet": [], "tars": [], "images": []}
    for name in files:
        kind = _kind(name)
        if kind is not None:
            groups[kind].append(name)
    kind = max(groups, key=lambda name: len(groups[name]))
    if not groups[kind]:
        what = "is empty" if not any(root.iterdir()) else "holds no images, Parquet files or tars"
        wrong = "".join(f"; '{name}': {reason}" for name, reason in problems[:1])
        raise ValueError(
            f"the folder '{root}' {what}; nearfar reads images such as .png, .jpg, .webp, .tif at any depth{wrong}"
        )
    return kind, groups.pop(kind), sorted(name for group in groups.values() for name in group)


def folder_splits(files: Sequence[str], source: object) -> dict[str, list[str]]:
    """Splits of an image folder: its top folders that are named for one, such as train/, val2017/ or test_images/.

    {"": all} unless every file lies in one of them, or the training split and another are there: then all other files
    are in no split. A line says so where a folder of test or validation images is read with the rest.
    """
    splits = _ordered({name: folder_split(name) for name in files})
    if "" in splits:
        folders = sorted({os.path.dirname(name) for name in files})
        _must_be_said({folder: _held_out(map(_named_alone, folder.split("/"))) for folder in folders}, source)
    return splits


def folder_split(name: str) -> str | None:
    """The split that the top folder of a path is named for."""
    top, *below = name.split("/")
    return _named_alone(top) if below else None


def shard_splits(files: Sequence[str], source: object) -> dict[str, list[str]]:
    """Splits of Parquet files or tars, by the last word of their name or folder that is one ("cats-train-000.parquet").

    {"": all} unless all files have one, or some are of the training split and some of another: then the others are in
    no split. A line says so where files of a test or validation split are read with the rest.
    """

    def split_of(name: str) -> str | None:
        words = (word for part in reversed(name.split("/")) for word in reversed(_words(part)))
        return next((_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS), None)

    found = {name: split_of(name) for name in files}
    splits = _ordered(found)
    if "" in splits:
        _must_be_said({name: _held_out([split]) for name, split in found.items()}, source)
    return splits


def word_splits(words: Sequence[str], source: object) -> dict[str, list[int]]:
    """Places of words such as "train" and "test" by the split that they name, as for the names of shards."""
    found = {place: _SPLIT_WORDS.get(word.lower()) for place, word in enumerate(words)}
    splits = _ordered(found)
    if "" in splits:
        _must_be_said({words[place]: _held_out([split]) for place, split in found.items()}, source)
    return splits


def in_none(names: Sequence[str], splits: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """(name, reason) of what is in none of the splits."""
    known = {name for members in splits.values() for name in members}
    return [(name, f"in none of the splits {', '.join(splits)}") for name in names if name not in known]


def say_once(message: str) -> None:
    """Log a line, the first time that this process has it to say."""
    if message not in _told:
        _told.add(message)
        logging.getLogger("nearfar").info("%s", message)


def say_splits(source: object, splits: Iterable[str]) -> None:
    """Say which split of a source is read, where there is any but the training split."""
    if set(splits) - {"", "train"}:
        read = "train is" if "train" in splits else "all is"
        say_once(f"'{source}' is divided into {', '.join(splits)}: {read} read where no split is asked for")


def choose_splits(available: Iterable[str], wanted: str | None, source: object) -> list[str]:
    """The splits to read: the one asked for; all for "all"; for None "train", or all where there is no train.

    ValueError lists what there is.
    """
    there = list(available)
    if wanted is None:
        return ["train"] if "train" in there else there
    if wanted == "all":
        return there
    name = _SPLIT_WORDS.get(wanted, wanted)
    name = name if name in there else wanted
    if name in there:
        return [name]
    if there == [""]:
        raise ValueError(f"'{source}' is not divided into splits, so there is no split '{wanted}'; leave split out")
    raise ValueError(f"'{source}' has no split '{wanted}'; it has {', '.join(there)} (and 'all')")


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", name.lower())


@functools.lru_cache
def _named_alone(folder: str) -> str | None:
    """The split that a folder is named for, with digits or words like "images" at most beside it."""
    words = set(_words(folder)) - _FILLING
    return _SPLIT_WORDS.get(words.pop()) if len(words) == 1 else None


def _held_out(splits: Iterable[str | None]) -> bool:
    return any(split not in (None, "train") for split in splits)


def _must_be_said(held_out: Mapping[str, bool], source: object) -> None:
    name = next((name for name, is_held_out in held_out.items() if is_held_out), None)
    if name is not None:
        say_once(
            f"'{name}' in '{source}' is named for a test or validation split, and is read with the rest: "
            "to leave it out, name the folders or files to read"
        )


def _ordered(split_by_name: Mapping[Named, str | None]) -> dict[str, list[Named]]:
    """Names by split, or all under "" where they are not divided."""
    names = set(split_by_name.values())
    if not names - {None} or (None in names and not ("train" in names and len(names) > 2)):
        return {"": list(split_by_name)}
    return {split: [n for n, s in split_by_name.items() if s == split] for split in _ORDER if split in names}
