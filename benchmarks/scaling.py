"""Bytes that processes exchange in a step, and state that losses keep per image: measured, into
docs/scaling.md.

python benchmarks/scaling.py # about two minutes of CPU time; starts 2, 4 and 8 processes one after
the other
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from nearfar.data import rank_rows
from nearfar.methods import Model, method_class, method_names
from nearfar.networks import build_backbone
from nearfar.training.processes import Process
from nearfar.training.step import GradientStep

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
METHODS = {"simclr": {}, "sigclr": {}, "saclr": {}, "moco-v2": dict(queue_size=512), "byol": {}}
WORLDS = (2, 4, 8)
CASES = (
    (256, 128),
    (1024, 128),
    (1024, 512),
    (4096, 128),
)  # images of the joined batch, width of the embeddings
KINDS = {
    "join_batches": "rows",
    "complete": "sums",
    "by_rows": "sums",
    "added_up": "sums",
    "sum_gradients": "gradients",
}


class Backbone(nn.Sequential):
    """A small stand-in: what is sent depends on the number of its parameters only."""

    num_features = 32

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(16, 32), nn.Tanh())


def count_bytes(counts: Counter[str]) -> None:
    """Wrap the collectives so that the bytes that this process receives are counted, by what they
    are for.
    """
    gather, reduce = dist.all_gather, dist.all_reduce

    def kind() -> str:
        frame = sys._getframe(2)
        while frame.f_code.co_name not in KINDS and frame.f_back:
            frame = frame.f_back
        return KINDS[frame.f_code.co_name]

    def all_gather(parts: list[torch.Tensor], own: torch.Tensor) -> None:
        counts[kind()] += (len(parts) - 1) * own.nbytes
        gather(parts, own)

    def all_reduce(own: torch.Tensor) -> None:  # in rings, the least that any algorithm needs
        world = dist.get_world_size()
        counts[kind()] += round(own.nbytes * 2 * (world - 1) / world)
        reduce(own)

    dist.all_gather, dist.all_reduce = all_gather, all_reduce


def step(name: str, batch: int, dim: int, rank: int, world: int) -> int:
    """Run one step of a method; returns the number of parameters whose gradients are summed."""
    torch.manual_seed(0)
    method = method_class(name)
    heads = {"projector": (dim,)} | (
        {"predictor": (dim,)} if "predictor" in method.__dataclass_fields__ else {}
    )
    chosen = method(**heads, **METHODS[name])
    model = Model(chosen, Backbone(), 10 * batch)
    process = Process(torch.device("cpu"), rank=rank, world_size=world)
    own = rank_rows(batch, rank, world)
    views = torch.randn(len(chosen.views), own.stop - own.start, 1, 4, 4)
    GradientStep(process, model)(
        lambda rows: list(views[:, rows]), torch.arange(own.start, own.stop), batch, seed=0
    )
    del model.loss  # the gradients of its parameters are complete on every process
    return sum(parameter.numel() for parameter in model.parameters() if parameter.grad is not None)


def work(rank: int, world: int, folder: str) -> None:
    """One of `world` processes: the bytes of every case, written by the first."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store{world}", rank=rank, world_size=world
    )
    counts: Counter[str] = Counter()
    count_bytes(counts)
    cases = []
    for name in METHODS:
        for batch, dim in CASES:
            counts.clear()
            parameters = step(name, batch, dim, rank, world)
            cases.append((name, batch, dim, parameters, dict(counts)))
    if rank == 0:
        torch.save(cases, f"{folder}/{world}.pt")
    dist.destroy_process_group()


def exchanged() -> list[str]:
    """The table of bytes."""
    lines = [
        "| method | batch | width | what | "
        + " | ".join(f"{world} processes" for world in WORLDS)
        + " |"
    ]
    lines += ["|---|---|---|---|" + "---|" * len(WORLDS)]
    with tempfile.TemporaryDirectory() as folder:
        for world in WORLDS:
            mp.spawn(work, (world, folder), nprocs=world)
        worlds = [torch.load(f"{folder}/{world}.pt") for world in WORLDS]
    for cases in zip(*worlds, strict=True):
        name, batch, dim, *_ = cases[0]
        for kind in ("rows", "sums"):
            counts = [case[4].get(kind, 0) for case in cases]
            if any(counts):
                lines.append(
                    f"| {name} | {batch} | {dim} | {kind} | {' | '.join(map(size, counts))} |"
                )
    for world, cases in zip(WORLDS, worlds, strict=True):
        for *_, parameters, counts in cases:
            assert counts["gradients"] == round(4 * parameters * 2 * (world - 1) / world)
    return lines


def parameters_of_encoders() -> list[str]:
    """The table of what gradients cost with encoders that people use."""
    lines = [
        "| encoder | parameters | gradients received per step, 2 processes | 8 processes |",
        "|---|---|---|---|",
    ]
    for name, pixels in (("small", 32), ("resnet18", 32), ("resnet50", 224)):
        count = sum(
            p.numel() for p in build_backbone(name, image_size=pixels, channels=3).parameters()
        )
        lines.append(
            f"| {name} | {count / 1e6:.2f} million | {size(4 * count)} | {size(round(7 * count))} |"
        )
    return lines


def kept() -> list[str]:
    """The table of what each method's loss keeps for every image: the growth of its buffers with
    their number.
    """
    lines = [
        "| method | buffers that grow | bytes per image | 10^6 images | 10^9 images |",
        "|---|---|---|---|---|",
    ]
    constant = []
    variants = [(name, {}) for name in method_names()] + [("saclr", {"scale": "row"})]
    for name, options in variants:
        few, many = (
            dict(method_class(name)(**options).setup(n).loss.named_buffers()) for n in (1000, 2000)
        )
        grown = {key: (many[key].nbytes - few[key].nbytes) / 1000 for key in many}
        grown = {key: each for key, each in grown.items() if each}
        shown = name + "".join(f" {key}={value}" for key, value in options.items())
        each = sum(grown.values())
        if each:
            lines.append(
                f"| {shown} | {', '.join(grown)} | {each:g} | {size(each * 1e6)} | "
                f"{size(each * 1e9)} |"
            )
        else:
            constant.append(shown)
    return [*lines, "", f"No state per image: {', '.join(constant)}."]


def size(count: float) -> str:
    """Bytes in words."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:g} B" if count else "-"


def main() -> None:
    """Measure, and write the tables into the page where they belong."""
    page = PAGE.read_text()
    for name, lines in (
        ("exchanged", exchanged()),
        ("gradients", parameters_of_encoders()),
        ("kept", kept()),
    ):
        table = "\n".join(lines)
        print(table, end="\n\n")
        begin, end = f"<!-- {name}: written by benchmarks/scaling.py -->", f"<!-- {name}: end -->"
        page = re.sub(
            f"{begin}.*?{end}",
            lambda _, t=table, b=begin, e=end: f"{b}\n{t}\n{e}",
            page,
            flags=re.DOTALL,
        )
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
