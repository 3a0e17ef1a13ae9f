"""Linear classifiers on frozen features: by L-BFGS with a chosen penalty, and by SGD as the papers
train them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from nearfar.evaluation.labelled import (
    Accuracies,
    Features,
    Labels,
    accuracy,
    features,
    labelled,
    numbered,
    top_accuracies,
    training_set,
)
from nearfar.losses.checks import positive
from nearfar.messages import check_known
from nearfar.progress import progress

GRID = (
    0.001,
    0.01,
    0.1,
    1.0,
    10.0,
)  # C, the inverse of the penalty: the strongest penalty comes first
HELD_OUT = 0.2  # share of the training images that chooses among penalties or learning rates
SEARCH_ROWS = 10_000  # training images used for the choice at most; the fit itself uses all
FEW_ROWS = 50  # below this there is nothing to choose with
FEW_ROWS_C = 1.0
MAX_ITERATIONS = 200
TOLERANCE = 1e-3  # of the largest gradient entry; smaller ones move the accuracy by less than 0.1 %
MOMENTUM = 0.9  # of SGD, in all of the papers


def linear_accuracy(
    train_x: Features, train_y: Labels, test_x: Features, test_y: Labels, seed: int = 0
) -> float:
    """Accuracy of a linear classifier on frozen features, 0..1.

    Features are standardised with the training mean and deviation. Test images of a class that
    training lacks count as wrong. See `linear_predict` for the penalty. ValueError when labels are
    missing or name one class only.

    >>> x, y = torch.eye(4).repeat(10, 1), np.arange(40) % 4
    >>> linear_accuracy(x, y, x, y)
    1.0
    """
    test_x, truth = labelled(test_x, test_y, "test", train_y)
    return accuracy(linear_predict(train_x, train_y, test_x, seed), truth)


def linear_predict(
    train_x: Features,
    train_y: Labels,
    test_x: Features,
    seed: int = 0,
    train_views: Float[Tensor, "views _ dim"] | None = None,
) -> Shaped[np.ndarray, " test"]:
    """Predicted label of each test image.

    train_views: features of other views of the training images, which are fitted in place of
    `train_x`, with as large a penalty on the mean loss.

    C, the inverse of the L2 penalty on the summed loss, is chosen on a random fifth of the training
    images: from 0.001 upward in tens, until the accuracy there falls. One fixed value would be
    unfair to some features: on 10 000 CIFAR-10 images, 3072 raw pixels are best at 0.001 (38.8 %
    against 28.4 % at 1) and 256 convolutional features at 1 (51.9 % against 43.4 % at 0.001). The
    test images are never used for it.
    """
    train_x, labels = training_set(train_x, train_y)
    test = features(test_x, "test")
    if train_views is None:
        train, test_rows = standardise(train_x, test)
        return fit(train, labels, choose_strength(train, labels, seed)).predict(test_rows)
    views = of_labelled(train_views, train_y)
    rows, train, test_rows = standardise(views.flatten(0, 1), train_x, test)
    strength = choose_strength(train, labels, seed) / len(views)
    return fit(rows, np.tile(labels, len(views)), strength).predict(test_rows)


def of_labelled(
    views: Float[Tensor, "views images dim"], labels: Labels
) -> Float[Tensor, "views _ dim"]:
    """The views of those training images that have a label; not copied where all have one."""
    known = [training_set(view, labels)[0] for view in views[:1]]
    if len(known[0]) == views.shape[1]:
        return views
    return torch.stack([*known, *(training_set(view, labels)[0] for view in views[1:])])


def standardise(
    train_x: Float[Tensor, "train dim"], *others: Float[Tensor, "_ dim"]
) -> tuple[np.ndarray, ...]:
    """All arrays shifted and scaled by the training mean and deviation; constant dimensions become
    0, however small the others are.
    """
    mean, deviation = train_x.mean(0), train_x.std(0, correction=0)
    scale = (deviation > 1e-6 * mean.abs()) / deviation.clamp_min(1e-30)
    return tuple(((x - mean) * scale).numpy() for x in (train_x, *others))


def choose_strength(
    train: Float[np.ndarray, "train dim"],
    labels: Shaped[np.ndarray, " train"],
    seed: int,
    score: Callable[[LogisticRegression, np.ndarray, np.ndarray], float] = LogisticRegression.score,
) -> float:
    """The C of `GRID` that is best on held-out training images, going upward until it gets worse.

    score: of a classifier on rows and labels, the higher the better. Default: the accuracy.
    """
    if len(train) < FEW_ROWS:
        return FEW_ROWS_C
    order = np.random.default_rng(seed).permutation(len(train))[:SEARCH_ROWS]
    held, kept = np.split(order, [int(HELD_OUT * len(order))])
    if len(np.unique(labels[kept])) < 2:
        return FEW_ROWS_C
    best, best_score = GRID[0], -math.inf
    for strength in GRID:
        held_score = score(fit(train[kept], labels[kept], strength), train[held], labels[held])
        if held_score < best_score:
            break
        if held_score > best_score:
            best, best_score = strength, held_score
    return best


def fit(
    train: Float[np.ndarray, "train dim"], labels: Shaped[np.ndarray, " train"], strength: float
) -> LogisticRegression:
    """Logistic regression with an L2 penalty of 1 / `strength`."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ConvergenceWarning
        )  # MAX_ITERATIONS is part of the protocol
        return LogisticRegression(C=strength, max_iter=MAX_ITERATIONS, tol=TOLERANCE).fit(
            train, labels
        )


