"""`finetune`: encoder and classifier trained together, with all labels or a few."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int64, Shaped
from torch import Tensor, nn

from nearfar.data import Images
from nearfar.data.names import match
from nearfar.device import seeded, send
from nearfar.evaluation.features import extract
from nearfar.evaluation.labelled import Accuracies, labelled, numbered, top_accuracies
from nearfar.messages import say_once
from nearfar.networks import Encoder
from nearfar.progress import progress
from nearfar.views import compose, fit_views, make_views

FINETUNE = ("finetune", "finetune-P")  # with all labels, and with P per cent of them
MOMENTUM = 0.9
FALLS, FACTOR = (0.6, 0.8), 0.2  # of both learning rates, after these shares of the steps
LEAST_STEPS = 300  # of small sets, which an epoch of a few batches would leave as they were


@dataclass(frozen=True)
class Tuning:
    """Rates of the encoder (`lr`) and the classifier (`head_lr`), epochs and images in a batch; and
    where from.
    """

    source: str
    lr: float
    head_lr: float
    epochs: int
    batch_size: int = 256


def percent_of(protocol: str) -> float | None:
    """Share of the labels that a protocol fine-tunes with, in per cent; None for those on frozen
    features.
    """
    name, dash, number = protocol.partition("-")
    if name != "finetune":
        return None
    try:
        percent = float(number) if dash else 100.0
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 100:
        raise ValueError(
            f"finetune-P takes P per cent of the labels, above 0 and up to 100: not {protocol!r}"
        )
    return percent


def tuning(percent: float) -> Tuning:
    """The settings for that share of the labels, in percent: those of the nearest of 1, 10 and 100
    below or at it.
    """
    if percent < 10:
        return Tuning(
            "LORAC, section 6.1 (head 250 x encoder, its rate from the range searched)",
            0.001,
            0.25,
            30,
        )
    if percent < 100:
        return Tuning(
            "LORAC, section 6.1; rates: SwAV's released script (head 20 x encoder)", 0.01, 0.2, 50
        )
    return Tuning("nearfar: as with 10 %, for minutes on two cores", 0.01, 0.2, 10)


def draw_labels(
    labels: Shaped[np.ndarray, " images"], percent: float, seed: int = 0
) -> Int64[np.ndarray, " chosen"]:
    """Rows of a random share of every class, rounded, at least one image of each; sorted.

    Rows whose label is negative (missing) are never drawn. percent: above 0, at most 100; see
    `percent_of`.
    """
    generator = np.random.default_rng([seed, round(1000 * percent)])
    members = [np.flatnonzero(labels == label) for label in np.unique(labels[labels >= 0])]
    chosen = [
        generator.permutation(rows)[: max(1, round(len(rows) * percent / 100))] for rows in members
    ]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def listed_rows(names: Sequence[str], listed: Sequence[str]) -> Int64[np.ndarray, " chosen"]:
    """Rows of the images that a list names, sorted: by the whole name, else by the longest common
    end of the paths.

    A name without folders, as in SimCLR's splits, means the one image of that name. ValueError
    names the first that is missing, or that may mean several images.
    """
    wanted = list(dict.fromkeys(name.strip() for name in listed if name.strip()))
    if not wanted:
        raise ValueError("the list of labels names no images: write the name of one on each line")
    row_of, note = match(wanted, names, None)
    lost = sorted(set(wanted) - {wanted[place] for place in row_of.values()})
    if lost or not row_of:
        example = f", such as {lost[0]!r}" if lost else ""
        raise ValueError(
            f"{len(lost)} of the {len(wanted)} images in the list of labels are not here, "
            f"or may be several"
            f"{example}"
        )
    if note:
        say_once(f"in the list of labels {note}")
    return np.array(sorted(row_of), dtype=np.int64)


def finetune_accuracies(
    encoder: Encoder,
    train: Images,
    test: Images,
    rows: Int64[np.ndarray, " chosen"],
    settings: Tuning,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    bfloat16: bool = False,
) -> Accuracies:
    """Accuracies 0..1 on the test images of an encoder that is trained further, together with a
    linear classifier.

    Top-1, and where there are at least 100 classes top-5, else None.

    The protocol of LORAC, section 6.1 and Table 3 (after SimCLR, section 6, and SwAV): SGD with
    momentum 0.9 and no weight decay on every parameter, the classifier's rate a multiple of the
    encoder's, both times 0.2 after 60 and 80 % of the training; random crops and flips. Last epoch;
    the test images are looked at once, uncropped. The encoder that is given stays as it is. rows:
    the training images whose labels are used.

    Differs from the paper: rates are fixed, where it searches 7 from 0.01 to 10 for the classifier;
    crops are the package's weak views (of 0.2 of the area and more, small grayscale images moved,
    not mirrored); small sets get more epochs: 300 steps at least.

    >>> from nearfar.evaluation.finetune import tuning
    >>> images = nearfar.data.open_images("photos", image_size=32)
    >>> encoder = nearfar.load("runs/photos")
    >>> finetune_accuracies(encoder, images, images, np.arange(11, 15), tuning(10)).top1 <= 1
    True
    """
    if train.labels is None or test.labels is None:
        raise ValueError("these images have no labels to fine-tune with")
    classes, target = numbered(train.labels[rows])
    if len(classes) < 2:
        raise ValueError(
            "fine-tuning needs at least two classes among the labels that it uses, there is one"
        )
    device = torch.device(device)
    net = copy.deepcopy(encoder).to(device).requires_grad_(True).train()
    with seeded("cpu", seed):
        head = nn.Linear(net.num_features, len(classes))
        nn.init.normal_(head.weight, std=0.01)
        nn.init.zeros_(head.bias)
    head = head.to(device)
    _train(net, head, train, torch.from_numpy(rows), target.to(device), settings, seed, bfloat16)
    features, truth = labelled(extract(net, test), test.labels, "test")
    with torch.no_grad():
        return top_accuracies(head(features.to(device)).cpu(), classes, truth)


def _train(
    net: Encoder,
    head: nn.Linear,
    train: Images,
    rows: Int64[Tensor, " chosen"],
    target: Int64[Tensor, " chosen"],
    settings: Tuning,
    seed: int,
    bfloat16: bool,
) -> None:
    """Train an encoder and a classifier on some images, in place."""
    plan = compose(fit_views(("weak",), net.image_size, net.channels), net.image_size, net.channels)
    moments = net.mean.flatten().tolist(), net.std.flatten().tolist()
    parts = [
        {"params": net.parameters(), "lr": settings.lr},
        {"params": head.parameters(), "lr": settings.head_lr},
    ]
    optimizer = torch.optim.SGD(parts, momentum=MOMENTUM)
    generator = torch.Generator().manual_seed(seed)
    device = target.device
    size = min(settings.batch_size, len(rows))
    # a last, smaller batch would only disturb the batch statistics
    per_epoch = max(1, len(rows) // size)
    total = per_epoch * max(settings.epochs, -(-LEAST_STEPS // per_epoch))
    falls = {round(share * total) for share in FALLS}
    with progress(f"fine-tuning on {len(rows)} labels", total) as bar:
        while bar.done < total:
            for batch in torch.randperm(len(rows), generator=generator).split(size)[:per_epoch]:
                if bar.done in falls:
                    for group in optimizer.param_groups:
                        group["lr"] *= FACTOR
                pixels = send(train.gather(rows[batch]), device)
                [views] = make_views(pixels, plan, generator, *moments)
                with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                    scores = head(net.backbone(views)).float()
                    loss = F.cross_entropy(scores, target[send(batch, device)])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                bar.advance()
            if not torch.isfinite(loss):
                raise ValueError(
                    f"fine-tuning has diverged at learning rates {settings.lr:g} and "
                    f"{settings.head_lr:g}"
                )
