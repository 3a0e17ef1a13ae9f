"""Features that could propose edited copies at less cost than SIFT on every image: recall of the nearest, and time.

    python benchmarks/edited_proposals.py DATA --out docs/results/edited-proposals.json    # DATA holds imagenette/

The last 1200 training photographs of Imagenette, which the net for edits has not seen, with the edits of
benchmarks/edited_copies.py (seed 0, on which limits are chosen), among others without an edit. Pairs of an image and its
edit count if local features and pixels confirm them. Recall: how many of these have one image among the k nearest of the
other; and at a tenth: how many are more alike than all but a tenth of the images without their edits are to their nearest.
Local features are compared by VLAD without projection, as they are and mirrored. Milliseconds of the processor for an
image, of the features alone.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from edited_copies import FURTHER, PROTOCOL, is_called_copy, photographs
from PIL import Image
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor
from torch.nn.functional import interpolate, normalize

import nearfar
from nearfar.device import hardware
from nearfar.embeddings.untrained import COPIES
from nearfar.neighbours.copies import turned
from nearfar.neighbours.edit_maps import MIRRORED, root_descriptors
from nearfar.neighbours.edited_copies import FARTHER, vlad
from nearfar.networks import join_encoders, named_encoder
from nearfar.networks.edit_net import edit_features, edit_net

SIDE = 128  # pixels at which `duplicates` opens photographs
WHOLE = 64**2 / (64**2 + 96**2)  # share of the time of the net for edits without parts
CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1), (0.5, 0.5))
Pair = tuple[str, int, int]
Local = tuple[np.ndarray, np.ndarray]


def edited(images: Sequence[Image.Image], chance: np.random.Generator, groups: int) -> Any:
    """Images, the pairs of them that are edited copies by local features and pixels, and the
    positions of those that are no edits.
    """
    made, pairs, plain = list[Image.Image](), list[Pair](), list[int]()
    for number, image in enumerate(images):
        kinds = PROTOCOL if number < groups else FURTHER if number < 2 * groups else {}
        original = len(made)
        plain.append(original)
        made.append(image)
        for kind, edit in kinds.items():
            version = edit(image, chance)
            if is_called_copy(image, version):
                pairs.append((kind, original, len(made)))
            made.append(version)
    return made, pairs, plain


def square(image: Image.Image) -> Tensor:
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    centre = image.crop((left, top, left + side, top + side)).resize((SIDE, SIDE))
    return torch.from_numpy(np.asarray(centre).transpose(2, 0, 1).copy())


def cropped(pixels: Tensor, across: float, down: float) -> Tensor:
    """A part of 0.6 of the sides, enlarged."""
    part = round(0.6 * SIDE)
    x, y = round((SIDE - part) * across), round((SIDE - part) * down)
    shown = pixels[..., y : y + part, x : x + part].float()
    return interpolate(shown, (SIDE, SIDE), mode="bilinear").round().byte()


def by_net(net: torch.nn.Module, pixels: Tensor) -> dict[str, tuple[float, Tensor]]:
    """Likeness of all images by their features: upright, in eight orientations, by parts too."""

    def features(some: Tensor) -> Tensor:
        with torch.inference_mode():
            return normalize(torch.cat([net(part) for part in some.split(256)]), dim=1)

    start = time.process_time()
    own = features(pixels)
    cost = 1e3 * (time.process_time() - start) / len(pixels)
    turns = [
        features(torch.from_numpy(turned(pixels.numpy(), turn))) @ own.T for turn in range(1, 8)
    ]
    parts = [features(cropped(pixels, *corner)) @ own.T for corner in CORNERS]
    upright = own @ own.T
    oriented = torch.stack([upright, *turns]).amax(0)
    return {
        "upright": (cost, upright),
        "8 orientations": (8 * cost, oriented),
        "8 orientations and 5 parts": (13 * cost, torch.stack([oriented, *parts]).amax(0)),
    }


def by_edit_net(pixels: Tensor) -> dict[str, tuple[float, Tensor]]:
    """Likeness by the net for edits: of whole images, and of parts of one and the whole other."""
    net = edit_net()
    start = time.process_time()
    made = [edit_features(net, some) for some in pixels.split(64)]
    cost = 1e3 * (time.process_time() - start) / len(pixels)
    whole, parts = (torch.cat(vectors) for vectors in zip(*made, strict=True))
    alike = whole @ whole.T
    by_part = torch.stack([part @ whole.T for part in parts.unbind(1)]).amax(0) - FARTHER
    return {
        "whole": (cost * WHOLE, alike),
        "whole and 5 parts": (cost, torch.maximum(alike, torch.maximum(by_part, by_part.T))),
    }


def by_local(
    images: Sequence[Image.Image], side: int, describe: Callable[[np.ndarray], Local]
) -> tuple[float, Tensor]:
    """Likeness by local features of images at a side, as they are and mirrored, and their time."""
    gray = []
    for image in images:
        small = image.convert("L")
        small.thumbnail((side, side), Image.Resampling.BOX)
        gray.append(np.array(small))
    start = time.process_time()
    both = [describe(plane) for plane in gray]
    cost = 1e3 * (time.process_time() - start) / len(gray)
    rows, mirrored = zip(*both, strict=True)
    every = np.concatenate(rows)
    some = every[np.random.default_rng(0).permutation(len(every))[:50_000]]
    clusters = MiniBatchKMeans(64, batch_size=4096, n_init=1, random_state=0).fit(some)
    words = clusters.cluster_centers_.astype(np.float32)
    own, other = (
        normalize(torch.from_numpy(vlad(some, words)), dim=1) for some in (rows, mirrored)
    )
    return cost, torch.maximum(own @ own.T, other @ own.T)


def sift(most: int) -> Callable[[np.ndarray], Local]:
    finder = cv2.SIFT_create(nfeatures=most, enable_precise_upscale=True)

    def describe(gray: np.ndarray) -> Local:
        _, described = finder.detectAndCompute(gray, None)
        numbers = np.zeros((0, 128)) if described is None else described[:most]
        rows = root_descriptors(numbers.astype(np.uint8))
        return rows, rows[:, MIRRORED]

    return describe


def orb(most: int) -> Callable[[np.ndarray], Local]:
    finder = cv2.ORB_create(nfeatures=most, fastThreshold=10, edgeThreshold=15)

    def describe(gray: np.ndarray) -> Local:
        both = []
        for plane in (gray, np.ascontiguousarray(gray[:, ::-1])):
            _, described = finder.detectAndCompute(plane, None)
            bits = np.zeros((0, 256)) if described is None else np.unpackbits(described, axis=1)
            both.append(bits.astype(np.float32) / 8 - 1 / 16)
        return both[0], both[1]

    return describe


def measured(
    cost: float, likeness: Tensor, pairs: Sequence[Pair], plain: Sequence[int]
) -> dict[str, Any]:
    """Recall of pairs among the nearest of either image, by kind among ten, and where a tenth of
    the images that are no edits are looked at.
    """
    likeness = likeness.clone().fill_diagonal_(-9)
    limit = float(likeness[plain][:, plain].amax(1).quantile(0.9))
    rank = np.array(
        [
            min(int((likeness[i] > likeness[i, j]).sum()) for i, j in ((a, b), (b, a)))
            for _, a, b in pairs
        ]
    )
    kinds = np.array([kind for kind, _, _ in pairs])
    alike = np.array([max(float(likeness[a, b]), float(likeness[b, a])) for _, a, b in pairs])
    return {
        "ms": round(cost, 2),
        **{f"recall at {k}": round(float((rank < k).mean()), 4) for k in (4, 10, 30)},
        "recall at a tenth": round(float((alike > limit).mean()), 4),
        "of each kind at a tenth": {
            kind: round(float((alike[kinds == kind] > limit).mean()), 4)
            for kind in dict.fromkeys(kinds)
        },
        "of each kind at 10": {
            kind: round(float((rank[kinds == kind] < 10).mean()), 4)
            for kind in dict.fromkeys(kinds)
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with imagenette/")
    parser.add_argument("--groups", type=int, default=30, help="of either kind of edits")
    parser.add_argument("--others", type=int, default=600)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    count = 2 * args.groups + args.others
    photos = photographs(args.data, "held-out", np.random.default_rng(0), count)
    images, pairs, plain = edited(photos, np.random.default_rng([0, 1]), args.groups)
    pixels = torch.stack([square(image) for image in images])
    nets = {
        "colours and edges": join_encoders(list(COPIES.items()), SIDE, 3),
        "net of the package": named_encoder("nearfar", SIDE, 3).eval(),
    }
    likeness = {
        f"{name}, {views}": by
        for name, net in nets.items()
        for views, by in by_net(net, pixels).items()
    }
    likeness |= {f"net for edits, {views}": by for views, by in by_edit_net(pixels).items()}
    result: dict[str, Any] = {
        "date": str(datetime.date.today()),
        "seed": 0,
        "split": "held-out",
        "processor": f"{hardware()['processor']}, one thread, shared",
        "versions": {"nearfar": nearfar.__version__, "opencv": cv2.__version__},
        "images": len(images),
        "pairs": len(pairs),
        "proposals": {name: measured(*by, pairs, plain) for name, by in likeness.items()},
    }
    for name, side, describe in (
        ("ORB, 300 at 320 px", 320, orb(300)),
        ("SIFT, 100 at 112 px", 112, sift(100)),
        ("SIFT, 100 at 160 px", 160, sift(100)),
        ("SIFT, 200 at 320 px", 320, sift(200)),
    ):
        result["proposals"][name] = measured(*by_local(images, side, describe), pairs, plain)
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
