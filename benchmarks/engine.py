"""Copies among many images by Ray: CPU seconds of each part, memory of a worker, and what more images would take.

    python benchmarks/engine.py FOLDER --images 2500 10000 --workers 2 --kill 20 --compare --out docs/results/engine.json

The files, JPEG of 256 px, are made in FOLDER from the two photographs that come with scikit-learn: each is a random crop
with a weaker one over it, one in a hundred the image before it at half the size. The first so many are the same whatever
their number. --kill: seconds between which a random worker is killed. --compare: find the copies in one process too, and
compare the groups. --approximate: find neighbours by an index. Edited copies are not looked for: images of two
photographs are all likely ones. With several numbers of images, what the model of cost predicts from all but the last is
compared with the last. 10^6 files: 12 GB of disk.
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
from nearfar.data.resources import own_memory, peak_memory
from nearfar.ray import engine_named

PARTS = {
    "scan_file": "headers",
    "digest_of": "digests",
    "decoded_block": "decoding",
    "features": "features",
    "largest_in_partition": "neighbours, of all",
    "lists_of": "neighbours, lists",
    "Partition": "neighbours, in lists",
    "shrunk": "small versions",
    "squashed": "small versions",
    "kinds": "comparing pixels",
}
"""Names of the kinds of work, by their functions."""
GROWTH = {"neighbours, lists": 1.5, "neighbours, in lists": 1.5}
"""The power of the number of images with which a part grows, where it is not 1: each image is
compared with 4 sqrt(n) centres, and with some lists, of sqrt(n) / 4 images each. Without
--approximate it is compared with all, which is a square.
"""
FIRST, STARTING = "first process", "starting workers"
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
            alive = workers()
            for process in random.sample(alive, min(1, len(alive))):
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
    folder: Path, count: int, workers: int, kill: float | None, approximate: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Find the copies among the images of a folder: what that took, and the columns that name them.

    The first piece of a kind of work in a worker takes longer, since it loads what it needs: what
    it takes beyond another piece counts as starting.
    """
    with engine_named("ray", workers) as engine, killing(kill) as killed:
        assert engine is not None
        cpu, began = time.process_time(), time.perf_counter()
        copies = nearfar.duplicates(folder, edits=False, approximate=approximate)
        own = time.process_time() - cpu
        numbers: dict[str, Any] = {"images": count, "workers": workers, "killed": len(killed)}
        numbers["seconds"] = time.perf_counter() - began
        parts = {FIRST: own, STARTING: 0.0}
        for name, spent in engine.spent.items():
            further = spent.done - spent.first
            if further:
                alike = spent.done * (spent.cpu_seconds - spent.first_seconds) / further
            else:
                alike = spent.cpu_seconds
            parts[PARTS[name]] = parts.get(PARTS[name], 0.0) + alike
            parts[STARTING] += spent.cpu_seconds - alike
        numbers["cpu_seconds"] = parts
        numbers["worker_mb"] = max(spent.peak_memory_mb for spent in engine.spent.values())
        numbers["worker_own_mb"] = max(spent.own_memory_mb for spent in engine.spent.values())
        numbers["first_process_mb"] = peak_memory()
        numbers["first_process_own_mb"] = own_memory()
        numbers["copies"] = len(copies["name"])
    return numbers, dict(copies)


def predicted(rows: list[dict[str, Any]], count: int, approximate: bool) -> dict[str, float]:
    """CPU seconds of each part for so many images, from those of the last row: by the power with
    which a part grows; what starting takes depends on how many workers there are. Those of the
    first process, which has a part of its own that does not grow, by a line through two rows.
    """
    last, growth = rows[-1], GROWTH if approximate else {"neighbours, of all": 2.0}
    more = count / last["images"]
    seconds = {
        name: known * more ** growth.get(name, 1.0) for name, known in last["cpu_seconds"].items()
    }
    seconds[STARTING] = last["cpu_seconds"][STARTING]
    if len(rows) > 1:
        slope = (last["cpu_seconds"][FIRST] - rows[-2]["cpu_seconds"][FIRST]) / (
            last["images"] - rows[-2]["images"]
        )
        seconds[FIRST] = last["cpu_seconds"][FIRST] + slope * (count - last["images"])
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
    parser.add_argument("--approximate", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    out = given.out.resolve()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = []
    warm = given.folder.resolve() / "warm"
    warm.mkdir(parents=True, exist_ok=True)
    write(warm, 64)
    os.chdir(warm)  # where its page goes
    nearfar.duplicates(warm, edits=False, approximate=given.approximate)
    for count in given.images:
        folder = given.folder.resolve() / str(count)
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, count)
        # a cache that is empty, and pages that nobody reads
        with tempfile.TemporaryDirectory() as scratch:
            os.environ["XDG_CACHE_HOME"] = scratch
            os.chdir(scratch)
            row, copies = measured(folder, count, given.workers, given.kill, given.approximate)
            if given.compare:
                shutil.rmtree(Path(scratch) / "nearfar")
                cpu = time.process_time()
                alone = nearfar.duplicates(folder, edits=False, approximate=given.approximate)
                row["same_as_one_process"] = dict(alone) == copies
                row["one_process_cpu_seconds"] = time.process_time() - cpu
            os.chdir(given.folder)
        print(json.dumps(row), flush=True)
        rows.append(row)
    results: dict[str, Any] = {"rows": rows, "cores": os.cpu_count()}
    if len(rows) > 1:
        last = rows[-1]["images"]
        results["predicted_last"] = predicted(rows[:-1], last, given.approximate)
    results["predicted"] = {
        str(count): predicted(rows, count, given.approximate) for count in SIZES
    }
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
