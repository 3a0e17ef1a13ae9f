"""Logistic regression by L-BFGS in torch along a path of penalties, each fit from where the last one ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

MAX_ITERATIONS = 100  # of L-BFGS for a penalty, scikit-learn's default
TOLERANCE = 1e-5  # of the largest gradient entry of the mean loss, in the coordinates that are optimised

Classifier = Callable[[Float[Tensor, "images dim"]], Float[Tensor, "images classes"]]


def regularisation_path(
    x: Float[Tensor, "images dim"],
    y: Shaped[Tensor, "images ..."],
    classes: int,
    penalties: Sequence[float],
    device: torch.device | str = "cpu",
) -> Iterator[Classifier]:
    """Fit a linear classifier for each penalty, in that order: a function from features to the scores of the classes.

    The sum of the losses over the images plus penalty / 2 times the squared weights is minimised, biases being free;
    scikit-learn's C is 1 / penalty. y: class numbers [images], for a softmax over the classes; or [images, classes]
    with 1 (there), -1 (not there) and 0 (not known, left out), for a logistic regression of each class on its own.
    Start with the largest penalty: every fit begins where the one before ended.

    The features are taken as they are. Only the search is in other coordinates: shifted by the mean, which the biases
    take up, turned to the principal axes, which no weight's length notices, and scaled by Bohning's bound of the
    curvature along each, which leaves the minimum where it is and brings L-BFGS there in tens of steps.
    """
    x, y = x.to(device, torch.float32), y.to(device)
    centre = x.mean(0)
    variances, axes = torch.linalg.eigh((x - centre).T @ (x - centre) / len(x))
    used = variances > 1e-7 * variances[-1].clamp_min(1e-30)  # images that do not differ along an axis need no weight
    variances, axes = variances[used], axes[:, used]
    rows = (x - centre) @ axes
    weight, bias = rows.new_zeros(classes, len(variances)), rows.new_zeros(classes)
    for penalty in penalties:
        scale = (variances / 2 + penalty / len(x)).rsqrt()
        weight, bias = _fit(rows * scale, y, weight / scale, bias, penalty * scale.square() / len(x))
        weight = weight * scale
        turned = (axes @ weight.T).cpu()
        shift = (bias - centre @ axes @ weight.T).cpu()
        yield partial(_scores, turned, shift)


def _scores(
    weight: Float[Tensor, "dim classes"], bias: Float[Tensor, " classes"], x: Float[Tensor, "images dim"]
) -> Float[Tensor, "images classes"]:
    return x @ weight + bias


def _fit(
    rows: Float[Tensor, "images axes"],
    y: Shaped[Tensor, "images ..."],
    weight: Float[Tensor, "classes axes"],
    bias: Float[Tensor, " classes"],
    penalty: Float[Tensor, " axes"],
) -> tuple[Float[Tensor, "classes axes"], Float[Tensor, " classes"]]:
    """Minimise the mean loss plus half the squared weights times the penalty of their axis."""
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=MAX_ITERATIONS,
        history_size=20,
        tolerance_grad=TOLERANCE,
        tolerance_change=1e-10,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        value = _mean_loss(rows @ weight.T + bias, y) + 0.5 * (weight.square() * penalty).sum()
        value.backward()
        return value

    optimizer.step(objective)
    return weight.detach(), bias.detach()


def _mean_loss(scores: Float[Tensor, "images classes"], y: Int64[Tensor, "images ..."]) -> Float[Tensor, ""]:
    if y.ndim == 1:
        return F.cross_entropy(scores, y)
    return (F.softplus(-scores * y) * y.abs()).sum() / len(y)
