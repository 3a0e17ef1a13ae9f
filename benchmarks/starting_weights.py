"""Are starting weights worth having, and adapting them? CIFAR-10: supervised on five classes, used on the other five.

    python benchmarks/starting_weights.py ../shared/data/cifar10 --out runs/starting --epochs 10 --limit 10000

trains the small net on the labels of the first five classes, saves it as a folder that `--init` reads, and pretrains on
images of the other five without labels: from random weights, from those weights with the usual settings, and with
--adapt. Prints accuracies on the other five classes' test images; the images that were trained on fit the classifiers.
"""

from __future__ import annotations

import argparse
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


def train_supervised(images: Images, folder: Path, epochs: int) -> None:
    """Train the small net on labels (crops, flips, AdamW, one cycle) and save it with its normalisation."""
    torch.manual_seed(0)
    encoder = Encoder(build_backbone("small", image_size=32, channels=3), 32, 3, images.mean, images.std).train()
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
        print(f"supervised, epoch {epoch + 1}: {correct / (steps * 128):.3f} of the training images right", flush=True)
    save_encoder(folder, encoder.eval())


def main() -> None:
    """Train the weights unless they are there, then pretrain from them and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, default=Path("runs/starting"))
    parser.add_argument("--supervised-epochs", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--limit", type=int, default=10_000)
    given = parser.parse_args()
    train, test = (open_images(given.data, split=split) for split in ("train", "test"))
    weights = given.out / "weights"
    if not weights.is_dir():
        train_supervised(of_classes(train, range(5)), weights, given.supervised_epochs)
    train, test = of_classes(train, range(5, 10)), of_classes(test, range(5, 10))
    train = train.subset(range(given.limit))

    def report(name: str, encoder: object) -> None:
        fit, held = extract(encoder, train), extract(encoder, test)
        found = evaluate_features(fit, train.labels, held, test.labels, protocols=PROTOCOLS, seed=0)
        print(
            f"| {name} | " + " | ".join(f"{found[key]:.3f}" for key in found if not key.endswith("_std")) + " |",
            flush=True,
        )

    print("| | kNN | linear | 1 label a class | 5 labels a class |\n|---|---|---|---|---|")
    report("raw pixels", raw_pixels)
    report("starting weights", load_encoder(weights))
    for name, options in RUNS.items():
        options = options | ({"init": str(weights)} if "init" in options else {"encoder": "small"})
        shared = dict(method="simclr", epochs=given.epochs, precision="32-true")
        out = given.out / name.replace(" ", "-").replace(",", "")
        run = nearfar.pretrain(train, out=str(out), console=Console(quiet=True), **shared, **options)
        report(name, nearfar.load(run))


if __name__ == "__main__":
    main()