@dataclass(frozen=True)
class Probe:
    """Settings of the training of a linear classifier; `source` is where the numbers come from.

    lrs: learning rates, not scaled to the batch any more; of several, held-out training images
    choose one. epochs: passes over the features, `steps` batches instead where it is given.
    drop_at: shares of the training after which the rate is divided by 10; without, it falls to 0
    along a cosine, step by step.

    >>> x, y = torch.eye(4).repeat(10, 1), np.arange(40) % 4
    >>> linear_sgd_accuracies(x, y, x, y, Probe("mine", lrs=(1.0, 10.0), epochs=20)).top1
    1.0
    """

    source: str
    lrs: tuple[float, ...]
    weight_decay: float = 0.0
    epochs: int = 100
    steps: int | None = None
    batch_size: int = 256
    drop_at: tuple[float, ...] = ()


PROBES = {
    "saclr-imagenet": Probe("SACLR, appendix A.1.4", (0.3,), weight_decay=1e-6),
    "saclr-cifar": Probe(
        "SACLR, appendix A.2: as SimSiam on CIFAR-10; epochs: released script", (30.0,), epochs=90
    ),
    "simsiam-cifar": Probe("SimSiam, as SACLR, appendix A.2 has it", (30.0,)),
    "sce": Probe(
        "SCE, section 4.1; batch: released code", (30.0,), batch_size=512, drop_at=(0.6, 0.8)
    ),
    "sce-cifar": Probe(
        "SCE, section 4.1, for its small data sets too", (30.0,), drop_at=(0.6, 0.8)
    ),
    "sce-imagenet": Probe(
        "SCE, section 4.3: 0.1 x batch / 256", (0.4,), epochs=90, batch_size=1024
    ),
    "moco": Probe("MoCo, section 4.1", (30.0,), drop_at=(0.6, 0.8)),
    "lorac": Probe("LORAC, section 6.1; epochs as SwAV's", (1.2,)),
    "lorac-imagenet100": Probe("LORAC, section 6.2; epochs as SwAV's", (0.1,)),
}
"""The settings of the papers, by name. All use momentum 0.9 and report the last epoch."""


def default_probe(protocol: str, image_size: int) -> str:
    """Name the settings that a recipe's protocol names, "linear-sgd sce"; else SACLR's, for CIFAR
    below 64 pixels.
    """
    named = [word for word in protocol.split() if word in PROBES]
    return named[0] if named else "saclr-cifar" if image_size < 64 else "saclr-imagenet"


