"""The tool that finds the images most similar to given ones.

nearfar search runs/photos beach.jpg --k 20 --out beach.html
nearfar search runs/photos beach.jpg --null | xargs -0 ls -l
nearfar search photos/ part.jpg --crop --out part.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from nearfar.messages import check_range
from nearfar.tools.registry import Between, tool

if TYPE_CHECKING:
    from nearfar.embeddings import Embeddings
    from nearfar.tools.search.result import Origins, SearchResult

FEW = 10  # images, where nobody says how many


@tool(data="images to search", lists=True)
def search(
    photos: Embeddings,
    images: Any = (),
    *,
    k: Annotated[int | None, Between(1)] = None,
    crop: bool = False,
) -> SearchResult | Origins:
    """Find the images most similar to given ones: a table, a contact sheet, paths for other
    commands.

    Args:
        images: query images: names in the data, files, or text files with one name per line. In
            Python also pixels.
        k: number of images to find for each query. Default: 10, or all others where they are fewer.
        crop: find the image that each query was cropped, turned, mirrored or edited from, or that
            it shows as a part, instead of similar ones. Local features say how, and all pixels of
            the common area confirm it (`pip install 'nearfar[edits]'`). All images are looked
            at where none is found, those with similar features first (docs/neighbours.md#crops).
            Of pixels in memory the centre square counts, at the size of the features: name files
            where you can.

    Returns:
        Columns "query", "rank" from 1, "name", "distance" (1 - cos of the features: 0 for copies)
        and, for images in files, "path". An image of the data does not find itself. With `crop` a
        row for each query whose image is found: "query", "name", "edit" in words, as "mirrored,
        cropped to 36 %", "confirmed", and the box around the query in that image, in its pixels:
        "left", "top", "width", "height". Where that is not confirmed, local features agree and
        the pixels differ: another shot, a text on it, or JPEG of poor quality.

    Raises:
        ValueError: for images that are missing or unreadable, a k above the number of other images,
            and `crop` with `k`, without OpenCV, or with vectors without images.

    >>> found = nearfar.search("runs/photos", "photos/cat/copy.png", k=1)
    >>> found["name"], found["distance"]
    (['cat/3.png'], [0.0])
    """
    from nearfar.embeddings.queries import resolve_queries
    from nearfar.neighbours import find_nearest
    from nearfar.tools.search.result import SearchResult, find_origins

    if crop:
        return find_origins(photos, images, k)
    others = len(photos) - 1
    k = min(FEW, others) if k is None else k
    check_range("k", k, 1, others)
    queries = resolve_queries(images, photos)
    near = find_nearest(photos.features, queries.features, k, own=queries.own)
    return SearchResult(photos, queries, near)
