"""Approximate nearest rows of a large matrix by inverted lists, whose centres faiss finds, since
comparing all pairs would take hours.

The rows are divided into partitions, each with its part of every list: they are searched one after
another, the queries of each in threads, or by an engine where there is one. What is found does not
depend on who searches.
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

from nearfar.data.resources import in_order, usable_cores
from nearfar.data.table import digest
from nearfar.device import find_device
from nearfar.engine import each, engine
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
    padded,
    positions_of,
    similarity_of,
)
from nearfar.pairs.arithmetic import dot_products, unit_rows
from nearfar.progress import log, progress
from nearfar.threads import use_threads

WANTED = 0.98  # share of the true neighbours at which the search is wide enough
SAMPLE = 1000  # queries on which the share is measured
A_LIST = 40  # rows from which the centre of a list is learned; faiss asks for 39
MOST_NEW = 10  # rows to one that is new, at least, where earlier neighbours are of use
PART = 2**15  # queries of a piece of work
FEWER = 4096  # of these whose lists are found at a time
HELD = 32  # rows that are found of a query, on average, before the nearest of them are chosen
RANKS = (2, 8)  # nearest lists that are searched before the others, whose rows are mostly too far
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
    if need be. The returned share is that of these queries. Each list is compared with all queries
    that search it at once, those near each other together. Queries whose lists have fewer than k
    rows are compared with all rows. Distances are computed as in `nearest_rows`. Memory, besides
    one copy of the rows and the result: eight bytes for each neighbour, two for each list that a
    query searches, and some 300 MB. Source: inverted file index (Sivic & Zisserman 2003, "Video
    Google"). ValueError if faiss is not installed, which finds the centres, and for a k above the
    number of rows.

    >>> found, recall = approximate_rows(torch.eye(4), torch.eye(4)[2:], k=1)
    >>> found.index.flatten()
    tensor([2, 3])
    """
    _faiss()
    is_own = queries is None
    if not 1 <= k <= len(rows) - is_own:
        raise ValueError(f"{k} neighbours cannot be taken from {len(rows) - is_own} rows")
    rows = rows.detach().float()
    compared = rows if queries is None else queries.detach().float()
    generator = torch.Generator().manual_seed(seed)
    centres = _centres(rows, generator, seed)
    list_of = torch.cat(list(_nearest_lists(centres, rows, 1)))[:, 0]

    sample = torch.randperm(len(compared), generator=generator)[:SAMPLE]
    true = nearest_rows(rows, compared[sample], k, own=sample if is_own else None).index
    count, share = _enough_lists(centres, compared[sample], list_of[true], wanted)

    by_list = list_of.argsort(stable=True)
    searched = _Lists(_unit_rows_at(rows, by_list), list_of[by_list], by_list)
    order, query_rows = by_list, searched.rows
    if not is_own:
        order = torch.cat(list(_nearest_lists(centres, compared, 1)))[:, 0].argsort(stable=True)
        query_rows = _unit_rows_at(compared, order)
    parts = [
        _Queries(own_rows.numpy(), start * PART if is_own else None, lists.numpy())
        for start, (own_rows, lists) in enumerate(
            zip(query_rows.split(PART), _nearest_lists(centres, query_rows, count), strict=True)
        )
    ]
    keys = torch.full((len(order), k), NOTHING)
    _put_best_keys(searched, parts, keys)
    del parts  # the numbers of lists
    return _in_order_of_distance(searched, rows, query_rows, order, keys, is_own), share


def _unit_rows_at(
    rows: Float[Tensor, "rows dim"], places: Int64[Tensor, " places"]
) -> Float32[Tensor, "places dim"]:
    """Rows of length one, in another order; one copy of them."""
    out = torch.empty(len(places), rows.shape[1])
    for start in range(0, len(places), PART):
        some = slice(start, start + PART)
        out[some] = unit_rows(rows[places[some]], torch.float32)
    return out


