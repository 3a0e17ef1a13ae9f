"""Effect of channels and bits: the same photographs as RGB, in 13 bands, and as scans of 12 bits.

    OMP_NUM_THREADS=1 python benchmarks/bands.py DATA --only rgb bands --epochs 20 --out docs/bands.jsonl
    python benchmarks/bands.py docs/bands.jsonl            # their table

DATA is a labelled set such as Imagenette; `--images` of it, evenly spaced, become folders of files of 64 pixels:

- rgb: PNGs of 8 bits
- bands: TIFFs of 13 channels of 16 bits, fixed filters of red, green and blue, each with a scale of its own: the
  colours, their differences, grayscale, its gradients, local mean, local deviation, square root and square
- grey: PNGs of 8 bits
- scan: the same grayscale images as 12 bits in PNGs of 16, read in their own range
- crushed: the files of scan divided by 257, as all 16-bit images once were

Each kind is trained on in the same way and evaluated by k nearest neighbours, against raw pixels and the untrained net.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import torch
import torch.nn.functional as F
from PIL import Image
from rich.console import Console
from torch import Tensor

import nearfar
from nearfar.data import Images, open_images

SIZE, SETS = 64, ("rgb", "bands", "grey", "scan", "crushed")
LUMA = torch.tensor([0.299, 0.587, 0.114])


def bands(image: Tensor) -> np.ndarray:
    """Thirteen bands of one photograph [3, h, w] in 0..1, in the numbers of sensors that differ in
    scale and offset.
    """
    red, green, blue = image
    grey = torch.einsum("chw,c->hw", image, LUMA)
    padded = F.pad(grey[None, None], (2, 2, 2, 2), mode="reflect")
    mean = F.avg_pool2d(padded, 5, 1)[0, 0]
    spread = (F.avg_pool2d(padded**2, 5, 1)[0, 0] - mean**2).clamp(min=0).sqrt()
    down, across = (
        grey.diff(dim=dim, append=grey.select(dim, -1).unsqueeze(dim)) for dim in (0, 1)
    )
    planes = [
        red,
        green,
        blue,
        (red - green + 1) / 2,
        (green - blue + 1) / 2,
        (blue - red + 1) / 2,
        grey,
    ]
    planes += [(down + 1) / 2, (across + 1) / 2, mean, spread, grey.sqrt(), 1 - grey**2]
    scale = torch.linspace(600, 12_000, len(planes))[:, None, None]
    return (100 + scale * torch.stack(planes)).round().numpy().astype(np.uint16)


def write(kind: str, images: Images, folder: Path) -> None:
    """Write the images as files of one kind, in a folder for each class."""
    assert images.labels is not None
    for row, label in enumerate(images.labels):
        pixels = images.gather(torch.tensor([row]))[0]
        path = folder / f"{label}" / f"{row:05d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        grey = torch.einsum("chw,c->hw", pixels.float(), LUMA).numpy()
        if kind == "rgb":
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path.with_suffix(".png"))
        elif kind == "bands":
            tifffile.imwrite(
                path.with_suffix(".tif"), bands(pixels / 255), photometric="minisblack"
            )
        elif kind == "grey":
            Image.fromarray(grey.round().astype(np.uint8)).save(path.with_suffix(".png"))
        else:
            Image.fromarray((grey * (4095 / 255)).round().astype(np.uint16)).save(
                path.with_suffix(".png")
            )


def measure(kind: str, images: Images, epochs: float, seed: int) -> dict[str, Any]:
    """Train and evaluate on one kind of files."""
    console = Console(quiet=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / kind
        write(kind, images, folder)
        began = time.perf_counter()
        options: dict[str, Any] = dict(
            encoder="small", image_size=SIZE, epochs=epochs, seed=seed, console=console
        )
        if kind == "crushed":
            options["value_range"] = "uint8"
        run = nearfar.pretrain(
            str(folder), out=Path(scratch) / "run", precision="32-true", **options
        )
        seconds = time.perf_counter() - began
        results = nearfar.evaluate(run, protocol=("knn",), console=console)
        return {
            "set": kind,
            "images": len(images),
            "channels": run.settings.channels,
            "views": run.settings.views,
            "epochs": epochs,
            "seed": seed,
            "seconds": round(seconds, 1),
            "knn": {row: results[row]["knn"] for row in ("raw_pixels", "untrained", "trained")},
        }


def table(path: Path) -> str:
    """The lines of a file as a table in Markdown."""
    lines = [
        "| files | channels | raw pixels | untrained | trained | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for line in map(json.loads, path.read_text().splitlines()):
        knn = [f"{line['knn'][row]:.3f}" for row in ("raw_pixels", "untrained", "trained")]
        lines.append(
            f"| {line['set']} | {line['channels']} | {' | '.join(knn)} | {line['seconds']:g} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("--only", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--epochs", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("bands.jsonl"))
    args = parser.parse_args()
    if args.data.endswith(".jsonl"):
        print(table(Path(args.data)))
        return
    images = open_images(args.data, split="train", image_size=SIZE, channels=3)
    images = images.subset(np.linspace(0, len(images) - 1, args.images).round().astype(int))
    for kind in args.only:
        line = json.dumps(measure(kind, images, args.epochs, args.seed))
        print(line, flush=True)
        with open(args.out, "a", encoding="utf-8") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
