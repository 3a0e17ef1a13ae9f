"""Training beside a busy process: images per second with one thread, with all, and with the number
a run chooses.

python benchmarks/busy.py --out docs/results/busy.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES = {"one thread": "1", "all threads": str(os.cpu_count()), "chosen": None}


def spin() -> None:
    """Keep one core busy."""
    while True:
        sum(range(100_000))


def images_per_second(threads: str | None, image_size: int, epochs: int) -> float:
    """Train the small net on random pixels in another process, with OMP_NUM_THREADS set unless
    `threads` is None.
    """
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = threads
    with tempfile.TemporaryDirectory() as folder:
        script = (
            "import numpy as np, nearfar\n"
            f"shape = (2048, {image_size}, {image_size}, 3)\n"
            "images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)\n"
            f"run = nearfar.pretrain(images, out='{folder}/run', method='simclr', "
            f"epochs={epochs}, held_out=0, "
            "precision='bf16-mixed', log_every=8)\n"
            "rates = sorted(line['images_per_second'] for line in run.metrics if 'loss' in line)\n"
            "print('rate', rates[len(rates) // 2])\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True
        )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measure every case alone and beside one busy process, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rates: dict[str, dict[str, float]] = {}
    for busy in (0, 1):
        others = [multiprocessing.Process(target=spin, daemon=True) for _ in range(busy)]
        for other in others:
            other.start()
        time.sleep(1)
        key = f"{busy} busy processes"
        rates[key] = {
            name: images_per_second(count, args.image_size, args.epochs)
            for name, count in CASES.items()
        }
        for other in others:
            other.terminate()
        print(key, {name: round(rate) for name, rate in rates[key].items()}, flush=True)
    if args.out is not None:
        machine = {"cores": os.cpu_count(), "machine": platform.machine()}
        args.out.write_text(
            json.dumps({"machine": machine, "images_per_second": rates}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
