"""Numbers of the papers' tables that are no accuracies; each is had in a process of its own.

    python -m nearfar_papers.measures MEASURE SETTINGS RUN [--json]

SETTINGS is a JSON object, RUN the folder of a run, which some of them read. Prints the number, or
a list, as JSON; with --json an object that holds it as `result`, and how many images were read as
`read`, as those of nearfar's commands do.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nearfar
from nearfar import Run
from nearfar.allocator import reuse_memory
from nearfar.data import open_images
from nearfar.device import find_device, peak_memory, synchronize
from nearfar.evaluation import extract_view
from nearfar.messages import as_json
from nearfar.methods import Setup, SimCLR
from nearfar.networks import SmallNet, build_backbone, first_encoder
from nearfar.progress import READ, say_read
from nearfar.training.request import resolve_method
from nearfar.training.seeding import stream
from nearfar.training.settings import Settings
from nearfar.training.trial import training_speed
from nearfar.training.view_choice import views_at
from nearfar_papers import short_runs
from nearfar_papers.runs import OF_MEASURES, PLANE

MIB = 2**20
PIXELS, UNITS = 28 * 28, 128  # of SACLR, Table 9
IMAGES = 50_000
SECONDS = 2.0
VIEWS_OF, NUM_VIEWS = 256, 32  # images and views of LORAC, Figures 3 and 4


def variables(given: Mapping[str, Any], run: Path) -> float:
    """Count the numbers that a loss keeps beside the networks. images: in the training set."""
    loss = _method(given).setup(int(given.get("images", IMAGES))).loss
    return sum(each.numel() for each in (*loss.buffers(), *loss.parameters()))


def of_loss(given: Mapping[str, Any], run: Path, in_time: bool = False) -> float:
    """MiB at the peak of a forward and backward of one linear layer of 128 units and the loss,
    above those before.

    in_time: milliseconds of the same instead.
    """
    step = _loss_step(given)
    _loss_step({**given, "batch_size": 16})()  # loads kernels
    return 1000 * _fastest(step) if in_time else _peak_above_now(step)


def step_share(given: Mapping[str, Any], run: Path) -> float:
    """Time of a training step in per cent of the same step without its loss.

    The rest of a step is measured with few images, 32 or for our own nets 512, and counted in
    proportion.
    """
    backbone = build_backbone(given["encoder"], image_size=_side(given), channels=3)
    few = {**given, "batch_size": 512 if isinstance(backbone.net, SmallNet) else 32}
    loss, of_few = (_fastest(_loss_step(settings, alone=True)) for settings in (given, few))
    rest = 1 / _rate(few) - of_few / few["batch_size"]  # seconds of an image
    return 100 * (1 + loss / (int(given["batch_size"]) * rest))


def _fastest(step: Callable[[], object]) -> float:
    """Seconds of the fastest of some calls."""
    spent: list[float] = []  # the best of those that fit into two seconds, three at least
    while len(spent) < 3 or sum(spent) < SECONDS:
        began = time.perf_counter()
        step()
        synchronize()
        spent.append(time.perf_counter() - began)
    return min(spent)


def of_step(given: Mapping[str, Any], run: Path, in_time: bool = False) -> float:
    """MiB at the peak of some training steps, above those before the networks are built; or
    milliseconds of a step.
    """
    return (
        1000 * int(given["batch_size"]) / _rate(given)
        if in_time
        else _peak_above_now(_trial(given))
    )


def curve(given: Mapping[str, Any], run: Path) -> list[float]:
    """The values of a key of metrics.jsonl, "health.uniformity" for one inside another."""
    outer, _, inner = str(given["metric"]).partition(".")
    logged = [line[outer] for line in Run(run).metrics if outer in line]
    values = [
        float(value[inner] if inner else value) for value in logged if not inner or inner in value
    ]
    if not values:
        raise ValueError(f"metrics.jsonl has no {given['metric']}")
    return values


def plane(given: Mapping[str, Any], run: Path) -> float:
    """Accuracy in per cent of the 15 nearest others on the map of the test images (SACLR, Figure 2
    has the picture).
    """
    page = run / f"{PLANE}.html"
    for old in run.glob(f"{PLANE}.*"):  # of a measurement that was stopped
        old.unlink()
    nearfar.map(run, split="test", layout="projector", out=page)
    return 100 * float(json.loads(page.with_suffix(".json").read_text())["knn_map"])


def nuclear_norms(given: Mapping[str, Any], run: Path) -> list[float]:
    """The nuclear norm of the projector's unit outputs for 32 views, for 256 test images (LORAC,
    section 6.2).
    """
    trained = Run(run)
    settings, model = trained.settings, trained.model()
    encoder, projector = first_encoder(trained.encoder), model.online[1]
    encoder.backbone = model.backbone  # which gives what the projector takes
    reading = settings.reading_for(encoder.image_size)
    images = open_images(settings.data, split="test", **reading)
    say_read(images)
    images = images.subset(range(min(VIEWS_OF, len(images))))
    view, device = trained.view_plan.pick([0]), find_device()
    features = [
        extract_view(encoder, images, view, stream(settings.seed, "map", number), device=device)
        for number in range(NUM_VIEWS)
    ]
    with torch.no_grad():
        rows = F.normalize(torch.stack([projector(h) for h in features], 1), dim=2)
    return torch.linalg.matrix_norm(rows, "nuc").tolist()


class WholeMatrix(nn.Module):
    """SimCLR's loss as most code computes it: the whole matrix of all pairs, differentiated by
    autograd.
    """

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        with torch.autocast(z1.device.type, enabled=False):  # float32, as all of ours are
            rows = F.normalize(torch.cat([z1, z2]).float(), dim=1)
            logits = (rows @ rows.T / self.temperature).fill_diagonal_(-math.inf)
            positives = torch.arange(len(rows), device=rows.device).roll(len(z1))
            return F.cross_entropy(logits, positives)


class WholeMatrixSimCLR(SimCLR):
    """SimCLR with the whole matrix, which the papers' tables of memory compare with."""

    def setup(self, num_images: int) -> Setup:
        return replace(super().setup(num_images), loss=WholeMatrix(self.temperature))


