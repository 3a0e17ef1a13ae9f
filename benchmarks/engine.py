"""Copies among many images by Ray: CPU seconds of each part, memory of a worker, and what more images would take.

    python benchmarks/engine.py FOLDER --images 2500 10000 --workers 2 --kill 20 --compare --out docs/results/engine.json

The files, JPEG of 256 px, are made in FOLDER from the two photographs that come with scikit-learn: each is a random crop
with a weaker one over it, one in a hundred the image before it at half the size. The first so many are the same whatever
their number. --kill: seconds between which a random worker is killed. --compare: find the copies in one process too, and
compare the groups. With several numbers of images, what the model of cost predicts from all but the last is compared
with the last. 10^6 files: 12 GB of disk, and the memory of the first process that the model states.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

import nearfar
from nearfar.data.resources import peak_memory
from nearfar.ray import engine_named

PARTS = {
    "scan_file": "headers",
    "digest_of": "digests",
    "decoded_block": "decoding",
    "features": "features",
    "largest_in_partition": "neighbours",
    "shrunk": "small versions",
    "squashed": "small versions",
    "kinds": "comparing pixels",
}
"""Names of the kinds of work, by their functions."""
SIZES = (10**6, 10**7, 10**8)


def photograph(number: int, photographs: list[Image.Image]) -> Image.Image:
    rng = np.random.default_rng(number)

    def crop() -> Image.Image:
        image = photographs[int(rng.integers(len(photographs)))]
        side = int(rng.integers(96, 400))
        left, top = (int(rng.integers(0, length - side + 1)) for length in image.size)
        box = (left, top, left + side, top + side)
        return image.resize((256, 256), Image.Resampling.BILINEAR, box=box).rotate(
            int(rng.integers(-40, 41))
        )

    return Image.blend(crop(), crop(), float(rng.uniform(0.2, 0.5)))


def write(folder: Path, count: int) -> None:
    photographs = [Image.fromarray(image) for image in load_sample_images().images]
    for number in range(count):
        file = folder / f"{number // 1000:06}" / f"{number:08}.jpg"
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            copied = number % 100 == 99
            image = photograph(number - copied, photographs)
            (image.resize((128, 128)) if copied else image).save(file, quality=80)


def workers() -> list[int]:
    """The workers of Ray at work on this machine."""
    alive = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if line.read_text().startswith("ray::_done"):
                alive.append(int(line.parent.name))
    return alive


@contextmanager
def killing(seconds: float | None) -> Iterator[list[int]]:
    """Kill a random worker again and again."""
    killed, ended = list[int](), threading.Event()

    def kill() -> None:
        while not ended.wait(seconds):
            for process in random.sample(workers(), 1) if workers() else ():
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                    killed.append(process)

    thread = threading.Thread(target=kill)
    if seconds is not None:
        thread.start()
    yield killed
    ended.set()
    if seconds is not None:
        thread.join()


def measured(
    folder: Path, count: int, workers: int, kill: float | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Find the copies among the images of a folder: what that took, and the columns that name them."""
    with engine_named("ray", workers) as engine, killing(kill) as killed:
        assert engine is not None
        cpu, began = time.process_time(), time.perf_counter()
        copies = nearfar.duplicates(folder)
        own = time.process_time() - cpu
        numbers: dict[str, Any] = {"images": count, "workers": workers, "killed": len(killed)}
        numbers["seconds"] = time.perf_counter() - began
        parts = dict.fromkeys(PARTS.values(), 0.0) | {"first process": own}
        for name, spent in engine.spent.items():
            parts[PARTS[name]] += spent.cpu_seconds
        numbers["cpu_seconds"] = parts
        numbers["worker_mb"] = max(spent.peak_memory_mb for spent in engine.spent.values())
        numbers["first_process_mb"] = peak_memory()
        numbers["copies"] = len(copies["name"])
    return numbers, dict(copies)


def predicted(rows: list[dict[str, Any]], count: int) -> dict[str, float]:
    """CPU seconds of each part for so many images: a line through the numbers of images for what grows with them (through
    the origin where there is one number), and a square for the neighbours."""
    last = rows[-1]
    seconds = {}
    for name, known in last["cpu_seconds"].items():
        if name == "neighbours":
            seconds[name] = known * (count / last["images"]) ** 2
        else:
            points = [(row["images"], row["cpu_seconds"][name]) for row in rows]
            slope, start = (
                np.polyfit(*zip(*points, strict=True), 1)
                if len(points) > 1
                else (known / last["images"], 0.0)
            )
            seconds[name] = float(slope * count + start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, nargs="+", default=[2500, 10000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill", type=float)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = []
    for count in given.images:
        folder = given.folder.resolve() / str(count)
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, count)
        # a cache that is empty, and pages that nobody reads
        with tempfile.TemporaryDirectory() as scratch:
            os.environ["XDG_CACHE_HOME"] = scratch
            os.chdir(scratch)
            row, copies = measured(folder, count, given.workers, given.kill)
            if given.compare:
                shutil.rmtree(Path(scratch) / "nearfar")
                cpu = time.process_time()
                row["same_as_one_process"] = dict(nearfar.duplicates(folder)) == copies
                row["one_process_cpu_seconds"] = time.process_time() - cpu
            os.chdir(given.folder)
        print(json.dumps(row), flush=True)
        rows.append(row)
    results: dict[str, Any] = {"rows": rows, "cores": os.cpu_count()}
    if len(rows) > 1:
        results["predicted_last"] = predicted(rows[:-1], rows[-1]["images"])
    results["predicted"] = {str(count): predicted(rows, count) for count in SIZES}
    given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
