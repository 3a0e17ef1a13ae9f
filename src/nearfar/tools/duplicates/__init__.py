"""The tool that finds copies of images, and near-duplicates.

nearfar duplicates runs/photos
nearfar duplicates runs/photos others/ --distance 0.02 --out others.html
nearfar duplicates runs/photos new/ --against archive/ --orientations
nearfar duplicates photos/
nearfar duplicates photos/ --engine ray --workers 4
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from nearfar.tools.registry import Between, tool

if TYPE_CHECKING:
    from nearfar.embeddings import Embeddings
    from nearfar.tools.duplicates.result import Duplicates


@tool(
    page="duplicates",
    beside=(".csv", ".list"),
    data="images to compare",
    split="all",
    copies=True,
    engine=True,
    fewest=1,
    lists=True,
)
def duplicates(
    photos: Embeddings,
    *,
    against: Any = None,
    orientations: bool = False,
    edits: bool | None = None,
    distance: Annotated[float | None, Between(0, 2)] = None,
    approximate: bool = False,
) -> Duplicates:
    """Find copies of images, exact, resized or encoded again, and near-duplicates.

    Args:
        against: an archive: list the images that it holds already, each with its closest one there,
            instead of copies among the images themselves. Nothing of the archive is listed for
            removal. All its splits are read.
        orientations: find turned and mirrored copies too, in the seven other orientations of a
            square; they are never listed for removal. It takes seven further searches over versions
            of 16 x 16 pixels, and no further features.
        edits: how edited copies are found: cropped, turned by any angle, mirrored, squeezed, with a
            border, blurred, in other colours or on a screenshot; they are never listed for removal.
            Default: a small net proposes pairs, local features say how one image becomes the other,
            and all pixels of the common area confirm it, where OpenCV is installed (`pip install
            'nearfar[edits]'`). True: local features of every image propose, which takes about twice
            as long, and does not depend on what the net was trained on (photographs). False: none.
            Text or a figure on an image is not found, since a form with another digit is no less
            alike. Images of less than 36 x 36 pixels are left out.
        distance: largest 1 - cos of the features for similar images that are not copies; the page
            has a slider to choose it by eye. Default: a tenth of the median distance of any two.
            Copies are confirmed by their pixels at full size, up to the distance by which features
            move when images are halved in size or saved as JPEG of quality 50 (measured on 128
            images).
        approximate: search by inverted lists instead of comparing all pairs, for hundreds of
            thousands of images; the share of the true nearest neighbours that it finds is reported.

    Returns:
        Columns "group" from 1; "kind": "first", "same file", "same pixels", "copy", "turned" or
        "mirrored" (perhaps turned, too), "stretched copy" of other proportions, "edited copy", or
        "first frame alone" of animations and documents of several pages, in a group of copies, else
        "near-duplicate"; "of": the image that this refers to, which is the first of the group, or
        for "same file" the one with these bytes, by its path or else its name, "" for the first
        itself; "kept": False for an image with the bytes of an image that is kept, unless removing
        it could harm: "why" is then "shows nothing", "belongs to another file of that name" (a
        mask, a second view, a text beside it), "in another class" or "in another split"; "name",
        "distance" to the first of the group, "width", "height", "bytes" and, for images in files,
        "path". The first of a group has the most copies that are not edited, then the most pixels,
        then the largest file, then lies in git-annex, then has the shortest name. Groups of copies
        come first. An image that is kept can be in a group of near-duplicates, too. Nothing is
        removed, and images with other bytes are for a person to look at: no list for removal names
        them. Where edited copies are looked for, a column "edit" says how the first of the group
        becomes one, as "turned by 12 degrees right, cropped to 71 %". With `against`, a row for
        each image that the archive has, and the columns "archive_name", "archive_width",
        "archive_height", "archive_bytes" and "archive_path" of its closest image there, in place of
        "group".

    Raises:
        ValueError: for a distance below 0 or above 2, fewer than two images, `orientations` or
            `edits` of vectors without images, `edits` without OpenCV, and `against` with vectors.

    >>> found = nearfar.duplicates("runs/photos")
    >>> found["name"], found["kind"]
    (['cat/3.png', 'cat/copy.png'], ['first', 'same file'])
    >>> copy = "photos/cat/copy.png"
    >>> found = nearfar.duplicates("runs/photos", copy, against="photos/cat", out="had.html")
    >>> found["name"], found["kind"], found["archive_name"]
    (['copy.png'], ['same file'], ['3.png'])
    """
    from nearfar.tools.duplicates.result import find_duplicates

    if orientations and not photos.has_pixels:
        raise ValueError("`orientations` compares pixels: name the images of these vectors")
    edits = photos.chosen_edits(edits)
    return find_duplicates(photos, against, orientations, edits, distance, approximate)
