"""Layouts side by side: cluster embedding, openTSNE, UMAP and the projector; into docs/layouts.md.

python benchmarks/layouts.py DATA RUNS # folders with flowers, imagenette, cifar10: images and runs
python benchmarks/layouts.py DATA RUNS --rows 2000 20000 # time and quality against the number of
rows, in addition python benchmarks/layouts.py DATA RUNS --images 0 --rows 1000000 # this alone; the
file keeps its other numbers Training images alone. Needs `pip install -e .[benchmarks]` and
Debian's package dataset-fashion-mnist. A data set that has no run is left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits

import nearfar
from nearfar.data import open_images
from nearfar.evaluation import extract, extract_view
from nearfar.maps import ClusterEmbedding, fit_projector, map_quality
from nearfar.maps.cluster_embedding import ATTRACTING
from nearfar.maps.columns import PALETTE
from nearfar.neighbours import nearest_rows
from nearfar.neighbours.approximate import approximate_rows
from nearfar.training.plan import chosen_views

DOCS = Path(__file__).parents[1] / "docs"
FASHION = Path("/usr/share/datasets/fashion-mnist")
VIEWS = 8
MOST_EXACT, MOST_SEEDS = 20_000, 5_000  # rows
SEEDS = 3
Rows = tuple[torch.Tensor, np.ndarray]
Layout = Callable[[np.ndarray, int], np.ndarray]  # rows and seed -> coordinates


def opentsne(rows: np.ndarray, seed: int) -> np.ndarray:
    from openTSNE import TSNE

    return np.asarray(TSNE(metric="cosine", n_jobs=1, random_state=seed).fit(rows))


def umap(rows: np.ndarray, seed: int) -> np.ndarray:
    from umap import UMAP

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return UMAP(metric="cosine", n_jobs=1, random_state=seed).fit_transform(rows)


def ours(**values: Any) -> Layout:
    return lambda rows, seed: ClusterEmbedding(
        metric="cosine", random_state=seed, **values
    ).fit_transform(rows)


def ours_approximate(rows: np.ndarray, seed: int) -> np.ndarray:
    found, _ = approximate_rows(torch.from_numpy(rows), k=ATTRACTING)
    return (
        ClusterEmbedding(metric="cosine", random_state=seed).fit(rows, neighbours=found).embedding_
    )


def ours_random(rows: np.ndarray, seed: int) -> np.ndarray:
    return ours(init=1e-4 * np.random.default_rng(seed).normal(size=(len(rows), 2)))(rows, seed)


PEERS = {"openTSNE": opentsne, "UMAP": umap}
OURS = "cluster embedding"
LAYOUTS = {OURS: ours(), **PEERS}
OTHERS = {
    "alpha 0.01": ours(alpha=0.01),
    "alpha 0.1": ours(alpha=0.1),
    "alpha 0.5": ours(alpha=0.5),
    "15 equal neighbours": ours(perplexity=15, n_neighbors=15),
    "perplexity 30 of 90 neighbours": ours(perplexity=30, n_neighbors=90),
    "500 steps": ours(max_iter=500),
    "approximate neighbours": ours_approximate,
    "random start": ours_random,
}


def digits() -> Rows:
    rows, labels = load_digits(return_X_y=True)
    return torch.from_numpy(rows).float(), labels.astype(np.int64)


def fashion(most: int) -> Rows:
    """Training images, as rows of pixels in 0..1."""
    pixels, labels = (
        np.frombuffer(
            gzip.decompress((FASHION / f"train-{part}.gz").read_bytes()), np.uint8, offset=offset
        )
        for part, offset in (("images-idx3-ubyte", 16), ("labels-idx1-ubyte", 8))
    )
    rows = torch.from_numpy(pixels.reshape(-1, 784)[:most].astype(np.float32) / 255)
    return rows, labels[:most].astype(np.int64)


def featured(run: nearfar.Run, images: nearfar.data.Images, rows: int) -> Rows:
    """Features of so many augmented views of images, and their labels."""
    plan, found = chosen_views(run.settings.given("views"), run.settings), []
    for number in range(-(-rows // len(images))):
        generator = torch.Generator().manual_seed(number)
        found.append(extract_view(run.encoder, images, plan.pick([number % len(plan)]), generator))
    return torch.cat(found)[:rows], np.tile(images.labels, len(found))[:rows]


def projected(run: nearfar.Run, images: nearfar.data.Images) -> Layout:
    """The layout of SACLR's Figure 2, with the views that it learns from."""
    plan = chosen_views(run.settings.given("views"), run.settings)

    def lay_out(rows: np.ndarray, seed: int) -> np.ndarray:
        streams = [torch.Generator().manual_seed(number) for number in range(VIEWS)]
        seen = [
            extract_view(run.encoder, images, plan.pick([i % len(plan)]), one)
            for i, one in enumerate(streams)
        ]
        features = torch.from_numpy(rows)
        return fit_projector(torch.stack(seen), features, seed=seed)(features).numpy()

    return lay_out


def measure(name: str, rows: Rows, layouts: dict, places: dict[str, np.ndarray]) -> Iterator[dict]:
    exact = len(rows[0]) <= MOST_EXACT
    near = nearest_rows(rows[0], k=15).index if exact else approximate_rows(rows[0], k=15)[0].index
    for layout, lay_out in layouts.items():
        numbers: list[dict] = []
        for seed in range(SEEDS if len(rows[0]) <= MOST_SEEDS else 1):
            began = time.process_time()
            places[layout] = lay_out(rows[0].numpy(), seed)
            seconds = time.process_time() - began
            points = torch.from_numpy(np.array(places[layout], dtype=np.float32))
            numbers.append(
                {"seconds": seconds, **map_quality(rows[0], points, rows[1], near=near).numbers()}
            )
        means = {key: round(float(np.mean([one[key] for one in numbers])), 4) for key in numbers[0]}
        yield {"data": name, "layout": layout, "seeds": len(numbers), **means}


