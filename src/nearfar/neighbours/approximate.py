"""Approximate nearest rows of a large matrix by inverted lists, since comparing all pairs would
take hours.

The rows are divided into partitions, each with its part of every list: they are searched one after
another, the queries of each in threads, or by an engine where there is one. What is found does not
depend on who searches.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64, Integer
from torch import Tensor

from nearfar.data.resources import in_order, usable_cores
from nearfar.data.table import digest
from nearfar.device import find_device
from nearfar.engine import each, engine
from nearfar.neighbours.nearest import (
    PARTITION,
    Nearest,
    keys_of,
    leave_out,
    nearest_rows,
    ordered,
    padded,
    positions_of,
    similarity_of,
)
from nearfar.pairs.arithmetic import unit_rows
from nearfar.progress import log, progress
from nearfar.threads import use_threads

WANTED = 0.98  # share of the true neighbours at which the search is wide enough
SAMPLE = 1000  # queries on which the share is measured
A_LIST = 40  # rows from which the centre of a list is learned
ROUNDS = 5  # of k-means: more make the lists no better
PART = 2**15  # queries of a piece of work
FEWER = 4096  # of these whose lists are found at a time
HELD = 32  # rows that are found of a query, on average, before the nearest of them are chosen
RANKS = (2, 8)  # nearest lists that are searched before the others, whose rows are mostly too far
MANY_LISTS = 2**15  # whose numbers take more than two bytes
NOTHING = torch.iinfo(torch.int64).min  # a key of no row


def find_nearest(
    rows: Float[Tensor, "rows dim"],
    queries: Float[Tensor, "queries dim"] | None = None,
    k: int = 10,
    *,
    own: Int64[Tensor, " queries"] | None = None,
    approximate: bool = False,
    lists: Lists | None = None,
) -> Nearest:
    """Find the k nearest rows of each query by cosine, exactly or by an index; arguments as in
    `nearest_rows`.

    Exact: on a GPU if there is one. approximate: by `approximate_rows`, which takes `lists`; a line
    of the log has the share of the true neighbours that it found. The result is on the CPU.

    >>> find_nearest(torch.eye(4), torch.eye(4)[2:], k=1).index
    tensor([[2],
            [3]])
    """
    if approximate:
        nearest, share = approximate_rows(rows, queries, k, own=own, lists=lists)
        log.info(
            "the approximate search found %.1f %% of the true %d nearest images", 100 * share, k
        )
        return nearest
    device = find_device()
    queries, own = (None if rows is None else rows.to(device) for rows in (queries, own))
    nearest = nearest_rows(rows.to(device), queries, k, own=own)
    return Nearest(nearest.distance.cpu(), nearest.index.cpu())


def approximate_rows(
    rows: Float[Tensor, "rows dim"],
    queries: Float[Tensor, "queries dim"] | None = None,
    k: int = 10,
    *,
    own: Int64[Tensor, " queries"] | None = None,
    wanted: float = WANTED,
    seed: int = 0,
    lists: Lists | None = None,
) -> tuple[Nearest, float]:
    """Find most of the k nearest rows of each query by cosine, and the share of the true neighbours
    among them.

    rows, queries, k and own as in `nearest_rows`; on the CPU. The rows are put into 4 sqrt(n) lists
    around centres (k-means on a sample), and a query searches the lists of the nearest centres: as
    many as are needed to find the share `wanted` of the true neighbours of 1000 random queries, all
    if need be. The returned share is that of these queries. Each list is compared with all queries
    that search it at once, those near each other together. Queries whose lists have fewer than k
    rows are compared with all rows. Distances are computed as in `nearest_rows`. lists: those of
    the rows, if they are known (`learn_lists`). Memory, besides one copy of the rows and the
    result: eight bytes for each neighbour, two for each list that a query searches, and some 300
    MB. Source: inverted file index (Sivic & Zisserman 2003, "Video Google"). ValueError for a k
    above the number of rows.

    >>> found, recall = approximate_rows(torch.eye(4), torch.eye(4)[2:], k=1)
    >>> found.index.flatten()
    tensor([2, 3])
    """
    is_own = queries is None
    if not 1 <= k <= len(rows) - is_own:
        raise ValueError(f"{k} neighbours cannot be taken from {len(rows) - is_own} rows")
    rows = rows.detach().float()
    lists = learn_lists(rows, seed) if lists is None else lists
    compared = rows if queries is None else queries.detach().float()
    if is_own:
        own = torch.arange(len(rows))
    generator = torch.Generator().manual_seed(seed)
    sample = torch.randperm(len(compared), generator=generator)[:SAMPLE]
    own_of_sample = None if own is None else own[sample]
    count, share = enough_lists(rows, compared[sample], k, own_of_sample, lists, wanted)
    return search_lists(rows, None if is_own else compared, k, own, lists, count), share


class Lists(NamedTuple):
    """Lists around centres: unit rows, and the list of each row, that of the nearest centre.

    learned: from how many rows the centres were learned.
    """

    centres: Float32[Tensor, "lists dim"]
    list_of: Integer[Tensor, " rows"]
    learned: int

    def extended(self, rows: Float[Tensor, "rows dim"], place: Int64[Tensor, " rows"]) -> Lists:
        """Return the lists of other rows around the same centres. place: the position of each row
        among those that have a list, -1 for a new one.
        """
        list_of, new = self.list_of[place], place < 0
        if new.any():
            list_of[new] = _nearest_list(self.centres, rows[new])
        return self._replace(list_of=list_of)


def learn_lists(rows: Float[Tensor, "rows dim"], seed: int = 0) -> Lists:
    """Divide rows into 4 sqrt(n) lists around centres that k-means finds."""
    centres = _centres(rows, seed)
    return Lists(centres, _nearest_list(centres, rows), len(rows))


def enough_lists(
    rows: Float[Tensor, "rows dim"],
    queries: Float[Tensor, "queries dim"],
    k: int,
    own: Int64[Tensor, " queries"] | None,
    lists: Lists,
    wanted: float = WANTED,
) -> tuple[int, float]:
    """Return how many lists of the nearest centres hold a share of the true k nearest rows of some
    queries, and the share that they hold.
    """
    true = nearest_rows(rows, queries, k, own=own).index
    (order,) = nearest_lists(lists.centres, queries, len(lists.centres))
    place = torch.empty_like(order).scatter_(
        1, order.long(), torch.arange(len(lists.centres), dtype=order.dtype).expand_as(order)
    )
    place = place.gather(1, lists.list_of[true].long()).flatten().sort().values
    enough = min(len(place), math.ceil(wanted * len(place)))
    count = len(lists.centres) if wanted > 1 else int(place[enough - 1]) + 1
    return count, float((place < count).float().mean())


def search_lists(
    rows: Float[Tensor, "rows dim"],
    queries: Float[Tensor, "queries dim"] | None,
    k: int,
    own: Int64[Tensor, " queries"] | None,
    lists: Lists,
    count: int,
) -> Nearest:
    """Find the k nearest rows of each query in the lists of the nearest `count` centres. queries:
    None stands for the rows themselves.
    """
    by_list = lists.list_of.argsort(stable=True)
    searched = _InLists(_unit_rows_at(rows, by_list), lists.list_of[by_list], by_list)
    place = torch.empty_like(by_list)
    place[by_list] = torch.arange(len(by_list))
    order, query_rows = by_list, searched.rows
    if queries is not None:
        order = _nearest_list(lists.centres, queries).argsort(stable=True)
        query_rows = _unit_rows_at(queries, order)
    places = None
    if own is not None:
        places = place[own[order]].masked_fill(own[order] < 0, -1)
    numbers = nearest_lists(lists.centres, query_rows, count)
    pieces = [slice(start, start + PART) for start in range(0, len(order), PART)]
    parts = [
        _Queries(
            query_rows[some].numpy(),
            None if places is None else places[some].numpy(),
            of_part.numpy(),
        )
        for some, of_part in zip(pieces, numbers, strict=True)
    ]
    keys = torch.full((len(order), k), NOTHING)
    _put_best_keys(searched, parts, keys)
    del parts  # the numbers of lists
    own_rows = None if own is None else own[order]
    return _in_order_of_distance(searched, place, rows, query_rows, own_rows, order, keys)


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
    searched: _InLists,
    place: Int64[Tensor, " rows"],
    rows: Float[Tensor, "rows dim"],
    query_rows: Float32[Tensor, "queries dim"],
    own: Int64[Tensor, " queries"] | None,
    order: Int64[Tensor, " queries"],
    keys: Int64[Tensor, "queries k"],
) -> Nearest:
    """The rows that keys stand for, by their distances from the queries. place: of each row among
    those in their lists. order: of the queries, whose rows, own rows and keys are in this order.

    Queries that have fewer than k are compared with all rows.
    """
    size = keys.shape
    out = Nearest(torch.empty(size), torch.empty(size, dtype=torch.int64))
    for start in range(0, len(order), PART):
        some = slice(start, start + PART)
        best, queries = keys[some], query_rows[some]
        candidates = place[positions_of(best).clamp_max(len(place) - 1)]
        distance, candidates = ordered(searched.rows, queries, candidates, "cosine")
        position, first = searched.positions[candidates].sort(1)  # the first of equal ones first
        distance, nearest = distance.gather(1, first).sort(dim=1, stable=True)
        position = position.gather(1, nearest)
        (short,) = torch.where((best == NOTHING).any(1))
        if len(short):
            own_rows = None if own is None else own[some][short]
            distance[short], position[short] = nearest_rows(
                rows, queries[short], size[1], own=own_rows
            )
        out.distance[order[some]], out.index[order[some]] = distance, position
    return out


def _centres(rows: Float[Tensor, "rows dim"], seed: int) -> Float32[Tensor, "lists dim"]:
    """The centres of 4 sqrt(n) lists, by k-means on a sample of the rows; in one thread, since the
    order in which several add up would change the last bits.
    """
    from sklearn.cluster import KMeans  # here: it takes a second to import
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    count = max(1, min(int(4 * math.sqrt(len(rows))), len(rows) // A_LIST))
    generator = torch.Generator().manual_seed(seed)
    sample = torch.randperm(len(rows), generator=generator)[: count * A_LIST]
    means = KMeans(count, init="random", n_init=1, max_iter=ROUNDS, tol=0, random_state=seed)
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than lists
        means.fit(_unit_rows_at(rows, sample).numpy())
    return unit_rows(torch.from_numpy(means.cluster_centers_), torch.float32)


def _nearest_list(
    centres: Float32[Tensor, "lists dim"], rows: Float[Tensor, "rows dim"]
) -> Integer[Tensor, " rows"]:
    return torch.cat(list(nearest_lists(centres, rows, 1)))[:, 0]


def nearest_lists(
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


class _InLists(NamedTuple):
    """Rows, or some of them, list after list: the list of each, and its position among all rows."""

    rows: Float32[Tensor, "rows dim"]
    list_of: Integer[Tensor, " rows"]
    positions: Int64[Tensor, " rows"]


class _Queries(NamedTuple):
    """Some of the queries, of which those that are near each other follow each other, and the lists
    that each searches, the nearest first. own: the place among the rows in their lists of the row
    that each query is, -1 for none; None: of none.
    """

    rows: Float32[np.ndarray, "queries dim"]
    own: Int64[np.ndarray, " queries"] | None
    lists: Integer[np.ndarray, "queries count"]


def _put_best_keys(
    searched: _InLists, parts: Sequence[_Queries], keys: Int64[Tensor, "queries k"]
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
        own = b"" if part.own is None else part.own.tobytes()
        return digest([self.mark, own, part.rows.tobytes(), part.lists.tobytes()])

    def __call__(self, part: _Queries) -> dict[str, np.ndarray]:
        """Return the keys of the nearest rows, `NOTHING` where the lists hold fewer."""
        best = torch.full((len(part.rows), self.k), NOTHING)
        count = part.lists.shape[1]
        for ranks in zip((0, *RANKS), (*RANKS, count), strict=True):
            lists = torch.tensor(part.lists[:, slice(*ranks)]).long()
            least = _least_similarity(best)
            nearer, held = list[tuple[Tensor, Tensor]](), 0
            for query, rows in queries_of_lists(lists, self.list_of):
                nearer.append(self._larger(part, query, rows, least))
                held += len(nearer[-1][1])
                if held > HELD * len(best):
                    best, nearer, held = _merged(best, nearer), [], 0
                    least = _least_similarity(best)
            best = _merged(best, nearer)
        return {"keys": best.numpy()}

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
        if part.own is not None:
            leave_out(tile, torch.from_numpy(part.own)[query] - self.start - rows.start)
        positions = torch.from_numpy(self.positions[rows])
        bound = least[query]
        if tile.shape[1] > self.k and bool(bound.isinf().any()):
            bound = torch.maximum(bound, tile.topk(self.k, dim=1).values[:, -1])
        row, column = torch.where((tile >= bound[:, None]) & (tile > -torch.inf))
        return query[row], keys_of(tile[row, column], positions[column])


def queries_of_lists(
    lists: Int64[Tensor, "queries ranks"], list_of: Integer[np.ndarray, " rows"]
) -> Iterator[tuple[Int64[Tensor, " some"], slice]]:
    """Yield the queries that search a list, and the list's rows, for each list with both.

    list_of: the list of each row, in ascending order.
    """
    of_lists, order = lists.flatten().sort(stable=True)
    numbers, counts = of_lists.unique_consecutive(return_counts=True)
    queries = (order // lists.shape[1]).split(counts.tolist())
    starts, stops = (
        np.searchsorted(list_of, numbers.numpy(), side).tolist() for side in ("left", "right")
    )
    for query, start, stop in zip(queries, starts, stops, strict=True):
        if start < stop:
            yield query, slice(start, stop)


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
