"""What a named source holds: which files, of which kind, in which splits. Nothing is decoded here."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from nearfar.data.decode import suffixes
from nearfar.messages import did_you_mean

METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
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
_ORDER = ("train", "validation", "test")
_RUN = {"config.yaml", "environment.json"}  # what every run folder of nearfar holds
_told: set[str] = set()


def is_hub_name(source: str) -> bool:
    """True for "owner/name" that is no path: nothing of that name here, and no local folder called "owner"."""
    return bool(_HUB_NAME.fullmatch(source)) and not os.path.exists(source) and not os.path.isdir(source.split("/")[0])


def existing(source: str) -> Path:
    """The path, or FileNotFoundError that names the nearest existing one."""
    path = Path(source).expanduser()
    if source and path.exists():
        return path
    there = path.parent
    while not there.exists():
        path, there = there, there.parent
    names = [entry.name for entry in there.iterdir()] if there.is_dir() else []
    near = did_you_mean(path.name, names, cutoff=0.5)
    raise FileNotFoundError(f"there is no file or folder '{source}'" + (f"; in '{there}', {near}" if near else ""))


def list_files(root: Path) -> list[str]:
    """Every file under `root`, as sorted relative paths with "/"; hidden ones and names starting with "__" left out.

    Links to folders are followed, each real folder once. Folders of runs are left out, with one line.
    """
    try:
        os.listdir(root)
    except OSError as error:
        raise ValueError(f"the folder '{root}' cannot be read: {error.strerror}") from error
    found: list[str] = []
    seen: set[str] = set()
    for folder, inner, names in os.walk(root, followlinks=True):
        inner[:] = sorted(name for name in inner if not name.startswith((".", "__")))
        real = os.path.realpath(folder)
        if real in seen:
            inner.clear()
            continue
        seen.add(real)
        if len(seen) > 1 and set(names) >= _RUN:
            inner.clear()
            if real not in _told:
                _told.add(real)
                logging.getLogger("nearfar").info("'%s' is the folder of a run, not of images: left out", folder)
            continue
        above = os.path.relpath(folder, root).replace(os.sep, "/")
        prefix = "" if above == "." else f"{above}/"
        found += [prefix + name for name in names if not name.startswith((".", "__"))]
    return sorted(found)


def kind_of(root: Path, files: Iterable[str]) -> tuple[str, list[str]]:
    """("images" | "parquet" | "tars", its files): whichever `root` holds most of. ValueError where there is none."""
    groups: dict[str, list[str]] = {"parquet": [], "tars": [], "images": []}
    for name in files:
        suffix = os.path.splitext(name)[1].lower()
        if suffix == ".parquet" and os.path.basename(name) not in METADATA:
            groups["parquet"].append(name)
        elif suffix == ".tar":
            groups["tars"].append(name)
        elif suffix in suffixes():
            groups["images"].append(name)
    kind = max(groups, key=lambda name: len(groups[name]))
    if not groups[kind]:
        what = "is empty" if not any(root.iterdir()) else "holds no images, Parquet files or tars"
        raise ValueError(
            f"the folder '{root}' {what}; nearfar reads images such as .png, .jpg, .webp, .tif at any depth"
        )
    return kind, groups[kind]


def folder_splits(files: Sequence[str]) -> dict[str, list[str]]:
    """Splits of an image folder: its top folders, where every one of them is named like a split; else {"": all}."""
    return _ordered({name: _SPLIT_WORDS.get(name.split("/")[0].lower()) if "/" in name else None for name in files})


def shard_splits(files: Sequence[str]) -> dict[str, list[str]]:
    """Splits of Parquet files or tars, by file name ("train-000.parquet") or folder; {"": all} unless all have one."""

    def split_of(name: str) -> str | None:
        *folders, stem = name.lower().split("/")
        word = re.match(r"[a-z]+(?=[-_.\d])", stem)
        for candidate in ([word.group()] if word else []) + folders[::-1]:
            if candidate in _SPLIT_WORDS:
                return _SPLIT_WORDS[candidate]
        return None

    return _ordered({name: split_of(name) for name in files})


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


def _ordered(split_by_name: Mapping[str, str | None]) -> dict[str, list[str]]:
    if not all(split_by_name.values()):
        return {"": list(split_by_name)}
    names = set(split_by_name.values())
    return {split: [n for n, s in split_by_name.items() if s == split] for split in _ORDER if split in names}
