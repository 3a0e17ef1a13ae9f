"""Ways to compute the same step on this machine's CPU, side by side: `python
benchmarks/kernels.py`.

Contenders take turns in one process, each round all of them, and the ratios are medians over rounds
of CPU time, which other work on the machine changes less than the time on the wall:
- the networks' forward and backward on 2 x 128 views: as they are, compiled by torch (inductor),
  with weights or images in another memory format, in bfloat16
- SimCLR's loss and its gradient, as it is and compiled
- a step of Muon: matrices of one shape in one batch, as it is, or all of them padded to one shape
The numbers are written to docs/results/kernels.json, and docs/step.md cites them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nearfar.losses import SimCLR
from nearfar.methods import Model, method_class
from nearfar.networks import build_backbone
from nearfar.training.environment import hardware, software
from nearfar.training.optimizers import build_optimizer, orthogonal

FILE = Path(__file__).resolve().parent.parent / "docs" / "results" / "kernels.json"
Run = Callable[[], Any]


def networks(encoder: str, size: int) -> nn.Module:
    torch.manual_seed(0)
    return Model(
        method_class("simclr")(), build_backbone(encoder, image_size=size, channels=3), 1024
    ).online.train()


def step_of(net: nn.Module, images: torch.Tensor, bfloat16: bool = False) -> Run:
    def run() -> None:
        net.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            out = net(images)
        out.float().square().mean().backward()

    return run


def of_networks(encoder: str, size: int, batch: int) -> dict[str, Run]:
    """Forward and backward; nearfar keeps the weights of convolutions in channels-last order, and
    images contiguous.
    """
    images = torch.randn(2 * batch, 3, size, size)
    compiled, half = networks(encoder, size), networks(encoder, size)
    compiled.compile()
    half.compile()
    contiguous = networks(encoder, size).to(memory_format=torch.contiguous_format)
    last = images.to(memory_format=torch.channels_last)
    return {
        "as it is": step_of(networks(encoder, size), images),
        "compiled": step_of(compiled, images),
        "bfloat16": step_of(networks(encoder, size), images, bfloat16=True),
        "bfloat16, compiled": step_of(half, images, bfloat16=True),
        "contiguous weights": step_of(contiguous, images),
        "channels-last images": step_of(networks(encoder, size), last),
    }


def of_loss(batch: int) -> dict[str, Run]:
    z1, z2 = (torch.randn(batch, 128, requires_grad=True) for _ in range(2))

    def run(loss: Callable) -> None:
        loss(z1, z2).backward()

    plain, compiled = SimCLR(), torch.compile(SimCLR())
    return {"as it is": lambda: run(plain), "compiled": lambda: run(compiled)}


def of_muon(encoder: str) -> dict[str, Run]:
    """A step of the optimiser, and the orthogonalisation alone, by shapes and padded to one
    batch.
    """
    net = networks(encoder, 32)
    for weights in net.parameters():
        weights.grad = torch.randn_like(weights)
    optimizer = build_optimizer("muon", net, lr=0.0, weight_decay=0.0)
    matrices = [p.grad.flatten(1) for p in net.parameters() if p.grad is not None and p.ndim > 1]
    matrices = [m.T if m.shape[0] > m.shape[1] else m for m in matrices]  # wide
    shapes = sorted({m.shape for m in matrices})
    rows, columns = max(s[0] for s in shapes), max(s[1] for s in shapes)

    def by_shape() -> None:
        for shape in shapes:
            orthogonal(torch.stack([m for m in matrices if m.shape == shape]))

    def padded() -> None:
        whole = torch.zeros(len(matrices), rows, columns)
        for place, m in zip(whole, matrices, strict=True):
            place[: m.shape[0], : m.shape[1]] = m
        orthogonal(whole)

    return {
        "by shape": by_shape,
        "padded to one batch": padded,
        "whole step of the optimiser": optimizer.step,
    }


def measure(contenders: dict[str, Run], rounds: int) -> dict[str, dict[str, float]]:
    """Seconds of CPU time of each contender, its speed relative to the first, and those until it
    ran first.
    """
    first: dict[str, float] = {}
    for name, run in contenders.items():
        began = time.perf_counter()
        run()
        first[name] = time.perf_counter() - began
        run()
        print(f"{name}: first in {first[name]:.1f} s", flush=True)
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            began = time.process_time()
            run()
            spent[name].append(time.process_time() - began)
    usual = spent[next(iter(contenders))]
    return {
        name: {
            "milliseconds": 1000 * statistics.median(times),
            "speed": statistics.median(a / b for a, b in zip(usual, times, strict=True)),
            "least": min(a / b for a, b in zip(usual, times, strict=True)),
            "most": max(a / b for a, b in zip(usual, times, strict=True)),
            "seconds_until_first": first[name],
        }
        for name, times in spent.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=128, help="images, each in two views")
    parser.add_argument("--encoders", nargs="+", default=["small", "medium"])
    parser.add_argument("--out", type=Path, default=FILE)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = (
        "1"  # or only the first run would show what compiling takes
    )
    load = os.getloadavg()[0]
    found: dict[str, Any] = {}
    for encoder in chosen.encoders:
        for size in (32,):
            found[f"{encoder}, {size} px"] = measure(
                of_networks(encoder, size, chosen.batch), chosen.rounds
            )
    found["loss of SimCLR, batch 256"] = measure(of_loss(256), 3 * chosen.rounds)
    for encoder in (*chosen.encoders, "resnet18"):
        found[f"muon, {encoder}"] = measure(of_muon(encoder), chosen.rounds)
    about = {
        "date": str(datetime.date.today()),
        "load": load,
        "threads": chosen.threads,
        "batch": chosen.batch,
    }
    about |= {"capability": torch.backends.cpu.get_cpu_capability(), **hardware(), **software()}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps({"about": about, "results": found}, indent=1) + "\n")
    for case, contenders in found.items():
        for name, one in contenders.items():
            spread = f"{one['speed']:.2f} ({one['least']:.2f} to {one['most']:.2f})"
            print(
                f"{case:28} {name:28} {one['milliseconds']:9.1f} ms  {spread}  first "
                f"{one['seconds_until_first']:.1f} s"
            )


if __name__ == "__main__":
    main()
