"""Layouts side by side: stochastic cluster embedding, openTSNE, UMAP and the projector; into docs/layouts.md.

python benchmarks/layouts.py RUN CIFAR10    # a run of 32 px, the folder of the images; ten minutes of one core
Needs `pip install -e .[benchmarks]` and Debian's package dataset-fashion-mnist.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import matplotlib.figure
import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits

import nearfar
from nearfar.data import open_images
from nearfar.evaluation import extract, extract_view
from nearfar.maps import ClusterEmbedding, fit_projector, map_quality
from nearfar.maps.columns import PALETTE
from nearfar.training.plan import chosen_views

DOCS = Path(__file__).parents[1] / "docs"
FASHION = Path("/usr/share/datasets/fashion-mnist")
VIEWS = 8
Rows = tuple[torch.Tensor, np.ndarray]


def opentsne(rows: np.ndarray) -> np.ndarray:
    from openTSNE import TSNE

    return np.asarray(TSNE(metric="cosine", n_jobs=1, random_state=0).fit(rows))


def umap(rows: np.ndarray) -> np.ndarray:
    from umap import UMAP

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return UMAP(metric="cosine", n_jobs=1, random_state=0).fit_transform(rows)


def cluster(**values: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda rows: ClusterEmbedding(metric="cosine", **values).fit_transform(rows)


LAYOUTS = {
    "cluster embedding": cluster(),
    "cluster embedding, alpha 0": cluster(alpha=0.0),
    "openTSNE": opentsne,
    "UMAP": umap,
}


def digits() -> Rows:
    rows, labels = load_digits(return_X_y=True)
    return torch.from_numpy(rows).float(), labels.astype(np.int64)


def fashion(most: int) -> Rows:
    """The test images, as rows of pixels in 0..1."""
    pixels, labels = (
        np.frombuffer(gzip.decompress((FASHION / f"t10k-{part}.gz").read_bytes()), np.uint8, offset=offset)
        for part, offset in (("images-idx3-ubyte", 16), ("labels-idx1-ubyte", 8))
    )
    rows = torch.from_numpy(pixels.reshape(-1, 784).astype(np.float32) / 255)
    return rows[:most], labels[:most].astype(np.int64)


def projected(run: nearfar.Run, images: nearfar.data.Images) -> Callable[[np.ndarray], np.ndarray]:
    """The map's usual layout, with the views that it learns from."""
    plan = chosen_views(run.settings.given("views"), run.settings)

    def lay_out(rows: np.ndarray) -> np.ndarray:
        streams = [torch.Generator().manual_seed(number) for number in range(VIEWS)]
        seen = [extract_view(run.encoder, images, plan.pick([i % len(plan)]), one) for i, one in enumerate(streams)]
        features = torch.from_numpy(rows)
        return fit_projector(torch.stack(seen), features)(features).numpy()

    return lay_out


def measure(name: str, rows: Rows, layouts: dict, places: dict[str, np.ndarray]) -> list[dict]:
    found = []
    for layout, lay_out in layouts.items():
        began = time.process_time()
        places[layout] = lay_out(rows[0].numpy())
        seconds = time.process_time() - began
        quality = map_quality(rows[0], torch.from_numpy(np.array(places[layout], dtype=np.float32)), rows[1])
        found.append({"data": name, "layout": layout, "seconds": round(seconds, 1), **quality.numbers()})
        print(json.dumps(found[-1]), flush=True)
    return found


def draw(path: Path, places: dict[str, np.ndarray], labels: np.ndarray) -> None:
    """All layouts of a data set side by side, in 64 colours to keep the file small."""
    figure = matplotlib.figure.Figure(figsize=(3 * len(places), 3.2), dpi=90, layout="constrained")
    for axes, (title, points) in zip(np.atleast_1d(figure.subplots(1, len(places))), places.items(), strict=True):
        order = np.random.default_rng(0).permutation(len(points))
        colours = np.array(PALETTE)[labels % len(PALETTE)]
        axes.scatter(*points[order].T, s=max(0.4, 3000 / len(points)), c=colours[order], linewidths=0)
        axes.set_title(title, fontsize=10)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_axis_off()
    figure.savefig(path)
    Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)


def page(results: list[dict], pictures: dict[str, str]) -> str:
    lines = [
        "# Layouts side by side",
        "",
        "Written by `benchmarks/layouts.py`, with `docs/results/layouts.json`: seconds on one core, defaults of each",
        "library, cosine distances. *Kept*: share of the 15 nearest neighbours that the map keeps. *kNN*: accuracy of",
        "a vote of the 15 nearest other images. The projector, if shown, learns from eight views of each image;",
        "its time includes their features. The others see only the features of the images. Which layout to use when:",
        "[maps.md](maps.md).",
    ]
    for name, picture in pictures.items():
        rows = [row for row in results if row["data"] == name]
        lines += [
            "",
            f"## {name}",
            "",
            f"{rows[0]['images']} rows; kNN accuracy on the features {100 * rows[0]['knn_features']:.1f} %.",
            "",
        ]
        lines += ["| layout | seconds | kept | trustworthiness | kNN |", "|---|---:|---:|---:|---:|"]
        lines += [
            f"| {row['layout']} | {row['seconds']:.1f} | {100 * row['neighbours_kept']:.1f} % "
            f"| {row['trustworthiness']:.3f} | {100 * row['knn_map']:.1f} % |"
            for row in rows
        ]
        lines += ["", f"![{name}, one figure per layout, coloured by class]({picture})"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--images", type=int, default=10_000, help="of Fashion-MNIST and of CIFAR-10, at most")
    parser.add_argument("--docs", type=Path, default=DOCS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    run = nearfar.Run(given.run)
    umap(np.random.default_rng(0).normal(size=(200, 5)))  # compiled now, not within a measurement

    images = open_images(given.data, split="test", image_size=run.settings.image_size, channels=3)
    images = images.subset(range(min(given.images, len(images))))
    features: Rows = (extract(run.encoder, images), images.labels)
    sets: dict[str, tuple[Rows, dict]] = {
        "Digits": (digits(), LAYOUTS),
        "Fashion-MNIST": (fashion(given.images), LAYOUTS),
        "CIFAR-10 features": (features, {"projector": projected(run, images), **LAYOUTS}),
    }
    results, pictures = [], {}
    (given.docs / "results").mkdir(exist_ok=True)
    for name, (rows, layouts) in sets.items():
        places: dict[str, np.ndarray] = {}
        results += measure(name, rows, layouts, places)
        pictures[name] = f"results/layouts-{name.split()[0].lower()}.png"
        draw(given.docs / pictures[name], places, rows[1])
    (given.docs / "results" / "layouts.json").write_text(json.dumps(results, indent=1) + "\n")
    (given.docs / "layouts.md").write_text(page(results, pictures))


if __name__ == "__main__":
    main()