def probe_settings(name: str | Probe, lrs: Sequence[float] | None = None) -> Probe:
    """The settings of that name, with other learning rates where some are given; ValueError for an
    unknown name.
    """
    if isinstance(name, str):
        check_known("`probe`", name, PROBES)
    probe = PROBES[name] if isinstance(name, str) else name
    if lrs is None:
        return probe
    positive(**{"lowest learning rate of a linear probe": min(lrs, default=0.0)})
    return replace(probe, lrs=tuple(map(float, lrs)))


def linear_sgd_accuracies(
    train_x: Features,
    train_y: Labels,
    test_x: Features,
    test_y: Labels,
    probe: str | Probe = "saclr-cifar",
    seed: int = 0,
    device: torch.device | str = "cpu",
    train_views: Float[Tensor, "views _ dim"] | None = None,
) -> Accuracies:
    """Accuracies after the last epoch of a linear layer trained by SGD on frozen features, 0..1.

    Top-1, and where there are at least 100 classes top-5, else None.

    probe: settings by name (`PROBES`), or one's own. Of several learning rates, the one with the
    best accuracy on a random fifth of the training images, after the last epoch there, is trained
    again on all of them: at most two fits, however many rates. Features are used as they are, as in
    the papers: no standardisation. Weights start from N(0, 0.01^2), biases from 0. The test images
    are looked at once. train_views: features of other views of the training images, such as crops
    and flips, of which each epoch takes the next one in place of `train_x`; a rate is still chosen
    on held-out images as they are. ValueError for unknown or impossible settings, and missing
    labels.

    Differs from the papers: features are computed once, so the probe sees every image in one view,
    or in a few in turn, not in a new random crop and flip in each epoch.

    >>> x, y = torch.eye(4).repeat(10, 1), np.arange(40) % 4
    >>> linear_sgd_accuracies(x, y, x, y).top1
    1.0
    """
    train_x, labels = training_set(train_x, train_y)
    test_x, truth = labelled(test_x, test_y, "test", train_y)
    probe = probe_settings(probe)
    classes, number = numbered(labels)
    choice = held_out_rows(len(train_x), seed) if len(probe.lrs) > 1 else None
    x = train_x if train_views is None else of_labelled(train_views, train_y)
    if choice is not None and train_views is not None:
        held, kept = choice
        split = x[:, kept], number[kept], train_x[held], number[held]
        probe, choice = best_rate(probe, *split, len(classes), seed, device), None
    _, weight, bias = train_classifier(probe, x, number, len(classes), choice, seed, device)
    scores = [chunk[:, 0] for chunk in _scores(weight[None], bias[None], test_x)]
    return top_accuracies(torch.cat(scores), classes, truth)