def write(docs: Path, results: list[dict]) -> None:
    """Write numbers beside those of other data that are there, and the page of all."""
    file = docs / "results" / "layouts.json"
    before = json.loads(file.read_text()) if file.is_file() else []
    results = [
        row for row in before if row["data"] not in {new["data"] for new in results}
    ] + results
    file.write_text(json.dumps(results, indent=1) + "\n")
    pictures = {row["data"]: picture_of(row["data"]) for row in results}
    (docs / "layouts.md").write_text(
        page(results, {n: one for n, one in pictures.items() if (docs / one).is_file()})
    )


def draw(path: Path, places: dict[str, np.ndarray], labels: np.ndarray) -> None:
    """All layouts of a data set side by side, in 64 colours to keep the file small."""
    figure = matplotlib.figure.Figure(figsize=(3 * len(places), 3.2), dpi=90, layout="constrained")
    for axes, (title, points) in zip(
        np.atleast_1d(figure.subplots(1, len(places))), places.items(), strict=True
    ):
        order = np.random.default_rng(0).permutation(len(points))
        colours = np.array(PALETTE)[labels % len(PALETTE)]
        axes.scatter(
            *points[order].T, s=max(0.4, 3000 / len(points)), c=colours[order], linewidths=0
        )
        axes.set_title(title, fontsize=10)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_axis_off()
    figure.savefig(path)
    Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)


def page(results: list[dict], pictures: dict[str, str]) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("openTSNE", "umap-learn", "torch"))
    lines = [
        "# Layouts side by side",
        "",
        "Written by `benchmarks/layouts.py`, with `docs/results/layouts.json`: seconds of "
        "one core, defaults of each",
        "library, cosine distances, training images. *Kept*: share of the 15 nearest "
        "neighbours that the map keeps.",
        "*kNN*: accuracy of a vote of the 15 nearest other images. The projector, if "
        "shown, learns from eight views of",
        "each image; its time includes their features. The others see only the features of "
        "the images. The last rows",
        f"vary one setting of the cluster embedding. Up to {MOST_SEEDS} rows, the numbers "
        f"are means of {SEEDS} seeds.",
        "Rows of views beyond 50 000 hold several views of each image. Which layout to use "
        "when: [maps.md](maps.md).",
        f"{versions}; {processor()}, which other programs used at the same time.",
    ]
    for name in dict.fromkeys(row["data"] for row in results):
        rows = [row for row in results if row["data"] == name]
        accuracy = f"kNN accuracy on the features {100 * rows[0]['knn_features']:.1f} %"
        lines += ["", f"## {name}", "", f"{rows[0]['images']:.0f} rows; {accuracy}.", ""]
        lines += [
            "| layout | seconds | kept | trustworthiness | kNN |",
            "|---|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {row['layout']} | {row['seconds']:.1f} | {100 * row['neighbours_kept']:.1f} % "
            f"| {row['trustworthiness']:.3f} | {100 * row['knn_map']:.1f} % |"
            for row in rows
        ]
        if name in pictures:
            lines += ["", f"![{name}, one figure per layout, coloured by class]({pictures[name]})"]
    return "\n".join(lines) + "\n"


def picture_of(name: str) -> str:
    return f"results/layouts-{name.lower()}.png"


def processor() -> str:
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return names[0] if names else "an unknown processor"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--images", type=int, default=5000, help="of each data set, at most")
    parser.add_argument(
        "--rows", type=int, nargs="*", default=[], help="features of so many views of CIFAR-10"
    )
    parser.add_argument("--docs", type=Path, default=DOCS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    umap(
        np.random.default_rng(0).normal(size=(200, 5)), 0
    )  # compiled now, not within a measurement

    sets: dict[str, tuple[Rows, dict]] = {}
    if given.images:
        sets["Digits"] = digits(), LAYOUTS | OTHERS
        sets["Fashion-MNIST"] = fashion(given.images), LAYOUTS | OTHERS
    for name, title in (
        ("flowers", "Flowers"),
        ("imagenette", "Imagenette"),
        ("cifar10", "CIFAR-10"),
    ):
        if (given.runs / name).is_dir():
            run = nearfar.Run.of(given.runs / name)
            images = open_images(given.data / name, split="train", **run.settings.reading)
            if not given.images:
                continue
            few = images.subset(range(min(given.images, len(images))))
            features: Rows = (extract(run.encoder, few), few.labels)
            sets[title] = (features, LAYOUTS | {"projector": projected(run, few)} | OTHERS)
    results: list[dict] = []
    (given.docs / "results").mkdir(exist_ok=True)

    def keep(measured: Iterator[dict]) -> None:
        for row in measured:
            print(json.dumps(row), flush=True)
            results.append(row)
            write(given.docs, results)  # a million rows take hours

    for name, (rows, layouts) in sets.items():
        places: dict[str, np.ndarray] = {}
        keep(measure(name, rows, layouts, places))
        draw(
            given.docs / picture_of(name),
            {key: places[key] for key in places if key not in OTHERS},
            rows[1],
        )
    for count in given.rows:
        some = {OURS: ours()} if count <= MOST_EXACT else {}
        some |= {"approximate neighbours": ours_approximate, **PEERS}
        keep(measure(f"{title}, {count} views", featured(run, images, count), some, {}))


if __name__ == "__main__":
    main()
