"""Accuracy of an encoder after some seconds of one core, for given settings: one run, one line of JSON.

    OMP_NUM_THREADS=1 python benchmarks/photographs.py DATA --name "patches, Muon" --net "k4s4w64|64,256" \
        --optimizer muon --lr 0.02 --weight-decay 0.01 --seconds 180 --out runs/photographs.jsonl

DATA holds training images with labels. 2000 of them are the queries; the others are trained on and form the bank of the
kNN classifier, so no test image influences a choice. The time is CPU time, which other processes on the machine hardly
change. Given a file of such lines in place of DATA, it prints their table, as in docs/photographs.md.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_swa_avg_fn

from nearfar.allocator import reuse_memory
from nearfar.data import Images, open_images
from nearfar.evaluation import extract, knn_accuracy, linear_accuracy
from nearfar.methods import Model, method_class
from nearfar.networks import whiten_stem
from nearfar.networks.small import BasicBlock, SmallNet
from nearfar.training.optimizers import build_optimizer
from nearfar.views import View, ViewPlan, make_views, plan

QUERIES = 2000


class PatchNet(nn.Module):
    """A stem of any kernel, stride and width, then basic blocks: "k4s4w64|64,256" has a 4x4 stem
    and two blocks.

    "k4s4w64|64,256+512" ends with a 1x1 convolution to 512 features.
    """

    def __init__(self, spec: str, channels: int) -> None:
        super().__init__()
        stem, _, rest = spec.partition("|")
        widths, _, last = rest.partition("+")
        kernel, stride, width = map(int, re.findall(r"\d+", stem))
        padding = (kernel - 1) // 2 if kernel % 2 else (kernel - stride) // 2
        self.conv = nn.Conv2d(channels, width, kernel, stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(width)
        sizes = [width, *map(int, widths.split(","))]
        self.blocks = nn.Sequential(*[BasicBlock(a, b) for a, b in pairwise(sizes)])
        self.num_features = int(last or sizes[-1])
        if last:
            wide = nn.Conv2d(sizes[-1], self.num_features, 1, bias=False)
            self.blocks.extend([wide, nn.BatchNorm2d(self.num_features), nn.ReLU(inplace=True)])
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return the mean of the last feature map."""
        out = self.blocks(F.relu_(self.norm(self.conv(images))))
        return F.avg_pool2d(out, out.shape[2:]).flatten(1)


def build(name: str, size: int, channels: int) -> nn.Module:
    """Build a net: "small", the specification of a PatchNet, or timm's name."""
    if name == "small":
        net: nn.Module = SmallNet(size, channels)
    else:
        net = (
            PatchNet(name, channels)
            if "|" in name
            else timm.create_model(name, num_classes=0, in_chans=channels)
        )
    return net.to(memory_format=torch.channels_last)


