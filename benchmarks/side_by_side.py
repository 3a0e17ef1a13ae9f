"""CPU seconds of the road from data to the first step, of two states of this repository in turn:
scanning 100 000 files, opening each kind of source and an epoch of it, and `nearfar pretrain` from
its call to the first line of metrics.

git worktree add /tmp/before COMMIT
python benchmarks/side_by_side.py /tmp/before --data /tmp/road --out docs/results/side-by-side.json

The two states take turns within each round, in both orders, so that a busy machine slows both. A
ratio is the median over rounds of now / before; beside it stand the quartiles. Linux alone.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

HERE = Path(__file__).parents[1]
FILES, PHOTOS, LARGE, ARRAY = 100_000, 1000, 200, 20_000
SIZE, BATCH = 96, 50
CROPS = [(64, (0.2, 1.0), (3 / 4, 4 / 3))] * 2
SOURCES = {
    "folder of JPEG": "photos",
    "folder of JPEG above 64 KiB": "large",
    "tar shards": "tars",
    "Parquet": "parquet",
    "array file": "array.npy",
    "arrays": "array.npy",
    "stream": "tars",
}
SHORT = "--epochs 1 --precision 32-true --encoder small --image-size 64"
FIRST_STEPS = {
    "first step, digits": "digits --epochs 1 --precision 32-true",
    "first step, folder of JPEG": f"{{data}}/photos {SHORT}",
    "first step, stream": f"{{data}}/tars --stream {SHORT}",
    "first step, folder of JPEG, measured": "{data}/photos --minutes 5",
}


# Data


def make_data(folder: Path) -> None:
    """Write the files that are read, unless they are there: images of smooth noise."""
    rng = np.random.default_rng(0)
    if (folder / "done").exists():
        return
    tiny = [jpeg(rng, 32) for _ in range(100)]
    for number in range(FILES):
        place = folder / "many" / f"{number // 1000:02d}" / f"{number:06d}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(tiny[number % 100] + f"{number:06d}".encode())  # behind the end
    photos = [jpeg(rng, 256) for _ in range(PHOTOS)]
    for name, images in (("photos", photos), ("large", [jpeg(rng, 1024) for _ in range(LARGE)])):
        for number, content in enumerate(images):
            place = folder / name / f"{number % 10}" / f"{number:06d}.jpg"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    write_shards(folder, photos)
    np.save(folder / "array.npy", rng.integers(0, 256, (ARRAY, 64, 64, 3), np.uint8))
    (folder / "done").touch()


def jpeg(rng: np.random.Generator, side: int) -> bytes:
    """Encode an image of noise in patches of 8 pixels."""
    from PIL import Image

    noise = Image.fromarray(rng.integers(0, 256, (side // 8, side // 8, 3), np.uint8))
    content = io.BytesIO()
    noise.resize((side, side), Image.Resampling.BICUBIC).save(content, "JPEG", quality=95)
    return content.getvalue()


def write_shards(folder: Path, photos: list[bytes]) -> None:
    """Write the images into ten tars and ten Parquet files."""
    import pyarrow
    import pyarrow.parquet

    for name in ("tars", "parquet"):
        (folder / name).mkdir(exist_ok=True)
    for shard in range(10):
        own = range(shard, len(photos), 10)
        with tarfile.open(folder / "tars" / f"{shard:02d}.tar", "w") as tar:
            for number in own:
                member = tarfile.TarInfo(f"{number:06d}.jpg")
                member.size = len(photos[number])
                tar.addfile(member, io.BytesIO(photos[number]))
        images = [{"bytes": photos[number], "path": f"{number:06d}.jpg"} for number in own]
        table = pyarrow.table({"image": images, "label": [number % 10 for number in own]})
        pyarrow.parquet.write_table(table, folder / "parquet" / f"{shard:02d}.parquet")


# Tasks, each in a process of its own with the package of one state


def measure_task(task: str, data: Path, cache: Path) -> dict[str, float]:
    """Return the CPU seconds of each part of a task; runs with either state's `nearfar`."""
    from nearfar.data import Batches, StreamBatches, open_images, open_stream, scan

    seconds: dict[str, float] = {}

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        began = time.process_time()
        yield
        seconds[part] = time.process_time() - began

    if task == "100 000 files":
        for part in ("scan", "scan again"):
            with timed(part):
                assert len(scan(data / "many", cache_dir=cache)) == FILES
        return seconds
    source = data / SOURCES[task]
    if task == "stream":
        for part in ("open", "open again"):
            with timed(part):
                stream = open_stream(source, image_size=SIZE, cache_dir=cache)
        with timed("epoch"):
            for _ in StreamBatches(stream, BATCH, 0, workers=0).epoch(0):
                pass
        with timed("epoch of crops"):
            for _ in StreamBatches(stream, BATCH, 0, crops=CROPS, workers=0).epoch(0):
                pass
        return seconds
    given = np.load(source) if task == "arrays" else source
    for part, times in (("open", 1), ("open again", 1 if "array" in task else 20)):
        with timed(part):
            for _ in range(times):
                images = open_images(given, image_size=SIZE, cache_dir=cache, workers=1)
    with timed("epoch"):
        for epoch in range(20):
            for _ in Batches(images, BATCH, 0, workers=0).epoch(epoch):
                pass
    if "array" not in task:
        images = open_images(given, image_size=SIZE, cache_dir=cache, cache=False, workers=1)
        with timed("epoch of crops"):
            for _ in Batches(images, BATCH, 0, crops=CROPS, workers=0).epoch(0):
                pass
    return seconds


