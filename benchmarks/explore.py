"""One walk over many JPEG files, `nearfar explore`: CPU seconds, seconds and memory of each part.

    python benchmarks/explore.py DATA --images 20000 --folder FOLDER --out docs/results/explore.json

The files, 256 px at about 10 kB, are made from the photographs of DATA (Imagenette), in FOLDER: each
is a random crop of one photograph with a weaker one of another over it, so that they are different
images. Planted among them are copies (saved again as JPEG, some at half the size, some in the test
split) and wrong labels. The first so many files are the same whatever their number. `nearfar
explore` then runs in a process of its own; with --again, a hundredth as many files are added and it
runs once more. With --go-on, a run that was stopped goes on, and what it took is noted beside
it. With --before, another checkout of nearfar does the same on the same files, each run
before that of this one. With --under, each run begins with those words, such as a limit of 4 GB:

    cgcreate -g memory:four; cgset -r memory.limit_in_bytes=4000000000 four
    python benchmarks/explore.py DATA --folder FOLDER --under "cgexec -g memory:four"
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
from PIL import Image

SIDE, QUALITY = 256, 72
SMALLEST_CROP = 128  # pixels of a photograph of 224
WEAKER = (0.2, 0.4)  # share of the second photograph
COPIES, WRONG, TEST = 0.002, 0.01, 0.1  # shares of the files
PART = 1000  # files of a folder and of a job


def crop(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Return a random square of a photograph, flipped half of the time, as 256 px."""
    side = int(rng.integers(SMALLEST_CROP, min(image.size) + 1))
    left, top = (int(rng.integers(0, length - side + 1)) for length in image.size)
    box = (left, top, left + side, top + side)
    out = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box)
    return out.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else out


def label_of(number: int, labels: list[int]) -> int:
    """Return the true label of a number: that of its stronger photograph."""
    return labels[int(np.random.default_rng([0, number]).integers(0, len(labels), 2)[0])]


def photograph(data: Path, number: int) -> tuple[Image.Image, int]:
    """Return the image of a number, and its label."""
    labels = photographs(data)[1]
    rng = np.random.default_rng([0, number])
    first, second = rng.integers(0, len(labels), 2)
    strong, weak = (crop(decoded(data, int(row)), rng) for row in (first, second))
    return Image.blend(strong, weak, float(rng.uniform(*WEAKER))), labels[first]


def is_copy(number: int) -> bool:
    """Return whether the file of a number is a planted copy of the one before it."""
    return number > 0 and bool(np.random.default_rng([1, number]).random() < COPIES)