class Seen(nn.Module):
    """A net on uint8 images of any size, resized to one and normalised."""

    def __init__(self, net: nn.Module, size: int, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.net, self.size, self.mean, self.std = net, size, mean, std

    def forward(self, images: Tensor) -> Tensor:
        """Return the features."""
        pixels = images.float() / 255
        if images.shape[-1] != self.size:
            pixels = F.interpolate(
                pixels, size=(self.size, self.size), mode="bilinear", antialias=True
            )
        with torch.autocast("cpu", torch.bfloat16):
            return self.net((pixels - self.mean) / self.std).float()


def train(args: argparse.Namespace, bank: Images) -> tuple[nn.Module, dict[str, Any]]:
    """Train for `args.seconds` of processor time on a cosine over that time; returns the backbone
    and what it cost.
    """
    mean, std = (torch.tensor(moments)[:, None, None] for moments in (bank.mean, bank.std))
    torch.manual_seed(args.seed)
    backbone = build(args.net, args.crop, bank.channels)
    if args.whiten:
        whiten_stem(backbone, (bank.gather(torch.arange(200)).float() / 255 - mean) / std)  # type: ignore[arg-type]
        backbone.conv.requires_grad_(args.whiten == "trained")  # type: ignore[union-attr]
    numbers = {"temperature": args.temperature, **json.loads(args.numbers)}
    if "temperature" not in method_class(args.method).__dataclass_fields__:
        del numbers["temperature"]
    method = method_class(args.method).from_recipe("small", **numbers)
    view = plan(args.views, args.crop, bank.channels).views[0]
    stages = args.stages or [(args.crop, view.scale[0])]
    plans = [plan_of(args, replace(view, size=side, scale=(least, 1.0))) for side, least in stages]
    model = Model(method, backbone, len(bank))
    rule = get_ema_avg_fn(args.average) if args.average else get_swa_avg_fn()
    average, averaged = (
        AveragedModel(backbone, avg_fn=rule, use_buffers=True),
        args.average or args.average_last,
    )
    optimizer = build_optimizer(args.optimizer, model, lr=args.lr, weight_decay=args.weight_decay)
    generator, order = torch.Generator().manual_seed(args.seed), np.random.default_rng(args.seed)
    matrices = [weight for weight in model.parameters() if weight.ndim > 1 and weight.requires_grad]
    norms = [weight.norm().item() for weight in matrices]
    waiting, images, began = np.empty(0, np.int64), 0, time.process_time()
    while (share := (time.process_time() - began) / args.seconds) < 1:
        size = args.batch_size[int(share * len(args.batch_size))]
        if len(waiting) < size:
            waiting = order.permutation(len(bank))
        index, waiting = torch.from_numpy(waiting[:size]), waiting[size:]
        views = plans[int(share * len(plans))]
        seen = make_views(bank.gather(index), views, generator, bank.mean, bank.std)
        rise = share / 0.04 if share < 0.04 else (1 + math.cos(math.pi * (share - 0.04) / 0.96)) / 2
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rise
        model.train()
        model.set_schedules(100 * share, 100)
        with torch.autocast("cpu", torch.bfloat16):
            embeddings = {name: rows.float() for name, rows in model(seen).items()}
        loss = model.compute_loss(embeddings, index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.normalise_weights:
            for weight, norm in zip(matrices, norms, strict=True):
                weight.data.mul_(norm / weight.data.norm())
        model.after_step(
            {name: rows.detach() for name, rows in embeddings.items()}, 100 * share, 100
        )
        if averaged and share >= 1 - (args.average_last or 1):
            average.update_parameters(backbone)
        images += len(index)
    backbone = average.module if averaged else backbone
    return backbone.eval(), {"images": images, "images_per_second": round(images / args.seconds)}


def stage(text: str) -> tuple[int, float]:
    """Read a side and a smallest share of the area."""
    side, _, least = text.partition(":")
    return int(side), float(least)


def plan_of(args: argparse.Namespace, view: View) -> ViewPlan:
    """Return two views of a kind."""
    flips = (0.0, 1.0) if args.flips_apart else (view.flip, view.flip)
    return ViewPlan("tried", tuple(replace(view, flip=flip) for flip in flips))


def table(path: Path) -> str:
    """The lines of a file as a table in Markdown."""
    rows = ["| | images/s | kNN, crop size | kNN, image size | linear |", "|---|---|---|---|---|"]
    for line in map(json.loads, path.read_text().splitlines()):
        keys = [f"knn at {line[name]} px" for name in ("crop", "image_size")] + ["linear"]
        cells = [f"{100 * line[key]:.1f}" if key in line else "" for key in keys]
        rows.append(f"| {line['name']} | {line['images_per_second']} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """Train once, measure, and append a line; or print the table of a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="or a file of lines, to print its table")
    parser.add_argument("--name", default="")
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--crop", type=int, default=64)
    parser.add_argument("--limit", type=int, help="training images")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--net", default="small")
    parser.add_argument(
        "--whiten", nargs="?", const="frozen", choices=("frozen", "trained"), help="the stem"
    )
    parser.add_argument("--views", default="saclr-cifar")
    parser.add_argument("--method", default="simclr")
    parser.add_argument("--numbers", default="{}", help="the method's own, as JSON")
    parser.add_argument("--temperature", type=float, default=0.2)
    parser.add_argument(
        "--batch-size",
        type=int,
        nargs="+",
        default=[256],
        help="each for an equal share of the time",
    )
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--lr", type=float, default=0.12)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument(
        "--normalise-weights", action="store_true", help="back to their first norm after each step"
    )
    parser.add_argument(
        "--stages",
        type=stage,
        nargs="+",
        help='"24:0.4": side and smallest share of the crops, for its share of the time',
    )
    parser.add_argument(
        "--flips-apart",
        action="store_true",
        help="the second view is always mirrored, the first never",
    )
    parser.add_argument("--silu", action="store_true", help="SiLU for ReLU in our own nets")
    parser.add_argument(
        "--average", type=float, default=0.0, help="decay of an average of the weights, then tested"
    )
    parser.add_argument(
        "--average-last", type=float, default=0.0, help="plain average over this share of the time"
    )
    parser.add_argument(
        "--unbalanced", action="store_true", help="classes with 0.7 of the images of the one before"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/photographs.jsonl"))
    args = parser.parse_args()
    if args.data.endswith(".jsonl"):
        print(table(Path(args.data)))
        return
    reuse_memory()
    if args.silu:
        F.relu_ = F.silu  # type: ignore[assignment]
    images = open_images(args.data, split="train", image_size=args.image_size)
    random = np.random.default_rng(123)
    order = random.permutation(len(images))
    query_rows, rest = order[:QUERIES], order[QUERIES:]
    if args.unbalanced:
        rest = rest[random.random(len(rest)) < 0.7 ** np.asarray(images.labels)[rest]]
    queries, bank = (images.subset(np.sort(part)) for part in (query_rows, rest[: args.limit]))
    backbone, result = train(args, bank)
    mean, std = (torch.tensor(moments)[:, None, None] for moments in (bank.mean, bank.std))
    for size in sorted({args.crop, args.image_size}):
        encoder = Seen(backbone, size, mean, std)
        known, query_features = extract(encoder, bank), extract(encoder, queries)
        result[f"knn at {size} px"] = knn_accuracy(
            known, bank.labels, query_features, queries.labels
        )
    result["linear"] = linear_accuracy(known, bank.labels, query_features, queries.labels)
    line = {
        name: value for name, value in vars(args).items() if name not in ("out", "data")
    } | result
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(line)


if __name__ == "__main__":
    main()
