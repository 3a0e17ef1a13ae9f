"""Problems of single images in a data set, the sizes of the classes, and what to do first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import normalize

from nearfar.data import Images
from nearfar.data.left_out import is_damage
from nearfar.messages import listed_names
from nearfar.neighbours import Link, Nearest, group_links, same_proportions
from nearfar.neighbours.groups import components
from nearfar.neighbours.links import EDITED
from nearfar.tools.check.image_issues import USUAL, find_image_issues
from nearfar.tools.check.label_issues import (
    MOST_FITTED,
    WEAK,
    LabelIssues,
    Predicted,
    find_label_issues,
)

# a near leak is no farther than so much of the distance to the next image: others are like many
# images
APART = 0.5
HANDFUL = 5  # images: of classes with fewer no label is examined
ADVICE = {  # by the name of each problem, in the order of their weight
    "leak": "remove from one of the splits the images that are copies across splits",
    "copies disagree": "decide on one label for the images whose copies have another",
    "label issue": "look through the label issues from the first on, until most labels are right",
    "near leak": "look at the images that nearly repeat a training image",
    "unreadable": "replace the images that cannot be read",
    "left out": "look through what was left out",
    "nearly uniform": "remove the images that show nothing",
    "dark": "look at the dark images",
    "overexposed": "look at the overexposed images",
    "blurred": "look at the blurred images",
    "odd size": "look at the images of an odd size",
    "odd proportions": "look at the images of odd proportions",
}
MEASURED = {
    "nearly uniform": "brightness varies by {:.1f} of 255",
    "dark": "98 % is below {:.0f} of 255",
    "overexposed": "{:.0%} is white",
    "blurred": "blur {:.2f}",
    "odd size": "{:.1f} times larger or smaller than usual",
    "odd proportions": "one side {:.1f} times the other",
}


class Issue(NamedTuple):
    """A problem of an image by its position, -1 for one that cannot be read; other: position of its
    copy, or -1.
    """

    problem: str
    row: int
    name: str
    words: str
    measure: float | None = None
    suggested: str = ""
    other: int = -1


def duplicate_issues(
    links: Sequence[Link],
    near: float,
    features: Float[Tensor, "images dim"],
    names: Sequence[str],
    splits: Sequence[str],
    labels: Sequence[str],
    nearest: Nearest | None = None,
    edit_between: Callable[[int, int], str] | None = None,
) -> list[Issue]:
    """Problems of images that repeat others: a training image in another split, or one with another
    label.

    links, near: of copies and near-duplicates, and the distance up to which the latter count.
    Near-duplicates are near leaks if any other image is at least twice as far from both (Lowe 2004
    matches so). Of copies with different labels those are listed that most do not have; all, if
    there is no such majority. nearest: the nearest others of each image, where they are known; then
    none farther is looked for. edit_between: says how an image becomes an edited copy. A part of an
    image may have a label of its own: edited copies do not disagree.
    """
    copies, near_duplicates = group_links(links, len(names), near)
    issues, leaked = [], set[int]()

    def add(problem: str, row: int, other: int, words: str, suggested: str = "") -> None:
        own, others = normalize(features[[row, other]], dim=1)
        distance = float((own - others).square().sum() / 2)
        issues.append(
            Issue(problem, row, names[row], f"{words} {names[other]}", distance, suggested, other)
        )

    copies_of = {row: group for group in copies for row in group}
    unit = cache(partial(normalize, features, dim=1))  # if at all: it takes as much memory as they

    def stands_out(row: int, other: int, group: Sequence[int]) -> bool:
        if nearest is not None:
            return _stands_out(nearest, row, other, group, copies_of)
        distance = 1 - unit()[[row, other]] @ unit().T
        near = float(distance[0, other])
        distance[:, [copy for member in group for copy in copies_of.get(member, [member])]] = (
            torch.inf
        )
        return near <= APART * float(distance.min())

    relation_of = _relations(links, len(names))
    for problem, groups in (("leak", copies), ("near leak", near_duplicates)):
        for group in groups:
            of_train = [row for row in group if splits[row] == "train"]
            others = [
                row for row in group if splits[row] not in ("", "train") and row not in leaked
            ]
            for row in others if of_train else ():
                if problem == "leak":
                    relation, other = relation_of(row, of_train)
                    if edit_between is not None and relation == "edited copy of":
                        relation = f"{edit_between(other, row)}: {relation}"
                    add(problem, row, other, relation)
                elif stands_out(row, of_train[0], group):
                    add(problem, row, of_train[0], "much like")
                else:
                    continue
                leaked.add(row)
    unedited, _ = group_links([link for link in links if link.kind != EDITED], len(names), near)
    for row, other, clear in _disagreeing(unedited, labels):
        add("copies disagree", row, other, f"{labels[row]}, but {labels[other]} as", clear)
    return issues


def _relations(
    links: Sequence[Link], count: int
) -> Callable[[int, Sequence[int]], tuple[str, int]]:
    """Return what tells of which of several images in its group an image is the closest copy, and
    of what kind.
    """
    proportions = same_proportions(links, count)
    unedited = components(count, [link[1:3] for link in links if link.kind < EDITED])

    def relation_of(row: int, others: Sequence[int]) -> tuple[str, int]:
        for relation, same in (("copy of", proportions), ("stretched copy of", unedited)):
            for other in others:
                if same[other] == same[row]:
                    return relation, other
        return "edited copy of", others[0]

    return relation_of


def _disagreeing(
    copies: Sequence[Sequence[int]], labels: Sequence[str]
) -> Iterator[tuple[int, int, str]]:
    """Yield images whose copies have another label, one of these, and the label of most, or ""."""
    for group in copies:
        counts = Counter(labels[row] for row in group if labels[row]).most_common()
        clear = counts[0][0] if len(counts) > 1 and counts[0][1] > counts[1][1] else ""
        for row in group if len(counts) > 1 else ():
            if labels[row] not in ("", clear):
                other = next(
                    candidate
                    for candidate in group
                    if labels[candidate] == (clear or labels[candidate]) not in ("", labels[row])
                )
                yield row, other, clear


def _stands_out(
    nearest: Nearest,
    row: int,
    other: int,
    group: Sequence[int],
    copies_of: Mapping[int, Sequence[int]],
) -> bool:
    """Return whether two images of a group are at most half as far apart as the next known image of
    either.
    """
    own = {copy for member in group for copy in copies_of.get(member, [member])}
    apart, next_one = float("inf"), float("inf")
    for end, far_end in ((row, other), (other, row)):
        indices, distances = nearest.index[end].tolist(), nearest.distance[end].tolist()
        for place, distance in zip(indices, distances, strict=True):
            if place == far_end:
                apart = min(apart, distance)
            elif place not in own:
                next_one = min(next_one, distance)
                break
        else:
            next_one = min(next_one, distances[-1])
    return apart <= APART * next_one


def repeats_words(links: Sequence[Link], near: float, images: int) -> list[str]:
    """Say in one line how many images are copies of others, wherever these lie; none where none
    are.
    """
    copies, _ = group_links(links, images, near)
    count = sum(len(group) - 1 for group in copies)
    if not count:
        return []
    return [f"{count} of {images} images repeat another one: nearfar duplicates lists them"]


def label_problems(
    images: Images,
    features: Float[Tensor, "images dim"],
    labels: Sequence[str],
    seed: int,
    approximate: bool,
    near: Nearest | None = None,
    copies: Int64[np.ndarray, " images"] | None = None,
) -> tuple[list[Issue], LabelIssues | None]:
    """Problems of labels that are likely wrong, the least probable labels first, and what was found
    of all labels.

    features: [images, dim], which are not read where there are more than 50 000 labels and `near`
    is known. Neither without labels. near: the nearest others of each image, where they are known.
    copies: a number that the copies of an image share, for they do not confirm each other's label.
    """
    if images.labels is None:
        return [], None
    rows = np.flatnonzero(images.labels >= 0)
    word = dict(zip(images.labels.tolist(), labels, strict=True))
    are_read = near is None or len(rows) <= MOST_FITTED
    if near is not None:
        near = near.among(torch.from_numpy(rows), near.index.shape[1])
    issues = find_label_issues(
        normalize(features[torch.from_numpy(rows)], dim=1) if are_read else None,
        images.labels[rows],
        seed,
        approximate=approximate,
        near=near,
        group=None if copies is None else copies[rows],
    )
    problems = []
    for place, own, other, chance in zip(*(values.tolist() for values in issues[:4]), strict=True):
        row = int(rows[place])
        words = f"{labels[row]} ({own:.0%}), perhaps {word[other]} ({chance:.0%})"
        problems.append(
            Issue("label issue", row, images.names[row], words, own / chance, word[other])
        )
    return problems, issues


def predicted_words(predicted: Predicted, listed: int, remedy: str) -> str:
    """Say how well labels can be predicted, and what to do where the features are too weak to list
    any.
    """
    unequal = abs(predicted.balanced - predicted.accuracy) >= 0.005
    balanced = f", balanced accuracy {predicted.balanced:.1%}" if unequal else ""
    measured = (
        f"labels as predicted from the other images: {predicted.accuracy:.1%} right{balanced} "
        f"(the largest class has {predicted.largest:.1%})"
    )
    if listed or predicted.skill >= WEAK:
        return measured
    return f"{measured}: too few to tell wrong labels from hard images, so none is listed; {remedy}"


def unexamined_words(issues: LabelIssues, labels: Int64[np.ndarray, " images"]) -> list[str]:
    """Say how many images have no label, and how many labels are of classes too small to judge."""
    missing, few = int((labels < 0).sum()), issues.unexamined
    lines = [f"{missing} of {len(labels)} images have no label"] if missing else []
    if issues.predicted is None:
        lines.append(
            f"the labels are not examined: fewer than two classes have {HANDFUL} different images"
        )
    elif few:
        lines.append(
            f"{few} labels are not examined: their classes have fewer than {HANDFUL} different "
            "images"
        )
    return lines


def remedy(run: bool) -> str:
    """Name the encoder that would predict labels better; run: whether it is that of a run."""
    timm = "`encoder` with a pretrained model of timm, such as resnet50"
    if run:
        return f"train on, or check the data with {timm}"
    return f"check a run of nearfar pretrain on these images, or try {timm}"


def image_problems(
    images: Images, measured: Float[np.ndarray, "images 4"] | None = None
) -> tuple[list[Issue], list[str]]:
    """Problems of images that are blurred, dark, plain or of an odd shape, and of those that cannot
    be read.

    What more than a sixth of the images have is no anomaly: a line says so, and none of them is
    listed. measured: the measures of the images, where they are known.
    """
    problems = [
        Issue("unreadable" if is_damage(why) else "left out", -1, name, why)
        for name, why in images.skipped
    ]
    usual = []
    for problem, rows in find_image_issues(images, measured).items():
        if len(rows) > USUAL * len(images):
            usual.append(
                f"{problem}: {len(rows)} of {len(images)} images, which is usual here, so "
                f"none is listed"
            )
            continue
        problems += [
            Issue(problem, row, images.names[row], MEASURED[problem].format(value), value)
            for row, value in rows
        ]
    return problems, usual


def class_counts(labels: Sequence[str], splits: Sequence[str]) -> dict[str, list[Any]]:
    """The images of each class, the largest first, then of those without a label, in all and by
    split.
    """
    counts, pairs = Counter(labels), Counter(zip(labels, splits, strict=True))
    ranked = sorted(counts, key=lambda name: (name == "", -counts[name], name))
    columns: dict[str, list[Any]] = {"label": ranked, "images": [counts[name] for name in ranked]}
    divided = list(dict.fromkeys(splits)) if len(set(splits)) > 1 else []
    return columns | {split: [pairs[name, split] for name in ranked] for split in divided}


def unseen_words(classes: Mapping[str, Sequence[Any]]) -> list[str]:
    """Say which classes of another split have no training image, in a line for each split."""
    lines = []
    for split in [name for name in classes if name not in ("label", "images", "", "train")]:
        counts = zip(classes["label"], classes[split], classes.get("train", ()), strict=False)
        unseen = [label for label, here, train in counts if label and here and not train]
        if unseen:
            lines.append(
                f"classes of the {split} split without a training image ({len(unseen)}): "
                f"{listed_names(unseen)}"
            )
    return lines


def next_step(
    problems: Sequence[Issue], classes: Mapping[str, Sequence[Any]], noted: bool = False
) -> str:
    """Say what to do, in a sentence: the two steps that matter most, and near leaks, which a
    measurement hides. noted: whether lines say more of the images than the problems do.
    """
    counts = Counter(issue.problem for issue in problems)
    steps = [f"{advice} ({counts[name]})" for name, advice in ADVICE.items() if counts[name]]
    sizes = [size for label, size in zip(classes["label"], classes["images"], strict=True) if label]
    if small := sum(size < HANDFUL for size in sizes):
        steps.insert(2, f"collect more images of the classes with fewer than {HANDFUL} ({small})")
    near = [step for step in steps[2:] if step.startswith(ADVICE["near leak"])]
    nothing = f"nothing {'else ' if noted else ''}was found, use the data as it is"
    words = "; then ".join(steps[:2] + near) or nothing
    return f"{words[0].upper()}{words[1:]}."
