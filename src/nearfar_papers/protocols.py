"""The protocols of the papers' transfer tables on frozen features: `transfer`, `transfer-sgd` and
`low-shot`.

Each split is (features [images, dim], labels): one label an image, or for average precision a
matrix [images, classes] of 1, -1 and 0 (difficult, or not known).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from sklearn.metrics import precision_recall_curve
from sklearn.svm import LinearSVC
from torch import Tensor

from nearfar.device import find_device
from nearfar.evaluation import Probe
from nearfar.evaluation.labelled import labelled
from nearfar.evaluation.linear import train_classifier
from nearfar.progress import tracked

PROTOCOLS = ("transfer", "transfer-sgd", "low-shot")
PENALTIES = tuple(np.geomspace(1e-6, 1e5, 45).tolist())
RATES = tuple(np.geomspace(0.1, 100.0, 7).tolist())
STEPS = 5_000  # of SGD where no table says otherwise: LORAC's for small data sets
SHOTS, DRAWS = (16, 32, 64), 5
COST = 0.5  # C of the SVMs
MAX_ITERATIONS = 100  # of L-BFGS for a penalty, scikit-learn's default
# of the largest gradient entry of the mean loss, in the coordinates that are optimised
TOLERANCE = 1e-5

Classifier = Callable[[Float[Tensor, "images dim"]], Float[Tensor, "images classes"]]

Metric = Literal["accuracy", "mean_per_class", "eleven_point_map"]
Labelled = tuple[Tensor | np.ndarray, Tensor | np.ndarray | Sequence | None]
"""Features and labels of a split."""
Checked = tuple[Tensor, np.ndarray]


class Precision(NamedTuple):
    """Mean and deviation (population form) of the average precision over draws, 0..1."""

    mean: float
    deviation: float


class Transfer(NamedTuple):
    """The metric on the test split, 0..1, and the penalty or learning rate that the validation
    split chose.
    """

    score: float
    chosen: float


def protocol_results(
    protocol: str,
    splits: Mapping[str, Labelled],
    metric: Metric = "accuracy",
    steps: int | None = STEPS,
    seed: int = 0,
) -> dict[str, float]:
    """Return the results of a protocol by their keys in results.json; splits: "train", "test",
    perhaps "validation".
    """
    train, validation, test = splits["train"], splits.get("validation"), splits["test"]
    if protocol == "transfer":
        return {"transfer": transfer_accuracy(train, validation, test, metric, None, seed).score}
    if protocol == "transfer-sgd":
        return {
            "transfer_sgd": transfer_sgd_accuracy(
                train, validation, test, metric, steps, seed
            ).score
        }
    if validation is not None:
        train = _joined(_checked(train), _checked(validation, "validation"))
    results = {}
    for shots, score in low_shot_precision(train, test, seed=seed).items():
        results[f"low_shot_{shots or 'all'}"] = score.mean
        if shots is not None:
            results[f"low_shot_{shots}_std"] = score.deviation
    return results


def result_names(protocol: str) -> list[str]:
    """Return the keys that a protocol writes into results.json."""
    if protocol == "low-shot":
        return [f"low_shot_{shots}{end}" for shots in SHOTS for end in ("", "_std")] + [
            "low_shot_all"
        ]
    return [protocol.replace("-", "_")]


def transfer_accuracy(
    train: Labelled,
    validation: Labelled | None,
    test: Labelled,
    metric: Metric = "accuracy",
    penalties: Sequence[float] | None = None,
    seed: int = 0,
) -> Transfer:
    """Transfer by logistic regression on frozen features, as in SCE, section 4.4 and Table 9.

    The protocol is BYOL's (appendix D.3) in the form of Ericsson, Gouk and Hospedales (CVPR 2021,
    section 4.1 and released code): L-BFGS on the features as they are, without augmentation or
    standardisation; of 45 penalties, log-spaced from 1e-6 to 1e5, that with the best metric on the
    validation split is fitted again on training and validation images and tested once. penalties:
    others, each on the summed loss, 1 / C of scikit-learn. A matrix of labels gets a logistic
    regression for each class. validation: None takes a random fifth of the training images, as the
    released code does. Raises ValueError for missing labels and for one class.

    Differs from the released code: fits go from the largest penalty down, each from where the last
    one ended, and so come nearer to their optima within the 100 iterations that both allow; images
    that are difficult for a class are left out for it.
    """
    train, held, test = _splits(train, validation, test, seed)
    order = sorted(penalties or PENALTIES, reverse=True)
    chosen_by = _path_scores(train, held, order, metric)
    scores = list(tracked(chosen_by, "choosing the penalty", len(order)))
    best = max(
        range(len(order)), key=lambda i: (scores[i], i)
    )  # of equal ones the smallest penalty
    tested = _path_scores(_joined(train, held), test, order[: best + 1], metric)
    *_, score = tracked(tested, "fitting with that penalty", best + 1)
    return Transfer(score, order[best])


def _path_scores(
    train: Checked, test: Checked, penalties: Sequence[float], metric: Metric
) -> Iterator[float]:
    """The metric on a test split of the classifier of each penalty."""
    classes, target = _targets(train[1])
    for classify in regularisation_path(train[0], target, len(classes), penalties):
        yield measure(metric, test[1], classify(test[0]).numpy(), classes)


def transfer_sgd_accuracy(
    train: Labelled,
    validation: Labelled | None,
    test: Labelled,
    metric: Metric = "accuracy",
    steps: int | None = STEPS,
    seed: int = 0,
) -> Transfer:
    """Transfer by SGD on frozen features, as in LORAC, section 6.1 and Table 2.

    Batches of 256, momentum 0.9, no weight decay, and the best of 7 learning rates, log-spaced from
    0.1 to 100, which falls along a cosine over 5,000 or 30,000 steps, by the data set; all rates
    are one batched head. The validation split chooses, and the chosen rate trains again on both.
    steps: of each fit, None for 100 epochs. Else as `transfer_accuracy`, for one label an image.

    Differs from the paper: it does not say which images chose the rate; every image is seen in one
    view.
    """
    train, held, test = _splits(train, validation, test, seed)
    if train[1].ndim > 1:
        raise ValueError(
            "transfer-sgd needs one label an image; for several choose transfer or low-shot"
        )
    probe = Probe("LORAC, section 6.1, Table 2", RATES, steps=steps)
    both_x, both_y = _joined(train, held)
    classes, number = _targets(both_y)
    kept, validating = torch.arange(len(both_x)).split([len(train[0]), len(held[0])])
    rate, weight, bias = train_classifier(
        probe, both_x, number, len(classes), (validating, kept), seed, find_device()
    )
    scores = test[0] @ weight.T + bias
    return Transfer(measure(metric, test[1], scores.numpy(), classes), rate)


def low_shot_precision(
    train: Labelled,
    test: Labelled,
    shots: Sequence[int] = SHOTS,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[int | None, Precision]:
    """Mean average precision of linear SVMs from so many images a class, and from all of them (key
    None).

    The protocol of SCE, section 4.4 and Table 10, which follows ReSSL and so the released code of
    PCL (Li et al., ICLR 2021): features of length 1; for each class one linear SVM with the squared
    hinge loss, C = 0.5 and positives that count twice, against all other images drawn; k positives
    are drawn for each class, with all of their labels, and an image drawn for two classes is there
    twice; the mean and deviation (population form) of 5 draws. The average precision is the area
    below the curve made to fall only. In a matrix of labels 0 counts as -1, as in that code. A
    class with fewer images gives all that it has. A class that training lacks is found by chance:
    its precision is its share of the test images.
    """
    (train_x, train_y), (test_x, test_y) = _checked(train), _checked(test, "test")
    classes = (
        np.arange(train_y.shape[1])
        if train_y.ndim > 1
        else np.unique(np.concatenate([train_y, test_y]))
    )
    fit, held = _signs(train_y, classes), _signs(test_y, classes)
    rows, tests = F.normalize(train_x, dim=1).numpy(), F.normalize(test_x, dim=1).numpy()
    plans: list[tuple[int | None, int]] = [*product(shots, range(draws)), (None, 0)]
    precisions: dict[int | None, list[float]] = {}
    for k, draw in tracked(plans, "fitting linear SVMs"):
        chosen = np.arange(len(fit)) if k is None else draw_positives(fit, k, [seed, draw, k])
        scores = np.zeros(
            (len(tests), fit.shape[1])
        )  # of a class that all images or none of them show
        for number, column in enumerate(fit[chosen].T):
            if len(np.unique(column)) == 2:
                svm = LinearSVC(
                    C=COST, class_weight={1: 2, -1: 1}, dual=True, max_iter=2000, random_state=0
                )
                scores[:, number] = svm.fit(rows[chosen], column).decision_function(tests)
        precisions.setdefault(k, []).append(mean_precision(area_precision, held, scores))
    return {
        k: Precision(float(np.mean(values)), float(np.std(values)))
        for k, values in precisions.items()
    }


def draw_positives(
    labels: Int[np.ndarray, "images classes"], k: int, seed: Sequence[int]
) -> Int[np.ndarray, " chosen"]:
    """Draw k images of each class, class by class, without replacement within one; returns their
    rows.
    """
    generator = np.random.default_rng(list(seed))
    members = [np.flatnonzero(column > 0) for column in labels.T]
    return np.concatenate([generator.permutation(rows)[:k] for rows in members])


def measure(
    metric: Metric,
    labels: Shaped[np.ndarray, "images ..."],
    scores: Float[np.ndarray, "images classes"],
    classes: np.ndarray,
) -> float:
    """Return a metric 0..1 of scores: of the class with the largest one, or of the order of the
    images by class.
    """
    if metric == "eleven_point_map":
        return mean_precision(eleven_point_precision, labels, scores)
    predicted = classes[scores.argmax(1)]
    if metric == "accuracy":
        return float(np.mean(predicted == labels))
    return float(
        np.mean([np.mean(predicted[labels == label] == label) for label in np.unique(labels)])
    )


def mean_precision(
    kind: Callable[..., float],
    labels: Int[np.ndarray, "images classes"],
    scores: Float[np.ndarray, "images classes"],
) -> float:
    """Average over the classes that some image shows; images labelled 0 (difficult) are left out,
    as VOC does.
    """
    each = [kind(y[y != 0] > 0, row[y != 0]) for y, row in zip(labels.T, scores.T, strict=True)]
    return float(np.nanmean(each))


def eleven_point_precision(
    shows: Shaped[np.ndarray, " images"], scores: Float[np.ndarray, " images"]
) -> float:
    """Return the mean of the best precisions at recalls of 0, 0.1, ... 1 or more (Everingham et al.
    2010, section 4.2).

    shows: true for images that show the class. NaN where no image does.

    Differs from Ericsson et al.'s released code: that counts the point of recall 0 and precision 1,
    which scikit-learn's curve ends with, so that recall 0 always gives 1.
    """
    precision, recall = _curve(shows, scores)
    return float(
        np.mean([precision[recall >= level - 1e-9].max() for level in np.linspace(0, 1, 11)])
    )


def area_precision(
    shows: Shaped[np.ndarray, " images"], scores: Float[np.ndarray, " images"]
) -> float:
    """Return the area below the precision-recall curve made to fall only (VOC from 2010 on). NaN
    where none is true.
    """
    precision, recall = _curve(shows, scores)
    best = np.maximum.accumulate(
        precision
    )  # of this recall or a larger one: the curve goes from recall 1 downward
    return float(-np.diff(recall, append=0.0) @ best)


def _curve(shows: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall from the lowest threshold to the highest, NaN where there is nothing to
    find.
    """
    if not shows.any():
        return np.full(1, np.nan), np.ones(1)
    precision, recall, _ = precision_recall_curve(shows, scores)
    return precision[:-1], recall[:-1]


