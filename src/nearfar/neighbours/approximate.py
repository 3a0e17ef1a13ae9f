"""Approximate nearest rows of a large matrix by an index of faiss, since comparing all pairs would
take hours.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from nearfar.device import find_device
from nearfar.neighbours.nearest import Nearest, nearest_rows
from nearfar.pairs.arithmetic import unit_rows
from nearfar.progress import log, progress

WANTED = 0.98  # share of the true neighbours at which the search is wide enough
SAMPLE = 1000  # queries on which the share is measured
A_LIST = 40  # rows from which the centre of a list is learned; faiss asks for 39
MOST_NEW = 10  # rows to one that is new, at least, where earlier neighbours are of use
PART = 8192  # queries between two moves of the bar


def find_nearest(
    rows: Float[Tensor, "rows dim"],
    queries: Float[Tensor, "queries dim"] | None = None,
    k: int = 10,
    *,
    own: Int64[Tensor, " queries"] | None = None,
    approximate: bool = False,
) -> Nearest:
    """Find the k nearest rows of each query by cosine, exactly or by an index; arguments as in
    `nearest_rows`.

    Exact: on a GPU if there is one. approximate: by `approximate_rows`, which takes no `own`; a
    line of the log has the share of the true neighbours that it found. The result is on the CPU.

    >>> find_nearest(torch.eye(4), torch.eye(4)[2:], k=1).index
    tensor([[2],
            [3]])
    """
    if approximate:
        nearest, share = approximate_rows(rows, queries, k)
        log.info(
            "the approximate search found %.1f %% of the true %d nearest images", 100 * share, k
        )
        return nearest
    device = find_device()
    queries, own = (None if rows is None else rows.to(device) for rows in (queries, own))
    nearest = nearest_rows(rows.to(device), queries, k, own=own)
    return Nearest(nearest.distance.cpu(), nearest.index.cpu())


def update_nearest(
    rows: Float[Tensor, "rows dim"],
    before: Nearest,
    place: Int64[Tensor, " rows"],
    k: int,
) -> Nearest | None:
    """Find the k nearest others of each row by cosine, where those of most rows among themselves
    are known: as if all were compared, in a part of the time.

    before: of earlier rows. place: the position of each row among these, -1 for a new one. New
    rows, and those one of whose neighbours is gone, are compared with all; the others with new ones
    alone. None where that is no less work: more than a tenth is compared with all, the earlier ones
    are in another order, or k is another number.
    """
    old = torch.where(place >= 0)[0]
    if before.index.shape[1] != k or bool((place[old].diff() < 0).any()):
        return None
    now = torch.full((len(before.index),), -1)
    now[place[old]] = old
    index = torch.full((len(rows), k), -1)
    distance = torch.full((len(rows), k), torch.inf)
    index[old], distance[old] = now[before.index[place[old]]], before.distance[place[old]]
    is_whole = (index >= 0).all(1)
    whole, other, new = (torch.where(some)[0] for some in (is_whole, ~is_whole, place < 0))
    if len(other) > len(rows) // MOST_NEW:
        return None
    if len(other):
        distance[other], index[other] = find_nearest(rows, rows[other], k, own=other)
    if len(new) and len(whole):
        added = find_nearest(rows[new], rows[whole], min(k, len(new)))
        parts = (each.split(PART) for each in (whole, added.distance, added.index))
        for some, far, near in zip(*parts, strict=True):
            far = torch.cat([distance[some], far], 1)
            near, order = torch.cat([index[some], new[near]], 1).sort(1)
            # the first ones of those at equal distances come first
            far, nearest = far.gather(1, order).sort(dim=1, stable=True)
            distance[some], index[some] = far[:, :k], near.gather(1, nearest)[:, :k]
    return Nearest(distance, index)


def approximate_rows(
    rows: Float[Tensor, "rows dim"],
    queries: Float[Tensor, "queries dim"] | None = None,
    k: int = 10,
    *,
    wanted: float = WANTED,
    seed: int = 0,
) -> tuple[Nearest, float]:
    """Find most of the k nearest rows of each query by cosine, and the share of the true neighbours
    among them.

    rows, queries and k as in `nearest_rows`; on the CPU. The rows are put into 4 sqrt(n) lists
    around centres (k-means on a sample), and a query searches the lists of the nearest centres: as
    many as are needed to find the share `wanted` of the true neighbours of 1000 random queries, all
    if need be. The returned share is that of these queries. Queries whose lists have fewer than k
    rows are compared with all rows. Memory: two copies of the rows. Source: inverted file index
    (Sivic & Zisserman 2003, "Video Google"); Johnson, Douze & Jegou 2021, "Billion-scale similarity
    search with GPUs". ValueError if faiss is not installed, and for a k above the number of rows.

    >>> found, recall = approximate_rows(torch.eye(4), torch.eye(4)[2:], k=1)
    >>> found.index.flatten()
    tensor([2, 3])
    """
    try:
        import faiss
    except ImportError as error:
        raise ValueError(
            "an approximate search needs faiss: pip install 'nearfar[faiss]'"
        ) from error
    own = queries is None
    if not 1 <= k <= len(rows) - own:
        raise ValueError(f"{k} neighbours cannot be taken from {len(rows) - own} rows")
    searched = unit_rows(rows.detach(), torch.float32)
    query_rows = searched if queries is None else unit_rows(queries.detach(), torch.float32)
    generator = torch.Generator().manual_seed(seed)
    lists = max(1, min(int(4 * math.sqrt(len(rows))), len(rows) // A_LIST))
    faiss.omp_set_num_threads(torch.get_num_threads())
    index: Any = faiss.index_factory(rows.shape[1], f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)
    index.cp.niter, index.cp.seed = 10, seed
    index.train(searched[torch.randperm(len(rows), generator=generator)[: lists * A_LIST]].numpy())
    index.add(searched.numpy())

    sample = torch.randperm(len(query_rows), generator=generator)[:SAMPLE]
    true = nearest_rows(searched, query_rows[sample], k, own=sample if own else None).index
    index.nprobe = 1
    while (
        share := _share(_search(index, query_rows, sample, k, own).index, true)
    ) < wanted and index.nprobe < lists:
        index.nprobe = min(lists, 2 * index.nprobe)
    parts = []
    with progress("comparing images", len(query_rows)) as bar:
        for part in torch.arange(len(query_rows)).split(PART):
            parts.append(_search(index, query_rows, part, k, own))
            bar.advance(len(part))
    distance, position = (torch.cat(each) for each in zip(*parts, strict=True))
    (short,) = torch.where((position < 0).any(1))
    if len(short):
        distance[short], position[short] = nearest_rows(
            searched, query_rows[short], k, own=short if own else None
        )
    return Nearest(distance, position), share


def _search(index: Any, query_rows: Tensor, part: Tensor, k: int, own: bool) -> Nearest:
    """The k nearest rows of some queries; own: the queries are rows of the index, and left out."""
    cosine, position = map(torch.from_numpy, index.search(query_rows[part].numpy(), k + own))
    distance = (1 - cosine).clamp_(0, 2)
    if own:
        itself = position == part[:, None]
        itself[:, -1] |= ~itself.any(1)  # if its own row was not found, the last one goes
        position, distance = (each[~itself].view(len(part), k) for each in (position, distance))
    return Nearest(distance, position)


def _share(index: Tensor, true: Tensor) -> float:
    return float((index[:, :, None] == true[:, None]).any(1).float().mean())
