"""Rivals of the training step: the bare encoder, and a plain loop of lightly and
Lightning.

As a program it waits for lines and runs a round for each, so that rounds of several processes can
take turns: `python benchmarks/step_contenders.py lightly '{"encoder": "small", ...}'`.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

ANSWER = "seconds of this round: "
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)
LIGHTLY_WARM = 4  # steps of each round that are not timed: its workers start with the round
LIGHTLY_REST = (
    4  # batches left at the end of a round, so that the workers do not run out of work as it ends
)

Round = Callable[[], dict[str, float]]


def networks(method: str, encoder: str, image_size: int) -> nn.Module:
    """Backbone and projector, as the method wires them."""
    from nearfar.methods import Model, method_class
    from nearfar.networks import build_backbone

    torch.manual_seed(0)
    return Model(
        method_class(method)(), build_backbone(encoder, image_size=image_size, channels=3), 1024
    ).online


def bare(
    method: str, encoder: str, image_size: int, batch: int, steps: int, views: int = 2, **_: Any
) -> Round:
    """Forward and backward on views that are ready, with a gradient that is ready."""
    nets = networks(method, encoder, image_size).train()
    ready = torch.randn(views * batch, 3, image_size, image_size)
    gradient = 1e-3 * torch.randn_like(nets(ready).detach())

    def step() -> None:
        nets.zero_grad()
        nets(ready).backward(gradient)

    def run() -> dict[str, float]:
        step()  # not timed, like the first step of a round of the loop
        cpu, start = time.process_time(), time.perf_counter()
        for _ in range(steps):
            step()
        return {"wall": time.perf_counter() - start, "cpu": time.process_time() - cpu}

    return run


def lightly(
    method: str, encoder: str, image_size: int, batch: int, steps: int, threads: int, **_: Any
) -> Round:
    """SimCLR as lightly's documentation builds it, on the same networks, with as many workers as
    threads.

    Its transform has the operations of the plan "saclr-cifar". Progress bar, logger and checkpoints
    are off.
    """
    import pytorch_lightning
    from lightly.loss import NTXentLoss
    from lightly.transforms import SimCLRTransform
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    images = batch * (LIGHTLY_WARM + steps + LIGHTLY_REST)
    pixels = torch.randint(0, 256, (images, image_size, image_size, 3), dtype=torch.uint8)
    transform = SimCLRTransform(
        input_size=image_size,
        cj_bright=0.4,
        cj_contrast=0.4,
        cj_sat=0.4,
        cj_hue=0.1,
        min_scale=0.2,
        random_gray_scale=0.1,
        gaussian_blur=0.0,
        normalize={"mean": list(MEAN), "std": list(STD)},
    )

    class Pictures(Dataset):
        def __len__(self) -> int:
            return len(pixels)

        def __getitem__(self, i: int) -> tuple[list[torch.Tensor], int]:
            return transform(Image.fromarray(pixels[i].numpy())), i

    class SimCLR(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.nets = networks(method, encoder, image_size)
            self.criterion = NTXentLoss(temperature=0.2)

        def training_step(self, batch: Any, batch_index: int) -> torch.Tensor:
            (first, second), _ = batch
            return self.criterion(self.nets(first), self.nets(second))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.06, momentum=0.9, weight_decay=5e-4)

    class Stopwatch(pytorch_lightning.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            self.marks.append(time.perf_counter())

        def on_train_start(self, *_: Any) -> None:
            self.marks: list[float] = []

    model, watch = SimCLR(), Stopwatch()

    def run() -> dict[str, float]:
        loader = DataLoader(Pictures(), batch, shuffle=True, drop_last=True, num_workers=threads)
        trainer = pytorch_lightning.Trainer(
            accelerator="cpu",
            devices=1,
            max_steps=LIGHTLY_WARM + steps,
            callbacks=[watch],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, loader)
        return {"wall": watch.marks[-1] - watch.marks[LIGHTLY_WARM - 1]}

    return run


class Process:
    """A contender in a process of its own, which runs a round when it is called."""

    def __init__(
        self, python: Path | str, name: str, settings: dict, environment: dict[str, str]
    ) -> None:
        command = [str(python), __file__, name, json.dumps(settings)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.name = name

    def __call__(self) -> dict[str, float]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("round\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith(ANSWER):
                return json.loads(line.removeprefix(ANSWER))
        raise RuntimeError(f"{self.name} ended with code {self.process.wait()}, see above")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    contender, settings = {"bare": bare, "lightly": lightly}[sys.argv[1]], json.loads(sys.argv[2])
    torch.set_num_threads(settings["threads"])
    run = contender(**settings)
    for _ in sys.stdin:
        print(ANSWER + json.dumps(run()), flush=True)


if __name__ == "__main__":
    main()