def _checked(split: Labelled, name: str = "training") -> Checked:
    x, y = split
    if not isinstance(y, (np.ndarray, Tensor)) or y.ndim != 2:
        return labelled(x, y, name)
    return labelled(x, np.zeros(len(y), dtype=int), name)[0], np.asarray(y)


def _splits(
    train: Labelled, validation: Labelled | None, test: Labelled, seed: int
) -> tuple[Checked, ...]:
    """Check the three splits; the second one is a random fifth of the first where there is none."""
    (x, y), held = (
        _checked(train),
        None if validation is None else _checked(validation, "validation"),
    )
    if held is None:
        if len(x) < 2:
            raise ValueError("a validation set takes two training images or more, there is one")
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        fifth = max(1, len(x) // 5)
        chosen, others = order[:fifth], order[fifth:]
        held, x, y = (x[chosen], y[chosen.numpy()]), x[others], y[others.numpy()]
    if y.ndim == 1 and len(np.unique(y)) < 2:
        raise ValueError(
            "transfer needs at least two classes among the training labels, there is one"
        )
    return (x, y), held, _checked(test, "test")


def _joined(*parts: Checked) -> Checked:
    return torch.cat([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _targets(labels: np.ndarray) -> tuple[np.ndarray, Tensor]:
    """The classes, and each image's as a number; of a matrix its columns, and the matrix."""
    if labels.ndim > 1:
        return np.arange(labels.shape[1]), torch.from_numpy(labels)
    classes, numbers = np.unique(labels, return_inverse=True)
    return classes, torch.from_numpy(numbers.astype(np.int64))


def _signs(
    labels: Shaped[np.ndarray, "images ..."], classes: np.ndarray
) -> Int[np.ndarray, "images classes"]:
    shown = labels > 0 if labels.ndim > 1 else labels[:, None] == classes
    return np.where(shown, 1, -1)


def regularisation_path(
    x: Float[Tensor, "images dim"],
    y: Shaped[Tensor, "images ..."],
    classes: int,
    penalties: Sequence[float],
) -> Iterator[Classifier]:
    """Fit a linear classifier for each penalty, in that order: a function from features to the
    scores of the classes.

    The sum of the losses over the images plus penalty / 2 times the squared weights is minimised,
    biases being free; scikit-learn's C is 1 / penalty. y: class numbers [images], for a softmax
    over the classes; or [images, classes] with 1 (there), -1 (not there) and 0 (not known, left
    out), for a logistic regression of each class on its own. Start with the largest penalty: every
    fit begins where the one before ended.

    The features are taken as they are. Only the search is in other coordinates: shifted by the
    mean, which the biases take up, turned to the principal axes, which no weight's length notices,
    and scaled by Bohning's bound of the curvature along each, which leaves the minimum where it is
    and brings L-BFGS there in tens of steps.
    """
    x, y = x.to(find_device(), torch.float32), y.to(find_device())
    centre = x.mean(0)
    axes, variances = principal_axes(x - centre)
    used = variances > 1e-7 * variances[0].clamp_min(
        1e-30
    )  # images that do not differ along an axis need no weight
    variances, axes = variances[used], axes[:, used]
    rows = (x - centre) @ axes
    weight, bias = rows.new_zeros(classes, len(variances)), rows.new_zeros(classes)
    for penalty in penalties:
        scale = (variances / 2 + penalty / len(x)).rsqrt()
        weight, bias = _fit(
            rows * scale, y, weight / scale, bias, penalty * scale.square() / len(x)
        )
        weight = weight * scale
        turned = weight @ axes.T
        yield partial(F.linear, weight=turned.cpu(), bias=(bias - turned @ centre).cpu())


def principal_axes(
    rows: Float[Tensor, "images dim"],
) -> tuple[Float[Tensor, "dim axes"], Float[Tensor, " axes"]]:
    """Return the principal axes of centred rows and the variances along them, from the largest.

    By singular values: MKL's eigh may fail on two threads. Of the rows where they are fewer than
    the dimensions, else of their covariance.
    """
    if len(rows) < rows.shape[1]:
        _, deviations, turned = torch.linalg.svd(rows / len(rows) ** 0.5, full_matrices=False)
        return turned.T, deviations.square()
    axes, variances, _ = torch.linalg.svd(rows.T @ rows / len(rows))
    return axes, variances


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
        scores = rows @ weight.T + bias
        loss = (
            F.cross_entropy(scores, y)
            if y.ndim == 1
            else (F.softplus(-scores * y) * y.abs()).sum() / len(y)
        )
        value = loss + 0.5 * (weight.square() * penalty).sum()
        value.backward()
        return value

    optimizer.step(objective)
    return weight.detach(), bias.detach()
