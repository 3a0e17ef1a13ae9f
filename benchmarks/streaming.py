"""Memory of reading a stream of a million images on two processes.

    python benchmarks/streaming.py --out docs/results/streaming.json

The benchmark makes ten tars of 1000 small JPEG files each, links them under enough names for the number of images, and
reads one epoch of whole images on two processes with one worker each, as `nearfar pretrain --stream --devices 2` does.
It reports the memory of each process with its worker (the sum of VmRSS, which counts shared memory twice) after every
tenth of the epoch, and whether every image was seen once. No network is trained: its memory is that of any run.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tarfile
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nearfar.data import StreamBatches, open_stream

RANKS, BATCH, SIZE, IN_TAR, TARS = 2, 256, 16, 1000, 10


def make_tars(folder: Path, images: int) -> None:
    """Write ten tars and link them, so that there are so many images."""
    (folder / "tars").mkdir()
    rng = np.random.default_rng(0)
    for number in range(TARS):
        with tarfile.open(folder / f"{number}.tar", "w") as tar:
            for one in range(IN_TAR):
                file = io.BytesIO()
                coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
                coarse.resize((SIZE, SIZE), Image.Resampling.BICUBIC).save(file, "JPEG")
                info = tarfile.TarInfo(f"{one:04d}.jpg")
                info.size = len(file.getvalue())
                tar.addfile(info, io.BytesIO(file.getvalue()))
    for number in range(images // IN_TAR):
        os.link(folder / f"{number % TARS}.tar", folder / "tars" / f"{number:06d}.tar")


def resident() -> float:
    """Megabytes that this process and the workers that it started hold."""
    own = os.getpid()
    others = Path(f"/proc/{own}/task/{own}/children").read_text().split()
    lines = [Path(f"/proc/{process}/status").read_text() for process in (own, *others)]
    return sum(int(text.split("VmRSS:")[1].split()[0]) for text in lines) / 1024


def read_epoch(rank: int, folder: Path, told: Any) -> None:
    """Read this process's share of an epoch."""
    stream = open_stream(folder / "tars", cache_dir=folder / "cache")
    batches = StreamBatches(stream, BATCH, 0, rank, RANKS, workers=1)
    seen = np.zeros(len(stream), dtype=np.uint8)
    tenth = max(1, len(batches) // 10)
    memory, began = [resident()], time.perf_counter()
    for step, (_, index) in enumerate(batches.epoch(0), 1):
        seen[index.numpy()] += 1
        if step % tenth == 0:
            memory.append(resident())
    told.put(
        (
            rank,
            memory,
            len(batches) * BATCH / (time.perf_counter() - began),
            np.packbits(seen > 0),
            int(seen.max()),
        )
    )


def main() -> None:
    """Make the tars, read the epoch, say what it took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument(
        "--folder", type=Path, help="where the tars are made. Default: a temporary folder"
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as made:
        folder = Path(made)
        make_tars(folder, args.images)
        began = time.perf_counter()
        images = len(open_stream(folder / "tars", cache_dir=folder / "cache"))
        indexed = time.perf_counter() - began
        [index] = (folder / "cache" / "streams").glob("*.npz")
        context = get_context("spawn")
        told = context.Queue()
        processes = [
            context.Process(target=read_epoch, args=(rank, folder, told)) for rank in range(RANKS)
        ]
        for process in processes:
            process.start()
        found = sorted(told.get() for _ in processes)
        for process in processes:
            process.join()
        size = index.stat().st_size
    ever = np.unpackbits(np.bitwise_or.reduce([bits for *_, bits, _ in found]))[:images]
    apart = not any((found[0][3] & found[1][3]).tolist())
    result = {
        "images": images,
        "seen": int(ever.sum()),
        "seen_once": apart and all(most <= 1 for *_, most in found),
        "index_seconds": round(indexed, 1),
        "index_megabytes": round(size / 2**20, 2),
        "images_per_second": round(min(rate for _, _, rate, _, _ in found)),
        "megabytes_by_tenth": {
            f"process {rank}": [round(one) for one in memory] for rank, memory, *_ in found
        },
    }
    print(json.dumps(result, indent=2))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