def _method(numbers: Mapping[str, Any]) -> Any:
    """Return the method; with `whole_matrix`, SimCLR's loss by the whole matrix."""
    given = {key: numbers[key] for key in numbers.keys() - OF_MEASURES}
    method = resolve_method(Settings.of(**given))[0]
    if not numbers.get("whole_matrix"):
        return method
    if type(method) is not SimCLR or method.learn_temperature or method.group_size:
        raise ValueError("whole_matrix takes SimCLR with a fixed temperature and no groups")
    return WholeMatrixSimCLR(**{each.name: getattr(method, each.name) for each in fields(method)})


def _loss_step(given: Mapping[str, Any], alone: bool = False) -> Callable[[], object]:
    """A forward and backward of the loss, and unless `alone` of one linear layer before it."""
    batch = int(given["batch_size"])
    setup = _method(given).setup(max(batch, IMAGES))
    if set(setup.pairing.names) != {"projection"} or setup.queue_size is not None:
        raise ValueError(
            f"{given['method']} has more than one network: its loss is not measured alone"
        )
    generator = torch.Generator().manual_seed(0)
    device, width = find_device(), UNITS if alone else PIXELS
    views = [
        torch.rand(batch, width, generator=generator).to(device) for _ in setup.pairing.online_views
    ]
    layer, loss = nn.Linear(PIXELS, UNITS).to(device), setup.loss.to(device)
    index: dict[str, Tensor | None] = (
        {"index": torch.arange(batch, device=device)} if setup.needs_index else {}
    )

    def step() -> None:
        rows = [view.requires_grad_() if alone else layer(view) for view in views]
        embeddings = {"projection": torch.stack(rows)}
        setup.pairing(loss, embeddings, [], **index).backward()

    return step


def _side(given: Mapping[str, Any]) -> int:
    """Return the pixels of a side of the images that a step is measured on."""
    return int(given.get("image_size", 32))


def _rate(given: Mapping[str, Any]) -> float:
    """Images per second of the fastest of the trials in four seconds; without the first, whose
    steps are slower.
    """
    trial, rates, began = _trial(given), list[float](), time.perf_counter()
    while len(rates) < 2 or time.perf_counter() - began < 2 * SECONDS:
        rates.append(trial())
    return max(rates[1:])


def _trial(given: Mapping[str, Any]) -> Callable[[], float]:
    """Some training steps, which return the images per second."""
    size, method = _side(given), _method(given)
    settings = Settings(method=given["method"])
    return partial(
        training_speed,
        settings,
        method,
        views_at(settings, method, size, size, 3),
        (given.get("encoder", "small"), size, size),
        3,
        batch_size=int(given["batch_size"]),
        precision=given.get("precision", "32-true"),
    )


def _peak_above_now(work: Callable[[], object]) -> float:
    """MiB of memory at the peak of some work, above those in use before: of the GPU, else resident
    (Linux).
    """
    if (peak := peak_memory(work)) is not None:
        return peak / MIB
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _peak()
    work()
    return max(0, _peak() - before) / MIB  # pages may be given back meanwhile


def _peak() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1])


UNITS_OF = {"MiB": 1.0, "GB": 1 / 1024, "ms": 1.0, "s": 1e-3, "h": 1e-3 / 3600}
"""What a table may be written in; measures give MiB and milliseconds. GB are those of GPUs, 1024
MiB.
"""

MEASURES: dict[str, Callable[[Mapping[str, Any], Path], float | list[float]]] = {
    "variables": variables,
    "loss-memory": of_loss,
    "loss-time": partial(of_loss, in_time=True),
    "step-memory": of_step,
    "step-time": partial(of_step, in_time=True),
    "step-share": step_share,
    "curve": curve,
    "last": lambda given, run: curve(given, run)[-1],
    "plane": plane,
    "nuclear": lambda given, run: statistics.mean(nuclear_norms(given, run)),
    "nuclear-norms": nuclear_norms,
    "short": short_runs.accuracy,
    "effective": short_runs.effective_number,
}


def main(words: Sequence[str]) -> None:
    """Measure, and print what was measured."""
    measure, settings, run = words[0], json.loads(words[1]), Path(words[2])
    READ.set([])
    value = MEASURES[measure](settings, run)
    if not isinstance(value, list):
        value *= UNITS_OF.get(settings["unit"], 1.0)
    print(as_json(value, read=READ.get()) if "--json" in words[3:] else json.dumps(value))


if __name__ == "__main__":
    reuse_memory()
    main(sys.argv[1:])
