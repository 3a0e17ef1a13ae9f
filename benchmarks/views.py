"""Images per second of batched views against torchvision v2 and kornia: same operations, same cores, one run.

    python benchmarks/views.py                      # 32 and 224 pixels, all cores
    python benchmarks/views.py --threads 1 --sizes 32 --out views.json

Operations: random resized crop (0.2 to 1 of the area), flip, jitter .4/.4/.4/.1 with probability 0.8, grey 0.1,
normalisation; and the same with a gaussian blur (probability 0.5) before the normalisation. All start from uint8
images in memory and end with normalised float32 tensors. Contenders:

- pil: torchvision v2 on PIL images, image by image
- tensor: torchvision v2 on uint8 tensors, image by image
- kornia: kornia's augmentations on whole batches, parameters for each image
- nearfar: `make_views`, whole batches, parameters for each image

With more than one thread the image-by-image contenders run in as many worker processes (one thread each, nothing is
sent back), the batched ones in one process with as many threads. All have the memory settings of `nearfar pretrain`.
Rounds are interleaved; a figure is the median over rounds, a ratio the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor
from torchvision.transforms import v2

from nearfar.allocator import reuse_memory
from nearfar.views import View, ViewPlan, make_views

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)
VIEW = View(
    scale=(0.2, 1.0),
    jitter=0.8,
    brightness=0.4,
    contrast=0.4,
    saturation=0.4,
    hue=0.1,
    grayscale=0.1,
)
BATCH = {32: 256, 224: 32}


def torchvision_transform(size: int, blur: int, first: list[object]) -> v2.Compose:
    steps = [
        v2.RandomResizedCrop(size, scale=(0.2, 1.0), antialias=True),
        v2.RandomHorizontalFlip(),
        v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
        v2.RandomGrayscale(p=0.1),
    ]
    if blur:
        steps.append(v2.RandomApply([v2.GaussianBlur(blur, (0.1, 2.0))], p=0.5))
    return v2.Compose(
        [*steps, *first, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    )


_worker: dict[str, object] = {}


def _start_worker(size: int, blur: int, images: Tensor) -> None:
    torch.set_num_threads(1)
    _worker["pil"] = (
        torchvision_transform(size, blur, [v2.PILToTensor()]),
        [v2.functional.to_pil_image(i) for i in images],
    )
    _worker["tensor"] = (torchvision_transform(size, blur, []), list(images))


def _work(kind: str, count: int) -> int:
    transform, images = _worker[kind]
    for i in range(count):
        transform(images[i % len(images)])
    return count


def image_by_image(
    kind: str, threads: int, pool: ProcessPoolExecutor | None
) -> Callable[[int], None]:
    def run(count: int) -> None:
        if pool is None:
            _work(kind, count)
        else:
            list(pool.map(_work, [kind] * threads, [count // threads] * threads))

    return run


def kornia_batches(size: int, blur: int, images: Tensor) -> Callable[[int], None]:
    try:
        import kornia.augmentation as K
    except ImportError:
        raise SystemExit(
            "kornia is not installed; it comes with the extra: pip install 'nearfar[benchmarks]'"
        ) from None

    steps = [
        K.RandomResizedCrop((size, size), scale=(0.2, 1.0)),
        K.RandomHorizontalFlip(),
        K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        K.RandomGrayscale(p=0.1),
    ]
    if blur:
        steps.append(K.RandomGaussianBlur((blur, blur), (0.1, 2.0), p=0.5))
    transform = K.AugmentationSequential(*steps, K.Normalize(torch.tensor(MEAN), torch.tensor(STD)))

    def run(count: int) -> None:
        for _ in range(count // len(images)):
            transform(images.float() / 255)

    return run


def nearfar_batches(blur: int, images: Tensor) -> Callable[[int], None]:
    plan = ViewPlan("benchmark", (replace(VIEW, blur=0.5 if blur else 0.0),))
    generator = torch.Generator().manual_seed(0)

    def run(count: int) -> None:
        for _ in range(count // len(images)):
            make_views(images, plan, generator, MEAN, STD)

    return run


def measure(
    size: int, blur: int, threads: int, rounds: int, seconds: float
) -> dict[str, list[float]]:
    images = torch.randint(0, 256, (BATCH[size], 3, size // 4, size // 4), dtype=torch.uint8)
    images = v2.functional.resize(images, [size, size])  # some smoothness, as images have
    if threads > 1:
        pool = ProcessPoolExecutor(
            threads, get_context("fork"), _start_worker, (size, blur, images)
        )
    else:
        pool = None
        _start_worker(size, blur, images)
    contenders = {
        "pil": image_by_image("pil", threads, pool),
        "tensor": image_by_image("tensor", threads, pool),
        "kornia": kornia_batches(size, blur, images),
        "nearfar": nearfar_batches(blur, images),
    }
    speed: dict[str, list[float]] = {name: [] for name in contenders}
    counts = {}
    for name, run in contenders.items():  # warm up, and find a count that takes about `seconds`
        run(BATCH[size])
        start = time.perf_counter()
        run(BATCH[size])
        counts[name] = max(1, round(seconds / (time.perf_counter() - start))) * BATCH[size]
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run(counts[name])
            speed[name].append(counts[name] / (time.perf_counter() - start))
    if pool is not None:
        pool.shutdown()
    return speed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 224], choices=sorted(BATCH))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="about how long one contender runs in one round"
    )
    parser.add_argument(
        "--out", type=Path, help="write the figures here, as .json or as a Markdown table"
    )
    args = parser.parse_args()
    reuse_memory()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)

    rows = []
    for size in args.sizes:
        for blur in (0, 3 if size == 32 else 23):
            speed = measure(size, blur, args.threads, args.rounds, args.seconds)
            row: dict[str, object] = {"size": size, "blur": bool(blur)}
            row |= {name: round(statistics.median(values)) for name, values in speed.items()}
            for name in ("pil", "tensor", "kornia"):
                ratios = [
                    ours / theirs
                    for ours, theirs in zip(speed["nearfar"], speed[name], strict=True)
                ]
                row[f"against_{name}"] = round(statistics.median(ratios), 1)
            rows.append(row)
    header = list(rows[0])
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(str(row[name]) for name in header) + " |" for row in rows]
    about = {
        "threads": args.threads,
        "rounds": args.rounds,
        "torch": torch.__version__,
        "machine": platform.machine(),
    }
    about["load"] = [round(x, 2) for x in os.getloadavg()]
    table = "\n".join(lines)
    print(f"images per second ({', '.join(f'{k} {v}' for k, v in about.items())})\n\n{table}")
    if args.out:
        as_json = args.out.suffix == ".json"
        args.out.write_text(
            (json.dumps({**about, "rows": rows}, indent=1) if as_json else table) + "\n"
        )


if __name__ == "__main__":
    main()