def train_classifier(
    probe: Probe,
    x: Float[Tensor, "*views images dim"],
    y: Int64[Tensor, " images"],
    classes: int,
    choice: tuple[Int64[Tensor, " held"], Int64[Tensor, " kept"]] | None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> tuple[float, Float[Tensor, "classes dim"], Float[Tensor, " classes"]]:
    """Return the learning rate, weights and biases of a linear classifier trained by SGD.

    Of several learning rates that is taken which is best on the images held out. y: class numbers.
    choice: positions of those images, and of the others, which train for the choice; the classifier
    is trained on all. None for settings of one rate.
    """
    if choice is not None:
        held, kept = choice
        probe = best_rate(probe, x[kept], y[kept], x[held], y[held], classes, seed, device)
    weight, bias = train_heads(probe, x, y, classes, seed, device)
    return probe.lrs[0], weight[0].cpu(), bias[0].cpu()


def held_out_rows(count: int, seed: int) -> tuple[Int64[Tensor, " held"], Int64[Tensor, " kept"]]:
    """A random fifth of the images, to choose on, and the others; ValueError where one of them is
    empty.
    """
    if count < 2:
        raise ValueError(
            "a choice on held-out images needs at least two training images, there is one"
        )
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    held = max(1, int(HELD_OUT * count))
    return order[:held], order[held:]


def best_rate(
    probe: Probe,
    train_x: Float[Tensor, "*views train dim"],
    train_y: Int64[Tensor, " train"],
    held_x: Float[Tensor, "held dim"],
    held_y: Int64[Tensor, " held"],
    classes: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Probe:
    """The settings with the one learning rate that is best on held-out images; the lowest of those
    that are equal.
    """
    weight, bias = train_heads(probe, train_x, train_y, classes, seed, device)
    predicted = torch.cat([scores.argmax(2) for scores in _scores(weight, bias, held_x)])
    right = (predicted == held_y[:, None]).float().mean(0)
    return replace(probe, lrs=(probe.lrs[int(right.argmax())],))


def train_heads(
    probe: Probe,
    x: Float[Tensor, "*views images dim"],
    y: Int64[Tensor, " images"],
    classes: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> tuple[Float[Tensor, "rates classes dim"], Float[Tensor, "rates classes"]]:
    """Weights and biases after the last step, one head for each learning rate.

    The heads are one batched layer that sees the same batches, each with its own rate and momentum,
    so that a sweep reads and moves the features no more often than a single fit. Of several views
    [views, images, dim] each epoch takes the next one. The gradient of the cross-entropy is in
    closed form.
    """
    generator = torch.Generator().manual_seed(seed)
    rates = torch.tensor(probe.lrs, device=device)
    start = torch.cat(
        [0.01 * torch.randn(classes, x.shape[-1], generator=generator), torch.zeros(classes, 1)], 1
    )
    heads = start.to(device).repeat(len(rates), 1, 1)  # [rates, classes, dim + 1], the bias last
    velocity = torch.zeros_like(heads)
    x = torch.cat([x, torch.ones(*x.shape[:-1], 1)], -1).to(device)
    views, y = x[None] if x.ndim == 2 else x, y.to(device)
    per_epoch = math.ceil(len(y) / probe.batch_size)
    total, done = probe.steps or probe.epochs * per_epoch, 0
    with progress("training the linear layer", total) as bar:
        while done < total:
            view = views[done // per_epoch % len(views)]
            order = torch.randperm(len(y), generator=generator).to(device)
            for index in order.split(probe.batch_size)[: total - done]:
                rows = view[index]
                share = torch.softmax(torch.einsum("bd,rcd->brc", rows, heads), 2)
                share[torch.arange(len(index), device=device), :, y[index]] -= 1
                gradient = torch.einsum("brc,bd->rcd", share, rows) / len(index)
                velocity.mul_(MOMENTUM).add_(gradient.add_(heads, alpha=probe.weight_decay))
                heads -= velocity * (rates * _factor(probe, done, total, per_epoch))[:, None, None]
                done += 1
            bar.update(done)
    return heads[..., :-1], heads[..., -1]


def _factor(probe: Probe, done: int, total: int, per_epoch: int) -> float:
    """The learning rate after so many steps, as a share of the first; it drops between epochs, as
    the papers' do.
    """
    if not probe.drop_at:
        return (1 + math.cos(math.pi * done / total)) / 2
    whole = done if probe.steps is not None else done - done % per_epoch
    return 0.1 ** sum(whole >= round(at * total, 6) for at in probe.drop_at)


def _scores(
    weight: Float[Tensor, "rates classes dim"],
    bias: Float[Tensor, "rates classes"],
    x: Float[Tensor, "images dim"],
) -> Iterator[Float[Tensor, "chunk rates classes"]]:
    flat = weight.flatten(0, 1)
    for rows in x.split(8192):
        yield (
            torch.addmm(bias.flatten(), rows.to(flat.device), flat.T)
            .unflatten(1, weight.shape[:2])
            .cpu()
        )
