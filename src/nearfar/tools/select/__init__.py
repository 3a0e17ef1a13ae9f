"""The tool that chooses images to label or to look at.

nearfar select runs/photos --n 200 --by typical
nearfar select runs/photos beach.jpg --by near --n 50
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, Literal

from nearfar.messages import check_known
from nearfar.tools.registry import Between, Seed, tool

if TYPE_CHECKING:
    from nearfar.embeddings import Embeddings
    from nearfar.tools.select.choosing import Selected

MEANING = {
    "diverse": "its distance to those before it",
    "typical": "its mean distance to its neighbours",
    "outlier": "its distance to its last neighbour",
    "near": "its distance to the nearest image given",
}


def _check(source: Any, given: Mapping[str, Any]) -> None:
    """Raise ValueError for options that do not go together."""
    images, by = given["images"], given["by"]
    check_known("`by`", by, MEANING)
    if isinstance(images, Real):
        raise ValueError(f"{images} is no image: `n={images}` is the number of those to choose")
    some = images is not None and (not hasattr(images, "__len__") or len(images) > 0)
    if some != (by == "near"):
        raise ValueError(
            "`by='near'` needs images, and nothing else does: "
            "`nearfar.select(RUN, IMAGES, by='near')`"
        )
    if given["k"] is not None and by != "outlier":
        raise ValueError("`k` goes with `by='outlier'`: leave it out, or choose by that")
    if given["approximate"] and by in ("diverse", "typical"):
        raise ValueError("`approximate` goes with `by='outlier'` and `by='near'`: leave it out")


@tool(
    page="selection",
    beside=(".csv", ".list"),
    data="images to choose from",
    lists=True,
    before=_check,
)
def select(
    photos: Embeddings,
    images: Any = (),
    *,
    n: Annotated[int | None, Between(1)] = None,
    by: Literal["diverse", "typical", "outlier", "near"] = "diverse",
    labelled: Any = (),
    k: Annotated[int | None, Between(1)] = None,
    approximate: bool = False,
    seed: Seed = 0,
) -> Selected:
    """Choose images to label or to look at: diverse, typical, odd ones, or those near others.

    Args:
        images: for `by='near'`: names in the data, files, or text files with one name per line.
        n: number of images to choose. Default: 100, or all where they are fewer.
        by: "diverse" (farthest point first: covers everything, odd images too), "typical"
            (TypiClust: one from the centre of each cluster; best for very few labels), "outlier"
            (far from its k-th neighbour), or "near" (nearest to any of the images given).
            docs/neighbours.md has the sources.
        labelled: images that have labels already, given like `images` (on the command line one name
            or text file): they are left out, diverse continues from them, and typical prefers
            clusters without them.
        k: for `by='outlier'`: the neighbour whose distance counts. Default: 10, or the last where
            they are fewer.
        approximate: for `by='outlier'` and `by='near'`: search by inverted lists instead of
            comparing all pairs.
        seed: random seed of the clusters, for `by='typical'`.

    Returns:
        Columns "rank" from 1, "name", "distance" (which one depends on `by`) and, for images in
        files, "path". Nothing is moved or copied.

    Raises:
        ValueError: for more images than there are, an unknown `by`, or missing or superfluous
            images for it.

    >>> found = nearfar.select("runs/photos", n=3, by="outlier")
    >>> len(found["name"])
    3
    """
    from nearfar.tools.select.choosing import (
        Selected,
        covering,
        labelled_rows,
        near_others,
        outliers,
    )

    done = labelled_rows(photos, labelled)
    if by == "near":
        chosen = near_others(photos, images, n, done, approximate)
    elif by == "outlier":
        chosen = outliers(photos, n, done, k, approximate)
    else:
        chosen = covering(photos, n, done, by, seed)
    return Selected(photos, *chosen, by, MEANING[by])