def write_part(data: Path, folder: Path, numbers: range) -> None:
    """Write the files of some numbers; a planted copy is that of the file before it."""
    for number in numbers:
        copied = is_copy(number)
        image, label = photograph(data, number - copied)
        rng = np.random.default_rng([2, number])
        if not copied and rng.random() < WRONG:
            label = (label + int(rng.integers(1, 10))) % 10
        split = "test" if rng.random() < TEST else "train"
        quality = QUALITY
        if copied:
            quality = 90
            if rng.random() < 0.5:
                image = image.resize((SIDE // 2, SIDE // 2), Image.Resampling.BOX)
        place = folder / split / f"class_{label}"
        place.mkdir(parents=True, exist_ok=True)
        image.save(place / f"{number:07}{'_copy' if copied else ''}.jpg", quality=quality)


@cache
def photographs(data: Path) -> tuple[list[bytes], list[int]]:
    """Return the encoded photographs of a data set, and their labels."""
    tables = [pyarrow.parquet.read_table(file) for file in sorted(data.glob("*.parquet"))]
    table = pyarrow.concat_tables(tables)
    images = [row["bytes"] for row in table["image"].to_pylist()]
    return images, table["label"].to_pylist()


@cache
def decoded(data: Path, row: int) -> Image.Image:
    """Return a photograph of a data set; 2 GB for all of Imagenette."""
    return Image.open(io.BytesIO(photographs(data)[0][row])).convert("RGB")


def make_files(data: Path, folder: Path, start: int, stop: int) -> None:
    """Write the files from number `start` to `stop`, by all cores."""
    jobs = [range(at, min(at + PART, stop)) for at in range(start, stop, PART)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(partial(write_part, data, folder), jobs))


def listed_labels(made: Path, labels: list[int]) -> dict[str, int]:
    """Return how many labels are listed as doubtful, and how many of these are wrong."""
    with (made / "check.csv").open(newline="") as file:
        issues = [row for row in csv.DictReader(file) if row["problem"] == "label issue"]
    numbers = [
        (int(Path(row["name"]).stem[:7]), int(row["label"].removeprefix("class_")))
        for row in issues
    ]
    wrong = sum(label_of(number, labels) != label for number, label in numbers)
    return {"listed": len(numbers), "wrong": wrong}


def planted(count: int, made: Path, labels: list[int]) -> dict[str, Any]:
    """Return what is planted among so many files, and of it what the pages have."""
    return {
        "planted copies": sum(map(is_copy, range(count))),
        "doubtful labels": listed_labels(made, labels),
    }


def explored(
    under: list[str], photos: Path, out: Path, options: list[str], checkout: Path
) -> dict[str, Any]:
    """Run the command of a checkout in a process of its own, after the words `under`, and return
    its parts, and what it took as a whole.
    """
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [*under, sys.executable, "-m", "nearfar", "explore", str(photos), *options]
    command += ["--out", str(out)]
    own = os.environ | {"PYTHONPATH": str(checkout / "src")}
    done = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, check=True, env=own)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    whole = {"cpu_seconds": cpu, "seconds": time.perf_counter() - began}
    explored = json.loads(done.stdout)
    for part in explored["parts"].values():
        del part["numbers"], part["digest"]
    del explored["path"], explored["read"]
    peak = max(part["peak_memory_mb"] for part in explored["parts"].values())
    return whole | {"peak_memory_mb": peak, **explored}


def without_content(file: Path) -> dict[str, Any]:
    """Return the parts of a file of them, what each took alone."""
    left_out = ("numbers", "digest")
    return {
        name: {key: value for key, value in part.items() if key not in left_out}
        for name, part in json.loads(file.read_text()).items()
    }


def main() -> None:
    """Make the files, explore them, and write the numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--folder", type=Path, required=True, help="for the files and the result")
    parser.add_argument("--again", action="store_true", help="run again with 1 %% more files")
    parser.add_argument("--make", action="store_true", help="make the files, and no more")
    parser.add_argument("--go-on", action="store_true", help="go on with a run that was stopped")
    parser.add_argument("--before", type=Path, help="another checkout, to be run as well")
    parser.add_argument("--under", type=shlex.split, default=[], help="words before each run")
    parser.add_argument("--out", type=Path)
    args, options = parser.parse_known_args()
    photos = args.folder / f"photos-{args.images}"
    if not photos.exists():
        make_files(args.data, photos, 0, args.images)
    if args.make:
        return
    checkouts = {"": Path(__file__).parents[1]}
    if args.before is not None:
        checkouts = {" before": args.before, **checkouts}
    labels = photographs(args.data)[1]
    results: dict[str, dict[str, Any]] = {}
    for name, count in [("first", args.images), ("again", args.images + args.images // 100)]:
        if name == "again" and not args.again:
            break
        if name == "again":
            make_files(args.data, photos, args.images, count)
        for version, checkout in checkouts.items():
            made = args.folder / f"explore-{args.images}{version.replace(' ', '-')}"
            about: dict[str, Any] = {"images": args.images, "cores": os.cpu_count()}
            about |= {"under": shlex.join(args.under)} if args.under else {}
            if name == "first" and args.go_on:
                about["stopped"] = {"parts": without_content(made / "parts.json")}
            elif name == "first":
                shutil.rmtree(made, ignore_errors=True)
            about["load_average"] = os.getloadavg()[0]
            result = results.setdefault(f"{args.images}{version}", about)
            measured = explored(args.under, photos, made, options, checkout)
            result[name] = measured | planted(count, made, labels)
    print(json.dumps(results, indent=2))
    if args.out is not None:
        known = json.loads(args.out.read_text()) if args.out.exists() else {}
        args.out.write_text(json.dumps(known | results, indent=2) + "\n")


if __name__ == "__main__":
    main()