def run_task(tree: Path, task: str, data: Path) -> dict[str, float]:
    """Return the CPU seconds of a task by part, of the state in `tree`, with an empty cache."""
    with tempfile.TemporaryDirectory() as scratch:
        environment = os.environ | {
            "PYTHONPATH": str(tree / "src"),
            "XDG_CACHE_HOME": f"{scratch}/cache",
            "OMP_NUM_THREADS": "1",
        }
        if task not in FIRST_STEPS:
            command = [sys.executable, __file__, str(tree), "--data", str(data), "--task", task]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stderr)
            return json.loads(done.stdout.splitlines()[-1])
        words = FIRST_STEPS[task].format(data=data).split()
        run = [*words, "--out", f"{scratch}/run", "--log-every", "1", "--threads", "1"]
        command = [sys.executable, "-m", "nearfar", "pretrain", *run]
        return {"CPU": until_first_loss(command, environment, Path(scratch) / "run")}


def until_first_loss(command: list[str], environment: dict[str, str], run: Path) -> float:
    """Return the CPU seconds of a command until its run folder has a line with a loss."""
    metrics, log = run / "metrics.jsonl", run.parent / "log"
    with log.open("w") as lines:
        process = subprocess.Popen(command, env=environment, stdout=lines, stderr=lines)
    try:
        while not (metrics.exists() and '"loss"' in metrics.read_text()):
            if process.poll() is not None:
                raise RuntimeError(log.read_text())
            time.sleep(0.005)
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = sum(map(int, fields[11:15]))  # its own, and of children that have ended
        return ticks / os.sysconf("SC_CLK_TCK")
    finally:
        process.kill()
        process.wait()


def commit_of(tree: Path) -> str:
    """Return the commit of a state."""
    command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def cpu_name() -> str:
    """Return the name of the processor, and whether it has half precision."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    flags = next(line for line in lines if line.startswith("flags"))
    return name + (" (AVX512-BF16)" if "avx512_bf16" in flags else "")


def main() -> None:
    """Measure all tasks, in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path, help="worktree of the state to compare with")
    parser.add_argument("--data", type=Path, required=True, help="folder for the files, 1 GB")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="tasks whose names hold this")
    parser.add_argument("--task", help="of a process that measures")
    given = parser.parse_args()
    if given.task:
        with tempfile.TemporaryDirectory() as cache:
            print(json.dumps(measure_task(given.task, given.data, Path(cache))))
        return
    make_data(given.data)
    trees, rows = {"before": given.before, "now": HERE}, []
    tasks = [name for name in ("100 000 files", *SOURCES, *FIRST_STEPS) if given.only in name]
    for task in tasks:
        seen: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
        for number in range(given.rounds):
            for state in ("before", "now") if number % 2 == 0 else ("now", "before"):
                seen[state].append(run_task(trees[state], task, given.data))
        for part in seen["now"][0]:
            before, now = ([round[part] for round in seen[state]] for state in ("before", "now"))
            low, ratio, high = np.percentile(np.divide(now, before), (25, 50, 75)).round(3)
            row = dict(task=task, part=part, before=before, now=now)
            rows.append(row | dict(ratio=[low, ratio, high]))
            medians = f"{np.median(before):8.2f} {np.median(now):8.2f}"
            print(
                f"{task:36} {part:15} {medians}  {ratio:.2f} ({low:.2f} to {high:.2f})", flush=True
            )
    if given.out:
        facts = dict(cpu=cpu_name(), before=commit_of(given.before), now=commit_of(HERE))
        given.out.write_text(json.dumps(facts | dict(rounds=given.rounds, rows=rows), indent=1))


if __name__ == "__main__":
    main()
