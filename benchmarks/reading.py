"""Images per second of reading photographs and making two views of each, against torchvision's loader.

    python benchmarks/reading.py FOLDER --out docs/results/reading.json

FOLDER holds JPEG files in class folders. Every row reads all images once as one epoch does, decodes them and makes two
views (crop, flip, jitter, grayscale) of `--crop` pixels, with two processes or threads. "first" is an epoch from an
empty cache on, including its preparation; "later" is a second epoch.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from nearfar.data import Batches, Images, open_images
from nearfar.views import make_views, plan

WORKERS = 2
BATCH = 128
VIEWS = "saclr-cifar"


class Twice:
    """Two samples of a transform."""

    def __init__(self, transform: Callable[[Any], torch.Tensor]) -> None:
        self.transform = transform

    def __call__(self, image: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both."""
        return self.transform(image), self.transform(image)


def torchvision_epochs(folder: str, crop: int) -> Iterator[Callable[[], int]]:
    """torchvision's ImageFolder and transforms in a DataLoader with two workers."""
    jitter = transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8)
    parts = [
        transforms.RandomResizedCrop(crop, (0.2, 1.0)),
        transforms.RandomHorizontalFlip(),
        jitter,
    ]
    parts += [
        transforms.RandomGrayscale(0.1),
        transforms.ToTensor(),
        transforms.Normalize([0.5] * 3, [0.25] * 3),
    ]
    images = datasets.ImageFolder(folder, Twice(transforms.Compose(parts)))
    loader: DataLoader[Any] = DataLoader(
        images, BATCH, shuffle=True, num_workers=WORKERS, drop_last=True
    )
    for _ in range(2):
        yield lambda: sum(len(views[0]) for views, _ in loader)


def cached_epochs(folder: str, crop: int, image_size: int) -> Iterator[Callable[[], int]]:
    """nearfar's cache of decoded images, of which crops are cut."""
    with tempfile.TemporaryDirectory() as cache:
        for epoch in range(2):

            def once(number: int = epoch) -> int:
                images = open_images(
                    folder, image_size=image_size, cache_dir=cache, workers=WORKERS
                )
                return _seen(Batches(images, BATCH, 0).epoch(number), images, crop)

            yield once


def original_epochs(folder: str, crop: int) -> Iterator[Callable[[], int]]:
    """nearfar without a cache: crops are cut from the files by two worker processes."""
    with tempfile.TemporaryDirectory() as cache:
        images = open_images(folder, image_size=crop, cache_dir=cache, cache=False, workers=WORKERS)
        crops = plan(VIEWS, crop, 3).crops(crop)
        batches = Batches(images, BATCH, 0, crops=crops, workers=WORKERS)
        for epoch in range(2):
            yield partial(_of_epoch, batches, epoch, images, crop)


def _of_epoch(batches: Batches, epoch: int, images: Images, crop: int) -> int:
    return _seen(batches.epoch(epoch), images, crop)


def _seen(batches: Iterator[Any], images: Images, crop: int) -> int:
    views, count, generator = plan(VIEWS, crop, 3), 0, torch.Generator().manual_seed(0)
    for pixels, index in batches:
        make_views(pixels, views, generator, [0.5] * 3, [0.25] * 3)
        count += len(index)
    return count


def main() -> None:
    """Time first and later epochs of each way of reading."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--crops", type=int, nargs="+", default=[64, 224])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for crop in args.crops:
        ways = {
            "torchvision, two workers": torchvision_epochs(args.folder, crop),
            "nearfar, cache at 1.5 times the crop": cached_epochs(args.folder, crop, crop * 3 // 2),
            "nearfar, cache at the crop": cached_epochs(args.folder, crop, crop),
            "nearfar, no cache": original_epochs(args.folder, crop),
        }
        for name, epochs in ways.items():
            rates = []
            for epoch in epochs:
                began = time.perf_counter()
                rates.append(epoch() / (time.perf_counter() - began))
            rows.append({"crop": crop, "way": name, "first": rates[0], "later": rates[1]})
            print(
                f"{crop:4} px  {name:40} first {rates[0]:6.0f}  later {rates[1]:6.0f} images/s",
                flush=True,
            )
    if args.out is not None:
        args.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
