"""Approximate nearest rows of a large matrix by inverted lists of faiss, since comparing all pairs
would take hours.

The rows are divided into partitions, each with its part of every list: they are searched one after
another, the queries of each by an engine where there is one. What is found does not depend on who
searches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64, Integer
from torch import Tensor

from nearfar.data.table import digest
from nearfar.device import find_device
from nearfar.engine import each
from nearfar.neighbours.nearest import (
    PARTITION,
    QUERIES,
    ROWS,
    Nearest,
    keys_of,
    larger,
    leave_out,
    nearest_rows,
    ordered,
    positions_of,
)
from nearfar.pairs.arithmetic import dot_products, unit_rows
from nearfar.progress import log, progress

WANTED = 0.98  # share of the true neighbours at which the search is wide enough
SAMPLE = 1000  # queries on which the share is measured
A_LIST = 40  # rows from which the centre of a list is learned; faiss asks for 39
MOST_NEW = 10  # rows to one that is new, at least, where earlier neighbours are of use
PART = 8192  # queries of a piece of work
MANY_LISTS = 2**15  # whose numbers take more than two bytes
ROUNDING = 1e-5  # of similarities: distances that are computed from differences differ by less
NOTHING = torch.iinfo(torch.int64).min  # a key of no row


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
    is_whole, new = (index >= 0).all(1), place < 0
    (other,) = torch.where(~is_whole)
    if len(other) > len(rows) // MOST_NEW:
        return None
    unit = unit_rows(rows.detach(), torch.float32)
    with progress("comparing images", len(other)) as bar:
        for some in other.split(QUERIES):
            _compare_with_all(unit, some, new, is_whole, distance, index)
            bar.advance(len(some))
    return Nearest(distance, index)


def _compare_with_all(
    unit: Float32[Tensor, "rows dim"],
    some: Int64[Tensor, " some"],
    new: Bool[Tensor, " rows"],
    is_whole: Bool[Tensor, " rows"],
    distance: Float32[Tensor, "rows k"],
    index: Int64[Tensor, "rows k"],
) -> None:
    """Find the nearest of some rows, and put new ones among the nearest of those whose neighbours
    are known.
    """
    k, device = index.shape[1], find_device()
    queries, are_new = unit[some].to(device), torch.where(new[some])[0]
    best = torch.empty(len(some), 0, dtype=torch.int64, device=device)
    for start in range(0, len(unit), ROWS):
        part = slice(start, start + ROWS)
        tile = dot_products(queries, unit[part].to(device))
        leave_out(tile, some.to(device) - start)
        best = larger(best, tile, start, k)
        least = torch.where(is_whole[part], 1 - distance[part, -1] - ROUNDING, torch.inf)
        fresh = tile[are_new.to(device)].cpu() if len(are_new) < len(some) else tile.cpu()
        is_near = fresh >= least
        (column,) = torch.where(is_near.any(0))
        if not len(column):
            continue
        count = min(k, int(is_near[:, column].sum(0).max()))
        keys = keys_of(fresh[:, column].T, some[are_new]).topk(count, dim=1, sorted=False).values
        touched = start + column
        far, near = ordered(unit, unit[touched], positions_of(keys), "cosine")
        far, near = torch.cat([distance[touched], far], 1), torch.cat([index[touched], near], 1)
        near, order = near.sort(1)  # the first ones of those at equal distances come first
        far, nearest = far.gather(1, order).sort(dim=1, stable=True)
        distance[touched], index[touched] = far[:, :k], near.gather(1, nearest)[:, :k]
    distance[some], index[some] = ordered(unit, queries.cpu(), positions_of(best).cpu(), "cosine")


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
    rows are compared with all rows. Distances are computed as in `nearest_rows`. Memory, besides
    one copy of the rows and the result: a second one of a partition (256 MB of rows), and the
    numbers of the lists that each query searches. Source: inverted file index
    (Sivic & Zisserman 2003, "Video Google"); Johnson, Douze & Jegou 2021, "Billion-scale similarity
    search with GPUs". ValueError if faiss is not installed, and for a k above the number of rows.

    >>> found, recall = approximate_rows(torch.eye(4), torch.eye(4)[2:], k=1)
    >>> found.index.flatten()
    tensor([2, 3])
    """
    _faiss()
    is_own = queries is None
    if not 1 <= k <= len(rows) - is_own:
        raise ValueError(f"{k} neighbours cannot be taken from {len(rows) - is_own} rows")
    searched = unit_rows(rows.detach(), torch.float32)
    query_rows = searched if queries is None else unit_rows(queries.detach(), torch.float32)
    generator = torch.Generator().manual_seed(seed)
    centres = _centres(searched, generator, seed)
    list_of = torch.cat(list(_nearest_lists(centres, searched, 1)))[:, 0]

    sample = torch.randperm(len(query_rows), generator=generator)[:SAMPLE]
    true = nearest_rows(searched, query_rows[sample], k, own=sample if is_own else None).index
    count, share = _enough_lists(centres, query_rows[sample], list_of[true], wanted)

    parts = [
        _Queries(own_rows.numpy(), some.numpy() if is_own else None, lists.numpy())
        for own_rows, some, lists in zip(
            query_rows.split(PART),  # views, and no copies
            torch.arange(len(query_rows)).split(PART),
            _nearest_lists(centres, query_rows, count),
            strict=True,
        )
    ]
    # keys first, in their place positions then
    out = Nearest(torch.empty(len(query_rows), k), torch.full((len(query_rows), k), NOTHING))
    _put_best_keys(searched, list_of, parts, len(centres), out.index)
    starts = range(0, len(query_rows), PART)
    for start, part in zip(starts, parts, strict=True):
        own_rows, some = torch.from_numpy(part.rows), slice(start, start + PART)
        best = out.index[some]
        (short,) = torch.where((best == NOTHING).any(1))
        candidates = positions_of(best).clamp_max(len(rows) - 1)
        distance, position = ordered(searched, own_rows, candidates, "cosine")
        if len(short):
            own = None if part.own is None else torch.from_numpy(part.own)[short]
            distance[short], position[short] = nearest_rows(searched, own_rows[short], k, own=own)
        out.distance[some], out.index[some] = distance, position
    return out, share