def _in_order_of_distance(
    searched: _Lists,
    rows: Float[Tensor, "rows dim"],
    query_rows: Float32[Tensor, "queries dim"],
    order: Int64[Tensor, " queries"],
    keys: Int64[Tensor, "queries k"],
    is_own: bool,
) -> Nearest:
    """The rows that keys stand for, by their distances from the queries. order: of the queries.

    Queries that have fewer than k are compared with all rows.
    """
    size = keys.shape
    out = Nearest(torch.empty(size), torch.empty(size, dtype=torch.int64))
    place = torch.empty_like(searched.positions)
    place[searched.positions] = torch.arange(len(place))
    for start in range(0, len(order), PART):
        best, own = keys[start : start + PART], order[start : start + PART]
        queries = query_rows[start : start + PART]
        candidates = place[positions_of(best).clamp_max(len(rows) - 1)]
        distance, candidates = ordered(searched.rows, queries, candidates, "cosine")
        position, first = searched.positions[candidates].sort(1)  # the first of equal ones first
        distance, nearest = distance.gather(1, first).sort(dim=1, stable=True)
        position = position.gather(1, nearest)
        (short,) = torch.where((best == NOTHING).any(1))
        if len(short):
            own_rows = own[short] if is_own else None
            distance[short], position[short] = nearest_rows(
                rows, queries[short], size[1], own=own_rows
            )
        out.distance[own], out.index[own] = distance, position
    return out


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
    rows: Float[Tensor, "rows dim"], generator: torch.Generator, seed: int
) -> Float32[Tensor, "lists dim"]:
    """The centres of 4 sqrt(n) lists, by k-means on a sample of the rows."""
    faiss = _faiss()
    count = max(1, min(int(4 * math.sqrt(len(rows))), len(rows) // A_LIST))
    faiss.omp_set_num_threads(torch.get_num_threads())
    dim = rows.shape[1]
    index: Any = faiss.index_factory(dim, f"IVF{count},Flat", faiss.METRIC_INNER_PRODUCT)
    index.cp.niter, index.cp.seed = 10, seed
    sample = torch.randperm(len(rows), generator=generator)[: count * A_LIST]
    index.train(_unit_rows_at(rows, sample).numpy())
    return torch.from_numpy(index.quantizer.reconstruct_n(0, count))


def _nearest_lists(
    centres: Float32[Tensor, "lists dim"], rows: Float[Tensor, "rows dim"], count: int
) -> Iterator[Integer[Tensor, "part count"]]:
    """The lists whose centres are nearest, the nearest first, of each part of the rows."""
    work = partial(_lists_of, centres.numpy(), count)
    yield from map(torch.tensor, each(work, (part.numpy() for part in rows.split(PART))))


def _lists_of(centres: np.ndarray, count: int, rows: np.ndarray) -> np.ndarray:
    kind = torch.int16 if len(centres) < MANY_LISTS else torch.int32
    out = torch.empty(len(rows), count, dtype=kind)
    for start in range(0, len(rows), FEWER):
        some = slice(start, start + FEWER)
        likeness = unit_rows(torch.tensor(rows[some]), torch.float32) @ torch.tensor(centres).T
        out[some] = likeness.topk(count, dim=1).indices.to(kind)
    return out.numpy()


def _enough_lists(
    centres: Float32[Tensor, "lists dim"],
    queries: Float32[Tensor, "queries dim"],
    lists: Integer[Tensor, "queries k"],
    wanted: float,
) -> tuple[int, float]:
    """The number of lists to be searched, and the share of the true neighbours that are in them.

    lists: those of the true neighbours of each query.
    """
    (order,) = _nearest_lists(centres, queries, len(centres))
    place = torch.empty_like(order).scatter_(
        1, order.long(), torch.arange(len(centres), dtype=order.dtype).expand_as(order)
    )
    place = place.gather(1, lists.long()).flatten().sort().values
    enough = min(len(place), math.ceil(wanted * len(place)))
    count = len(centres) if wanted > 1 else int(place[enough - 1]) + 1
    return count, float((place < count).float().mean())


class _Lists(NamedTuple):
    """Rows, or some of them, list after list: the list of each, and its position among all rows."""

    rows: Float32[Tensor, "rows dim"]
    list_of: Integer[Tensor, " rows"]
    positions: Int64[Tensor, " rows"]


class _Queries(NamedTuple):
    """Some of the queries, of which those that are near each other follow each other, and the lists
    that each searches, the nearest first. first: where the queries are the rows, the place of the
    first among the rows in their lists; else None.
    """

    rows: Float32[np.ndarray, "queries dim"]
    first: int | None
    lists: Integer[np.ndarray, "queries count"]


def _put_best_keys(
    searched: _Lists, parts: Sequence[_Queries], keys: Int64[Tensor, "queries k"]
) -> None:
    """Put in the keys of the k nearest rows that each query finds in its lists, `NOTHING` for
    none, where `keys` has this throughout.
    """
    best, k = keys.split(PART), keys.shape[1]
    step = max(1, PARTITION // (4 * searched.rows.shape[1]))
    starts = range(0, len(searched.rows), step)
    with progress("comparing images", len(starts) * len(keys)) as bar:
        for start in starts:
            rows, list_of, positions = (part[start : start + step].numpy() for part in searched)
            partition = _Partition(rows, list_of, positions, start, k)
            for place, further in enumerate(_searched(partition, parts)):
                both = torch.cat([best[place], torch.tensor(further["keys"])], 1)
                best[place].copy_(both.topk(k, dim=1, sorted=False).values)
                bar.advance(len(both))


def _searched(partition: _Partition, parts: Sequence[_Queries]) -> Iterator[dict[str, np.ndarray]]:
    """Results of a partition for each part of the queries: by an engine, or in threads of which
    each computes alone, since small products are slower in several.
    """
    if engine() is not None:
        yield from each(partition, parts, partition.key)
        return
    with use_threads(1):
        for made in in_order(([part] for part in parts), partition, usable_cores()):
            yield from made


class _Partition:
    """Some rows list after list: work that finds the k nearest of queries among them.

    start: the place of the first among all rows in their lists. Each list is compared with all
    queries that search it at once: the product of two matrices, which takes less time than a search
    for each query alone (docs/neighbours.md).
    """

    def __init__(
        self, rows: np.ndarray, list_of: np.ndarray, positions: np.ndarray, start: int, k: int
    ) -> None:
        self.rows, self.list_of, self.positions = rows, list_of, positions
        self.start, self.k = start, k

    @cached_property
    def mark(self) -> bytes:
        """A digest of all that results depend on beside the queries."""
        arrays = (array.tobytes() for array in (self.rows, self.list_of, self.positions))
        return digest([f"{self.start} {self.k}".encode(), *arrays]).encode()

    def key(self, part: _Queries) -> str:
        """Return a digest of all that the result for some queries depends on."""
        first = f"{part.first}".encode()
        return digest([self.mark, first, part.rows.tobytes(), part.lists.tobytes()])

    def __call__(self, part: _Queries) -> dict[str, np.ndarray]:
        """Return the keys of the nearest rows, `NOTHING` where the lists hold fewer."""
        best = torch.full((len(part.rows), self.k), NOTHING)
        count = part.lists.shape[1]
        for ranks in zip((0, *RANKS), (*RANKS, count), strict=True):
            lists = torch.tensor(part.lists[:, slice(*ranks)]).long()
            least = _least_similarity(best)
            nearer, held = list[tuple[Tensor, Tensor]](), 0
            for query, rows in self._pairs_of_lists(lists):
                nearer.append(self._larger(part, query, rows, least))
                held += len(nearer[-1][1])
                if held > HELD * len(best):
                    best, nearer, held = _merged(best, nearer), [], 0
                    least = _least_similarity(best)
            best = _merged(best, nearer)
        return {"keys": best.numpy()}

    def _pairs_of_lists(
        self, lists: Int64[Tensor, "queries ranks"]
    ) -> Iterator[tuple[Int64[Tensor, " some"], slice]]:
        """Yield the queries that search a list, and the list's rows, for each list with both."""
        of_lists, order = lists.flatten().sort(stable=True)
        numbers, counts = of_lists.unique_consecutive(return_counts=True)
        queries = (order // lists.shape[1]).split(counts.tolist())
        starts, stops = (
            np.searchsorted(self.list_of, numbers.numpy(), side).tolist()
            for side in ("left", "right")
        )
        for query, start, stop in zip(queries, starts, stops, strict=True):
            if start < stop:
                yield query, slice(start, stop)

    def _larger(
        self,
        part: _Queries,
        query: Int64[Tensor, " some"],
        rows: slice,
        least: Float32[Tensor, " queries"],
    ) -> tuple[Int64[Tensor, " nearer"], Int64[Tensor, " nearer"]]:
        """The keys of rows that are at least as near to some queries as the last of their k, and
        the query of each.
        """
        queries = torch.from_numpy(part.rows)[query]
        tile = queries @ torch.from_numpy(self.rows[rows]).T
        if part.first is not None:
            leave_out(tile, part.first + query - self.start - rows.start)
        positions = torch.from_numpy(self.positions[rows])
        bound = least[query]
        if tile.shape[1] > self.k and bool(bound.isinf().any()):
            bound = torch.maximum(bound, tile.topk(self.k, dim=1).values[:, -1])
        row, column = torch.where((tile >= bound[:, None]) & (tile > -torch.inf))
        return query[row], keys_of(tile[row, column], positions[column])


def _least_similarity(best: Int64[Tensor, "queries k"]) -> Float32[Tensor, " queries"]:
    """The similarity from which a row is one of the k best of a query: any, where it has fewer."""
    least = best.amin(1)
    return similarity_of(least).masked_fill(least == NOTHING, -torch.inf)


def _merged(
    best: Int64[Tensor, "queries k"], nearer: Sequence[tuple[Tensor, Tensor]]
) -> Int64[Tensor, "queries k"]:
    """The k largest keys of each query, among the best and those that were found."""
    if not nearer:
        return best
    query, keys = (torch.cat(tensors) for tensors in zip(*nearer, strict=True))
    query, order = query.sort(stable=True)
    keys, out = keys[order], torch.empty_like(best)
    for start in range(0, len(best), FEWER):  # as wide as the query with the most needs
        some = slice(start, start + FEWER)
        own = slice(*torch.searchsorted(query, torch.tensor([start, start + FEWER])).tolist())
        further = padded(query[own] - start, keys[own], len(best[some]))
        out[some] = torch.cat([best[some], further], 1).topk(best.shape[1], sorted=False).values
    return out
