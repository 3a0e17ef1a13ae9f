"""The tool that looks for mistakes in a data set: leaks, wrong labels, bad images.

nearfar check runs/photos
nearfar check runs/photos labelled/ --out labelled.html
nearfar check photos/
nearfar check photos/ --no-edits
nearfar check photos/ --engine ray --workers 4
nearfar check clip.parquet photos/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearfar.tools.registry import Seed, tool

if TYPE_CHECKING:
    from nearfar.embeddings import Embeddings
    from nearfar.tools.check.result import Checked


@tool(
    page="check",
    beside=(".csv", ".list"),
    data="images to check",
    split="all",
    labels=True,
    copies=True,
    engine=True,
)
def check(
    photos: Embeddings, *, edits: bool | None = None, approximate: bool = False, seed: Seed = 0
) -> Checked:
    """Look for mistakes in a data set: copies across splits, wrong labels, blurred, dark and odd
    images.

    Args:
        edits: whether a test image that is cropped, turned, mirrored or edited from a training
            image, or the other way round, is a leak. Default: where there are several splits and
            OpenCV is installed (`pip install 'nearfar[edits]'`). True: by a search that takes about
            twice as long (`nearfar.duplicates`). False: no.
        approximate: search by inverted lists instead of comparing all pairs, for hundreds of
            thousands of images; the share of the true nearest neighbours that it finds is reported.
        seed: random seed of the parts in which labels are predicted from the others.

    Returns:
        Columns "problem" (docs/check.md lists them), "name", "split", "label", "suggested" (a
        label), "other" (the image that it repeats), "measure", "words" and, for images in files,
        "path"; what matters most comes first. Further, `classes`: columns "label", "images" and, by
        its name, the images of each split; and `next`: what to do in a sentence. `summary()` has
        all three, the columns as "problems". Nothing is moved or removed.

    Raises:
        ValueError: for fewer than two images, and for `edits` of vectors without images or without
            OpenCV.

    >>> sorted(nearfar.check("photos").summary())
    ['classes', 'next', 'problems']
    """
    from nearfar.tools.check.result import check_images

    return check_images(photos, approximate, seed, photos.chosen_edits(edits))
