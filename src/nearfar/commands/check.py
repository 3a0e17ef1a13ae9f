"""The command that looks for mistakes in a data set: leaks, wrong labels, bad images.

nearfar check runs/photos
nearfar check runs/photos labelled/ --out labelled.html
nearfar check photos/
nearfar check clip.parquet photos/
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nearfar.isolation import isolated
from nearfar.messages import check_seed

if TYPE_CHECKING:
    from torch import nn


@isolated()
def check(
    run: Any,
    data: Any = None,
    *,
    out: str | Path | None = None,
    split: str | None = None,
    label_column: str | None = None,
    approximate: bool = False,
    seed: int = 0,
    encoder: str | nn.Module | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Look for mistakes in a data set: copies across splits, wrong labels, blurred, dark and odd
    images.

    Args:
        run: run folder; or, without one, the data itself, or a file of vectors made elsewhere
            (docs/neighbours.md).
        data: images to check. Default: the data of the run.
        out: page to write, .html, with a .csv and, of images in files, a .list of the leaks beside
            it; none may exist. Default: check.html in the run folder, which is replaced.
        split: part of the data. Default: all, since images of the test split can be copies of
            training images.
        label_column: column of the data with the labels. Default: one of a usual name, such as
            label.
        approximate: search with faiss's index instead of comparing all pairs, for hundreds of
            thousands of images; the share of the true nearest neighbours that it finds is reported.
        seed: random seed of the parts in which labels are predicted from the others.
        encoder: for data without a run: a timm model by name, hf:owner/name, pretrained, nearfar or
            a folder. Default: colours and edges for copies, the best features at hand for
            labels. In Python also the trained module of a run, if it was an object of your own.
        console: console for progress and messages.

    Returns:
        "problems": columns "problem" (docs/check.md lists them), "name", "split", "label",
        "suggested" (a label), "other" (the image that it repeats), "measure", "words" and, for
        images in files, "path"; what matters most comes first. "classes": columns "label", "images"
        and, by its name, the images of each split. "next": what to do in a sentence. Nothing is
        moved or removed.

    Raises:
        ValueError: for fewer than two images.

    >>> sorted(nearfar.check("photos"))
    ['classes', 'next', 'problems']
    """
    from torch.nn.functional import normalize

    from nearfar.neighbours import alike_distance, find_links
    from nearfar.pages import lists
    from nearfar.run import Run
    from nearfar.run_check import (
        ADVICE,
        class_counts,
        defective,
        doubtful,
        next_step,
        predicted_words,
        remedy,
        repeated,
        repeats_words,
    )
    from nearfar.run_features import open_featured, run_or_data
    from nearfar.training.seeding import stream

    run, console = run_or_data(run), console or Console()
    check_seed(seed)
    page = lists.output_of(run, out, "check", lists.TABLE, lists.FILES)
    known = open_featured(
        run, data, split or "all", encoder, console, label_column=label_column, copies=True
    )
    images, features = known.images, normalize(known.features, dim=1)
    splits, labels = images.split_names, images.label_names
    near = alike_distance(features, stream(0, "pairs"))
    most = max(known.copy_distance(), lists.BEYOND * near)
    links = find_links(images, features, most, approximate=approximate, pictured=known.pictured)
    problems = repeated(links, near, features, images.names, splits, labels)
    if known.for_copies and images.labels is not None:
        features = normalize(known.for_labels().features, dim=1)
    doubts, predicted = doubtful(images, features, labels, seed, approximate)
    said = (
        []
        if predicted is None
        else [predicted_words(predicted, len(doubts), remedy(isinstance(run, Run)))]
    )
    problems += doubts
    defects, usual = defective(images) if known.pictured else ([], [])
    noted = repeats_words(links, near, len(images)) + usual
    problems, said = problems + defects, said + noted
    problems.sort(key=lambda one: list(ADVICE).index(one.problem))

    rows = [one.row for one in problems]
    columns: dict[str, list[Any]] = {
        "problem": [one.problem for one in problems],
        "name": [one.name for one in problems],
        "split": ["" if row < 0 else splits[row] for row in rows],
        "label": ["" if row < 0 else labels[row] for row in rows],
        "suggested": [one.suggested for one in problems],
        "other": ["" if one.other < 0 else images.names[one.other] for one in problems],
        "measure": [one.measure for one in problems],
        "words": [one.words for one in problems],
    }
    if known.paths is not None:
        columns["path"] = ["" if row < 0 else known.paths[row] for row in rows]
    classes = class_counts(labels, splits)
    following = next_step(problems, classes, bool(noted))
    lists.write_check_page(page, known, problems, classes, following, said)
    lists.write_table(page.with_suffix(lists.TABLE), columns)
    if known.paths is not None:
        leaks = [known.paths[one.row] for one in problems if one.problem == "leak"]
        lists.write_files(page.with_suffix(lists.FILES), leaks)
    table = Table("problem", "images", "first")
    for name in dict.fromkeys(columns["problem"]):
        first = columns["problem"].index(name)
        words = f"{columns['name'][first]}: {columns['words'][first]}"
        table.add_row(name, str(columns["problem"].count(name)), Text(words))
    if problems:
        console.print(table)
    for line in said:
        console.print(Text(line))
    if images.labels is None:
        console.print("the images have no labels, which are needed to find wrong ones")
    console.print(Text(following))
    console.print(
        Text(
            f"look -> {page} and {page.with_suffix(lists.TABLE).name}; nothing was moved or removed"
        )
    )
    return {"problems": columns, "classes": classes, "next": following}
