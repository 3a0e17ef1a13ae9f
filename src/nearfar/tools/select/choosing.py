"""Ways to choose images by their features, and what was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from nearfar.embeddings import Embeddings
from nearfar.embeddings.queries import resolve_names, resolve_queries
from nearfar.messages import check_range, did_you_mean
from nearfar.neighbours import diverse_rows, find_nearest, outlier_rows, typical_rows
from nearfar.progress import waiting
from nearfar.tools.result import FILES, ON_PAGE, Result, tar_command

Rows = Int64[Tensor, " chosen"]
Distances = Float[Tensor, " chosen"]
MANY, NEIGHBOURS = 100, 10  # images and neighbours, where nobody says how many
COMPARED = 20_000  # names that a misspelt one is compared with


class Selected(Result):
    """Images that were chosen, in their order."""

    def __init__(
        self, photos: Embeddings, chosen: Rows, distance: Distances, by: str, meaning: str
    ) -> None:
        """meaning: what the distance is, in words."""
        rows = chosen.tolist()
        columns = {
            "rank": list(range(1, len(rows) + 1)),
            "name": [photos.images.names[row] for row in rows],
            "distance": distance.tolist(),
        } | photos.columns(rows)
        about = f"{len(rows)} of {len(photos)} images of {photos.images.where}"
        about += f", the first {ON_PAGE}" if len(rows) > ON_PAGE else ""
        super().__init__(
            photos,
            columns,
            rows=rows,
            title=f"Selected: {by}",
            about=about,
            note=f"The line below a name is its rank, and {meaning}.",
            captions=[f"{rank}: {far:.4f}" for rank, far in enumerate(columns["distance"], 1)],
            lines=[f"{len(rows)} images"],
            files=columns.get("path"),
        )

    def after(self, path: Path) -> Sequence[str]:
        """Return the command that packs copies of the files."""
        if self.files is None:
            return ()
        command = tar_command(path.with_suffix(FILES))
        return [f"to pack copies of them into an archive: {command}"]


def labelled_rows(photos: Embeddings, labelled: Any) -> Int64[Tensor, " labelled"]:
    """Return the positions of images that have labels already; ValueError for one that is missing,
    and where none is left.
    """
    words = [labelled] if isinstance(labelled, (str, Path)) else list(labelled or ())
    places, names = resolve_names(words, photos), photos.images.names
    if missing := [word for word, row in places if row < 0]:
        near = did_you_mean(missing[0], names[:COMPARED], "see `nearfar embed` for the names")
        raise ValueError(f"`labelled`: {missing[0]!r} is not an image of the data: {near}")
    done = torch.tensor(sorted({row for _, row in places}), dtype=torch.int64)
    if len(done) == len(names):
        raise ValueError("`labelled` names every image of the data: none is left to choose")
    return done


def near_others(
    photos: Embeddings, images: Any, n: int | None, done: Tensor, approximate: bool
) -> tuple[Rows, Distances]:
    """Choose the images nearest to any of the given ones."""
    queries = resolve_queries(images, photos)
    others = torch.ones(len(photos), dtype=torch.bool)
    others[queries.own[queries.own >= 0]] = False
    others[done] = False
    if not others.any():
        raise ValueError("`by='near'`: every image of the data is given or labelled already")
    wanted = _count(n, int(others.sum()))
    near = find_nearest(queries.features, photos.features[others], 1, approximate=approximate)
    distance, order = near.distance[:, 0].sort(stable=True)
    return others.nonzero()[:, 0][order[:wanted]], distance[:wanted]


def outliers(
    photos: Embeddings, n: int | None, done: Tensor, k: int | None, approximate: bool
) -> tuple[Rows, Distances]:
    """Choose the images farthest from their k-th neighbour."""
    k = min(NEIGHBOURS, len(photos) - 1) if k is None else k
    wanted = _count(n, len(photos) - len(done))
    check_range("k", k, 1, len(photos) - 1)
    far = find_nearest(photos.features, None, k, approximate=approximate).distance
    far[done] = -1
    return outlier_rows(far, wanted)


def covering(
    photos: Embeddings, n: int | None, done: Tensor, by: str, seed: int
) -> tuple[Rows, Distances]:
    """Choose images that cover the data: "diverse", or "typical" ones of its clusters."""
    wanted = _count(n, len(photos) - len(done))
    with waiting("choosing"):
        if by == "diverse":
            return diverse_rows(photos.features, wanted, labelled=done)
        return typical_rows(photos.features, wanted, seed=seed, labelled=done)


def _count(n: int | None, most: int) -> int:
    """Return how many images to choose of at most so many; ValueError for more."""
    check_range("n", n, 1, most)
    return min(MANY, most) if n is None else n