def _faiss() -> Any:
    """The library; ValueError where it is not installed."""
    try:
        import faiss
    except ImportError as error:
        raise ValueError(
            "an approximate search needs faiss: pip install 'nearfar[faiss]'"
        ) from error
    return faiss


def _centres(
    searched: Float32[Tensor, "rows dim"], generator: torch.Generator, seed: int
) -> Float32[Tensor, "lists dim"]:
    """The centres of 4 sqrt(n) lists, by k-means on a sample of the rows."""
    faiss = _faiss()
    count = max(1, min(int(4 * math.sqrt(len(searched))), len(searched) // A_LIST))
    faiss.omp_set_num_threads(torch.get_num_threads())
    dim = searched.shape[1]
    index: Any = faiss.index_factory(dim, f"IVF{count},Flat", faiss.METRIC_INNER_PRODUCT)
    index.cp.niter, index.cp.seed = 10, seed
    sample = torch.randperm(len(searched), generator=generator)[: count * A_LIST]
    index.train(searched[sample].numpy())
    return torch.from_numpy(index.quantizer.reconstruct_n(0, count))


def _nearest_lists(
    centres: Float32[Tensor, "lists dim"], rows: Float32[Tensor, "rows dim"], count: int
) -> Iterator[Integer[Tensor, "part count"]]:
    """The lists whose centres are nearest, of each part of the rows."""
    work = partial(_lists_of, centres.numpy(), count)
    yield from map(torch.tensor, each(work, (part.numpy() for part in rows.split(PART))))


def _lists_of(centres: np.ndarray, count: int, rows: np.ndarray) -> np.ndarray:
    likeness = torch.tensor(rows) @ torch.tensor(centres).T
    kind = torch.int16 if len(centres) < MANY_LISTS else torch.int32
    return likeness.topk(count, dim=1).indices.to(kind).numpy()


def _enough_lists(
    centres: Float32[Tensor, "lists dim"],
    queries: Float32[Tensor, "queries dim"],
    lists: Integer[Tensor, "queries k"],
    wanted: float,
) -> tuple[int, float]:
    """The number of lists to be searched, a power of 2 or all, and the share of the true neighbours
    that are in them.

    lists: those of the true neighbours of each query.
    """
    (order,) = _nearest_lists(centres, queries, len(centres))
    place = torch.empty_like(order).scatter_(
        1, order.long(), torch.arange(len(centres), dtype=order.dtype).expand_as(order)
    )
    place = place.gather(1, lists.long())
    count = 1
    while (share := float((place < count).float().mean())) < wanted and count < len(centres):
        count = min(len(centres), 2 * count)
    return count, share


class _Queries(NamedTuple):
    """Some of the queries, the row that each is (None: of none), and the lists that it searches."""

    rows: Float32[np.ndarray, "queries dim"]
    own: Int64[np.ndarray, " queries"] | None
    lists: Integer[np.ndarray, "queries count"]


def _put_best_keys(
    searched: Float32[Tensor, "rows dim"],
    list_of: Integer[Tensor, " rows"],
    parts: Sequence[_Queries],
    lists: int,
    keys: Int64[Tensor, "queries k"],
) -> None:
    """Put in the keys of the k nearest rows that each query finds in its lists, `NOTHING` for
    none, where `keys` has this throughout.
    """
    best, k = keys.split(PART), keys.shape[1]
    step = max(1, PARTITION // (4 * searched.shape[1]))
    starts = range(0, len(searched), step)
    with progress("comparing images", len(starts) * sum(map(len, best))) as bar:
        for start in starts:
            partition = _Partition(
                searched[start : start + step].numpy(),
                list_of[start : start + step].numpy(),
                start,
                lists,
                k,
            )
            made: Iterator[dict[str, np.ndarray]] = each(partition, parts, partition.key)
            for place, further in enumerate(made):
                both = torch.cat([best[place], torch.tensor(further["keys"])], 1)
                best[place].copy_(both.topk(k, dim=1, sorted=False).values)
                bar.advance(len(both))


class _Partition:
    """Some rows in their lists: work that finds the k nearest of queries among them.

    first: the position of the first row. lists: how many there are.
    """

    def __init__(
        self, rows: np.ndarray, list_of: np.ndarray, first: int, lists: int, k: int
    ) -> None:
        self.rows, self.list_of = rows, list_of
        self.first, self.lists, self.k = first, lists, k
        self.index: Any = None  # made where it is searched

    @cached_property
    def mark(self) -> bytes:
        """A digest of all that results depend on beside the queries."""
        numbers = f"{self.first} {self.lists} {self.k}".encode()
        return digest([self.rows.tobytes(), self.list_of.tobytes(), numbers]).encode()

    def key(self, part: _Queries) -> str:
        """Return a digest of all that the result for some queries depends on."""
        return digest([self.mark, *(array.tobytes() for array in part if array is not None)])

    def __call__(self, part: _Queries) -> dict[str, np.ndarray]:
        """Return the keys of the nearest rows, `NOTHING` where the lists hold fewer."""
        if self.index is None:
            self.index = self._filled()
        self.index.nprobe = part.lists.shape[1]
        has_own = part.own is not None
        likeness, place = self.index.search_preassigned(
            part.rows,
            self.k + has_own,
            part.lists.astype(np.int64),
            np.zeros(part.lists.shape, np.float32),
        )
        position = torch.from_numpy(place) + self.first
        keys = keys_of(torch.from_numpy(likeness), position)
        keys[position < self.first] = NOTHING
        if part.own is not None:
            keys[position == torch.tensor(part.own)[:, None]] = NOTHING
        return {"keys": keys.topk(self.k, dim=1, sorted=False).values.numpy()}

    def _filled(self) -> Any:
        faiss = _faiss()
        from faiss.contrib.ivf_tools import add_preassigned

        faiss.omp_set_num_threads(torch.get_num_threads())
        dim = self.rows.shape[1]
        index = faiss.index_factory(dim, f"IVF{self.lists},Flat", faiss.METRIC_INNER_PRODUCT)
        index.is_trained = True  # the lists of rows and queries are given
        add_preassigned(index, np.ascontiguousarray(self.rows), self.list_of.astype(np.int64))
        return index
