"""Runs of seconds: a net that is trained and measured in one process, and leaves no run folder.

For tables of hundreds of them, where starting processes and writing reports would take longer than
training. Losses are given one temperature: the weight of a pair is exp(s / t).
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

import nearfar
from nearfar import Run
from nearfar.data import open_images
from nearfar.data.images import sample
from nearfar.evaluation import evaluate_features, extract, extract_view
from nearfar.networks import Encoder, SmallNet
from nearfar.progress import quietly
from nearfar.training.run_folder import CHECKPOINT, load_checkpoint
from nearfar.training.run_header import resume_plan
from nearfar.training.seeding import stream
from nearfar_papers.runs import OF_MEASURES

EFFECTIVE_OF = 2048  # images whose weights are looked at
FIRST_COSINE = 0.6  # of negatives before training, about


def accuracy(given: Mapping[str, Any], run: Path) -> float:
    """Return an accuracy in per cent of a net that is trained first, on the test images.

    given: settings of the run, and beside them the metric, `pair_temperature`, for a `SmallNet` of
    one's own `widths` and `side`, and in `evaluate` perhaps `held_out`: that many training images,
    which no run with this seed and limit has, in place of the test images.
    """
    with tempfile.TemporaryDirectory() as folder:
        encoder = _trained(given, Path(folder))[1]
        reading = dict(image_size=given["image_size"])
        train = open_images(given["data"], split="train", **reading)
        rows = sample(len(train), given.get("limit"), given["seed"])
        held_out = given.get("evaluate", {}).get("held_out")
        if held_out is None:
            test = open_images(given["data"], split="test", **reading)
        else:
            others = np.setdiff1d(np.arange(len(train)), rows)
            test = train.subset(others[sample(len(others), held_out, given["seed"])].tolist())
        train = train.subset(rows.tolist())
        features = [extract(encoder, images) for images in (train, test)]
    results = evaluate_features(
        features[0], train.labels, features[1], test.labels, [given["metric"]], seed=given["seed"]
    )
    return 100 * results[given["metric"]]


def effective_number(given: Mapping[str, Any], run: Path) -> float:
    """Return the effective number of negatives of a net that is trained first, in images.

    Of the weights exp(s / pair_temperature) of the other images in batches of the run's size, both
    views of each in one weight, for two training views of `EFFECTIVE_OF` of its images.
    """
    with tempfile.TemporaryDirectory() as folder:
        net, encoder = _trained(given, Path(folder))
        trained = Run(Path(folder) / "run")
        settings = trained.settings
        with quietly():
            model = resume_plan(settings, {"encoder": net} if net is not None else {}).model()
        model.load_state_dict(load_checkpoint(trained.path / CHECKPOINT)["model"])
        projector = model.eval().online[1]
        images = open_images(settings.data, split="train", image_size=given["image_size"])
        rows = sample(len(images), settings.limit, settings.seed)
        order = np.random.default_rng(settings.seed).permutation(rows)[:EFFECTIVE_OF]
        images = images.subset(order.tolist())
        view = trained.view_plan.pick([0])
        views = [
            extract_view(encoder, images, view, stream(settings.seed, "map", number))
            for number in range(2)
        ]
    with torch.no_grad():
        z1, z2 = (F.normalize(projector(features), dim=1) for features in views)
    batch = int(given["batch_size"])
    numbers = [
        effective(first, second, given["pair_temperature"])
        for first, second in zip(z1.split(batch), z2.split(batch), strict=True)
        if len(first) == batch
    ]
    return float(torch.cat(numbers).mean())


def effective(
    z1: Float[Tensor, "batch dim"], z2: Float[Tensor, "batch dim"], temperature: float
) -> Float[Tensor, " rows"]:
    """Return 1 / sum p^2 of each of the 2 * batch unit rows, p the softmax over the other images.

    An image has the sum of the weights of its two views, and a row's own image has none.
    """
    rows = torch.cat([z1, z2]).double()
    own = torch.arange(len(z1)).repeat(2)
    weights = (rows @ rows.T / temperature).exp()
    of_images = weights[:, : len(z1)] + weights[:, len(z1) :]
    of_images[torch.arange(len(rows)), own] = 0
    return of_images.sum(1).square() / of_images.square().sum(1)


def settings_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `nearfar.pretrain` that weigh a pair by exp(s / t), t =
    `pair_temperature`.

    SigCLR's bias starts at -1 / t, and SACLR's normaliser at the weight of a cosine of
    `FIRST_COSINE`: from 1 it would need as many epochs as a short run has.
    """
    settings = {name: value for name, value in given.items() if name not in OF_MEASURES}
    temperature = given["pair_temperature"]
    if settings["method"] == "saclr":
        first = math.exp(FIRST_COSINE / temperature)
        return settings | {"kernel": "cosine", "bandwidth": temperature, "initial_partition": first}
    if settings["method"] == "sigclr":
        return settings | {"temperature": temperature, "bias": -1 / temperature}
    return settings | {"temperature": temperature}


def _trained(given: Mapping[str, Any], folder: Path) -> tuple[SmallNet | None, Encoder]:
    """Train into FOLDER/run; returns the net, if it is none with a name, and the encoder."""
    settings, net = settings_of(given), None
    if "widths" in given:
        torch.manual_seed(given["seed"])
        channels = given.get("channels", 3)
        net = SmallNet(given["crop_size"], channels, widths=given["widths"], side=given["side"])
        settings["encoder"] = net
    with quietly():
        run = nearfar.pretrain(**settings, out=folder / "run")
    return net, nearfar.load(run, encoder=net)
