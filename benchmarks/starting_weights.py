"""Effect of starting weights, and of adapting them. CIFAR-10: supervised on five classes, used on the other five.

    python benchmarks/starting_weights.py ../shared/data/cifar10 --epochs 10 --limit 10000 --seed 0
    python benchmarks/starting_weights.py runs/starting/results.jsonl     # the table, means over seeds

The benchmark trains the small net on the labels of the first five classes, saves it in a folder for `--init`, and
pretrains on images of the other five without labels: from random weights, from those weights with the usual settings,
and with --adapt. Each case appends a line with accuracies on the other five classes' test images; the classifiers are
trained on the images of the pretraining.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

import nearfar
from nearfar.data import Images, open_images
from nearfar.evaluation import evaluate_features, extract, raw_pixels
from nearfar.networks import Encoder, build_backbone, load_encoder, save_encoder

PROTOCOLS = ("knn", "linear", "few")
RUNS = {
    "random weights": {},
    "starting weights, usual settings": {"init": True},
    "starting weights, --adapt": {"init": True, "adapt": True},
}


def of_classes(images: Images, classes: range) -> Images:
    """Return the images of some classes."""
    return images.subset(np.flatnonzero(np.isin(images.labels, classes)))


def train_supervised(images: Images, folder: Path, epochs: int, seed: int) -> None:
    """Train the small net on labels (crops, flips, AdamW, one cycle) and save it with its
    normalisation.
    """
    torch.manual_seed(seed)
    encoder = Encoder(
        build_backbone("small", image_size=32, channels=3), 32, 3, images.mean, images.std
    ).train()
    head = nn.Linear(encoder.num_features, 5)
    weights = [*encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-3, weight_decay=0.05)
    steps = len(images) // 128
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=epochs * steps)
    labels = torch.as_tensor(images.labels)
    for epoch in range(epochs):
        correct = 0
        for rows in torch.randperm(len(images))[: steps * 128].view(steps, 128):
            pixels = F.pad(images.pixels[rows].float() / 255, [4] * 4, mode="reflect")
            top, left = torch.randint(9, (2,)).tolist()
            pixels = pixels[:, :, top : top + 32, left : left + 32]
            pixels = pixels.flip(-1) if torch.rand(()) < 0.5 else pixels
            logits = head(encoder(pixels))
            optimizer.zero_grad()
            F.cross_entropy(logits, labels[rows]).backward()
            optimizer.step()
            cycle.step()
            correct += int((logits.argmax(1) == labels[rows]).sum())
        print(
            f"supervised, epoch {epoch + 1}: {correct / (steps * 128):.3f} of the training "
            f"images right",
            flush=True,
        )
    save_encoder(folder, encoder.eval())


def table(path: Path) -> str:
    """Means and deviations over seeds as a table in Markdown."""
    found: dict[str, list[dict[str, float]]] = {}
    for line in map(json.loads, path.read_text().splitlines()):
        found.setdefault(line["name"], []).append(line)
    rows = [
        "| | seeds | kNN | linear | 1 label a class | 5 labels a class |",
        "|---|---|---|---|---|---|",
    ]
    for name, lines in found.items():
        values = [
            100 * np.array([line[key] for line in lines])
            for key in ("knn", "linear", "one_label", "five_labels")
        ]
        cells = [
            f"{each.mean():.1f} ± {each.std(ddof=1):.1f}" if len(each) > 1 else f"{each[0]:.1f}"
            for each in values
        ]
        rows.append(f"| {name} | {len(lines)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """Train the weights unless they are there, then pretrain from them; or print the table of a
    file.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="or a file of lines, to print its table")
    parser.add_argument("--out", type=Path, default=Path("runs/starting"))
    parser.add_argument("--supervised-epochs", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--limit", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.data.endswith(".jsonl"):
        print(table(Path(given.data)))
        return
    train, test = (open_images(given.data, split=split) for split in ("train", "test"))
    weights = given.out / f"weights-{given.seed}"
    if not weights.is_dir():
        train_supervised(of_classes(train, range(5)), weights, given.supervised_epochs, given.seed)
    train, test = of_classes(train, range(5, 10)), of_classes(test, range(5, 10))
    train = train.subset(range(given.limit))

    def report(name: str, encoder: object) -> None:
        fit, held = extract(encoder, train), extract(encoder, test)
        found = evaluate_features(
            fit, train.labels, held, test.labels, protocols=PROTOCOLS, seed=given.seed
        )
        line = {"name": name, "seed": given.seed, **found}
        with (given.out / "results.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)

    report("raw pixels", raw_pixels)
    report("starting weights", load_encoder(weights))
    for name, options in RUNS.items():
        options = options | ({"init": str(weights)} if "init" in options else {"encoder": "small"})
        shared = dict(method="simclr", epochs=given.epochs, precision="32-true", seed=given.seed)
        out = given.out / f"{name}-{given.seed}".replace(" ", "-").replace(",", "")
        run = nearfar.pretrain(
            train, out=str(out), console=Console(quiet=True), **shared, **options
        )
        report(name, nearfar.load(run))


if __name__ == "__main__":
    main()
