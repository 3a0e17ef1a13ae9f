"""The exact nearest rows of a matrix, in linear memory: no matrix of all pairs is ever made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from nearfar.data.table import digest
from nearfar.device import in_float64
from nearfar.engine import each, engine
from nearfar.messages import check_known
from nearfar.pairs.arithmetic import dot_products, unit_rows
from nearfar.progress import progress

Metric = Literal["cosine", "euclidean"]
METRICS = ("cosine", "euclidean")
QUERIES, ROWS = 1024, 8192  # of a tile of similarities: 32 MB
BLOCK = 32  # similarities that are first compared by their maximum alone
FEW = 64  # similarities of a query in a tile, on average, up to which they are compared one by one
PARTITION = 2**28  # bytes of the rows that an engine hands to its workers at a time
GATHERED = 2**22  # numbers of the neighbours whose distances are computed again at a time


class Nearest(NamedTuple):
    """Distances and positions of the nearest rows of each query, nearest first.

    >>> found = nearest_rows(torch.eye(3), torch.eye(3)[1:2], k=1)
    >>> found.index, found.distance
    (tensor([[1]]), tensor([[0.]]))
    """

    distance: Float[Tensor, "queries k"]
    index: Int64[Tensor, "queries k"]  # type: ignore[assignment]  # hides tuple.index

    def among(self, rows: Int64[Tensor, " rows"], k: int) -> Nearest:
        """Return the k nearest among some rows, of these rows as queries, where all rows are the
        queries: positions are among them. Where fewer are known, the rest is at distance infinity.
        """
        if len(rows) == len(self.index) and bool((rows.diff() == 1).all()):
            return Nearest(self.distance[:, :k], self.index[:, :k])
        place = torch.full((len(self.index),), -1)
        place[rows] = torch.arange(len(rows))
        k = min(k, self.index.shape[1])
        out = Nearest(torch.empty(len(rows), k), torch.empty(len(rows), k, dtype=torch.int64))
        for start in range(0, len(rows), ROWS):  # what is made on the way takes a kilobyte a row
            some = slice(start, start + ROWS)
            index, distance = place[self.index[rows[some]]], self.distance[rows[some]]
            order = (index < 0).to(torch.uint8).argsort(dim=1, stable=True)[:, :k]
            index, distance = index.gather(1, order), distance.gather(1, order)
            out.distance[some] = distance.masked_fill(index < 0, torch.inf)
            out.index[some] = index.clamp_min(0)
        return out


def nearest_rows(
    rows: Float[Tensor, "rows dim"],
    queries: Float[Tensor, "queries other"] | None = None,
    k: int = 10,
    *,
    metric: Metric = "cosine",
    own: Int64[Tensor, " queries"] | None = None,
    chunk: int | None = None,
) -> Nearest:
    """Find the k nearest rows of each query by comparing it with all of them.

    rows, queries: on one device, in any float dtype, compared in float32. queries: None stands for
    the rows themselves, each without itself. own: the row that is the query itself and left out of
    its neighbours; -1 for none. metric: "cosine" gives 1 - cos in 0..2 (a row of zeros is at
    distance 1 from all), "euclidean" the length of the difference. chunk: at most so many queries
    and rows in a tile.

    Of rows at equal distances the first ones are returned, in their order. Similarities are inner
    products in float32, so two rows whose cosines differ by less than 1e-6 may change places at the
    end of the list; for Euclidean distances the same share of the rows' squared distance from their
    mean. Distances are then computed again from differences: those of equal rows are 0, small ones
    do not drown in the rounding of 1 - cos, and they determine the order. Memory, besides one copy
    of the rows and the result: a few tiles. ValueError for a k above the number of rows, different
    dimensions, or an unknown metric.

    >>> found = nearest_rows(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), k=1)
    >>> found.index.flatten()
    tensor([2, 2, 0])
    """
    if queries is None:
        queries, own = rows, torch.arange(len(rows), device=rows.device)
    most = len(rows) - (own is not None and bool((own >= 0).any()))
    if not 1 <= k <= most:
        raise ValueError(
            f"{k} neighbours cannot be taken from {most} rows: choose a number from 1 to {most}"
        )
    if rows.shape[1] != queries.shape[1]:
        raise ValueError(
            f"rows of {rows.shape[1]} and queries of {queries.shape[1]} numbers cannot be compared"
        )
    check_known("`metric`", metric, METRICS)
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    searched, query_rows, penalty = _prepared(rows.detach(), queries.detach(), metric)
    distance = torch.empty(len(query_rows), k, device=rows.device)
    index = torch.empty(len(query_rows), k, dtype=torch.int64, device=rows.device)
    step, tile = min(chunk or QUERIES, QUERIES), min(chunk or ROWS, ROWS)
    places = [slice(start, start + step) for start in range(0, len(query_rows), step)]
    parts = [_Queries(query_rows[some], None if own is None else own[some]) for some in places]
    every = _Searched(searched, penalty, 0)
    keys: Iterator[Tensor] = (_largest(every, part, k, tile) for part in parts)
    if engine() is not None and rows.device.type == "cpu":
        keys = _divided(every, parts, k, tile)
    with progress("comparing images", len(query_rows)) as bar:
        for some, part, best in zip(places, parts, keys, strict=True):
            candidates = positions_of(best)
            distance[some], index[some] = ordered(searched, part.rows, candidates, metric)
            bar.advance(len(part.rows))
    return Nearest(distance, index)


class _Searched(NamedTuple):
    """Rows that are searched, the penalty of each, and the position of the first among all."""

    rows: Tensor
    penalty: Tensor | None
    first: int


class _Queries(NamedTuple):
    """Some of the queries, and the position of the row that each is; None: of none."""

    rows: Tensor
    own: Tensor | None


def _divided(
    every: _Searched, parts: Sequence[_Queries], k: int, tile: int
) -> Iterator[Int64[Tensor, "queries k"]]:
    """The keys of the k rows with the largest similarities, for each part of the queries, by an
    engine, one partition of the rows after another: which keys are the largest does not depend on
    how the rows are divided, as long as the tiles stay the same.
    """
    best = [torch.empty(len(part.rows), 0, dtype=torch.int64) for part in parts]
    marks = [digest([part.rows.numpy().tobytes(), str(part.own).encode()]) for part in parts]
    count = max(1, PARTITION // (4 * every.rows.shape[1] * tile)) * tile
    for start in range(0, len(every.rows), count):
        rows = every.rows[start : start + count].numpy()  # which workers share in memory
        penalty = None if every.penalty is None else every.penalty[start : start + count].numpy()
        of_rows = digest([rows.tobytes(), f"{start} {k} {tile}".encode()])
        made: Iterator[dict[str, np.ndarray]] = each(
            partial(_largest_in_partition, rows, penalty, start, k, tile),
            enumerate(parts),
            partial(_key, of_rows, marks),
        )
        for place, keys in enumerate(made):
            both = torch.cat([best[place], torch.tensor(keys["keys"])], 1)
            best[place] = both.topk(min(k, both.shape[1]), dim=1, sorted=False).values
    return iter(best)


def _key(of_rows: str, marks: Sequence[str], part: tuple[int, _Queries]) -> str:
    return digest(f"{of_rows} {marks[part[0]]}".encode())


def _largest_in_partition(
    rows: np.ndarray,
    penalty: np.ndarray | None,
    first: int,
    k: int,
    tile: int,
    part: tuple[int, _Queries],
) -> dict[str, np.ndarray]:
    """The keys of a part of the queries in a partition of the rows."""
    penalties = None if penalty is None else torch.from_numpy(penalty)
    searched = _Searched(torch.from_numpy(rows), penalties, first)
    return {"keys": _largest(searched, part[1], k, tile).numpy()}


def _prepared(
    rows: Tensor, queries: Tensor, metric: Metric
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Rows and queries whose inner products, less a penalty for each row, decrease with the
    distance.
    """
    same = queries is rows
    if metric == "cosine":
        searched = unit_rows(rows, torch.float32)
        return searched, searched if same else unit_rows(queries, torch.float32), None
    mean = in_float64(rows).mean(0)  # distances stay; the squared lengths that drown small ones go
    searched = (in_float64(rows) - mean).to(rows.device, torch.float32)
    query_rows = searched if same else (in_float64(queries) - mean).to(rows.device, torch.float32)
    return searched, query_rows, searched.square().sum(1) / 2


def _largest(searched: _Searched, part: _Queries, k: int, step: int) -> Int64[Tensor, "queries k"]:
    """Keys of the k rows with the largest similarities to each query, in any order; all rows, where
    there are fewer.
    """
    rows, penalty, first = searched
    queries, own = part
    best = torch.empty(len(queries), 0, dtype=torch.int64, device=rows.device)
    for start in range(0, len(rows), step):
        tile = dot_products(queries, rows[start : start + step])
        if penalty is not None:
            tile -= penalty[start : start + step]
        if own is not None:
            leave_out(tile, own - first - start)
        best = larger(best, tile, first + start, k)
    return best


def leave_out(tile: Tensor, own: Int64[Tensor, " queries"]) -> None:
    """Give each query the similarity -inf to its own column, where the tile has it."""
    (mine,) = torch.where((own >= 0) & (own < tile.shape[1]))
    tile[mine, own[mine]] = -torch.inf


def larger(best: Tensor, tile: Tensor, start: int, k: int) -> Int64[Tensor, "queries k"]:
    """Keys of the k largest similarities among those of `best` and of a tile, in any order.

    On a CPU, once there are k, most of a tile is smaller than all of them and left out before keys
    are made.
    """
    added = None
    if best.shape[1] == k and tile.device.type == "cpu":
        row, column = torch.where(tile >= similarity_of(best.amin(1))[:, None])
        if len(row) <= FEW * len(tile):
            added = padded(row, keys_of(tile[row, column], start + column), len(tile))
    if added is None:
        added = _candidates(tile, start, k)
    best = torch.cat([best, added], 1)
    return best.topk(min(k, best.shape[1]), dim=1, sorted=False).values


def padded(
    row: Tensor, values: Tensor, count: int, missing: float = torch.iinfo(torch.int64).min
) -> Shaped[Tensor, "rows most"]:
    """Values of some rows, which ascend, as a matrix; where there are fewer, by default, the key of
    no row.
    """
    counts = row.bincount(minlength=count)
    place = torch.arange(len(row)) - (counts.cumsum(0) - counts)[row]
    out = torch.full((count, int(counts.max())), missing, dtype=values.dtype)
    out[row, place] = values
    return out


def _candidates(tile: Tensor, start: int, k: int) -> Tensor:
    """Keys that contain the k largest similarities of each row of the tile, the first of equal
    ones.

    The k largest lie in the k blocks with the largest maxima: k numbers come before the maximum of
    any other block.
    """
    count = tile.shape[1] // BLOCK
    columns = torch.arange(start, start + tile.shape[1], device=tile.device)
    if count <= 2 * k:
        return keys_of(tile, columns)
    whole = count * BLOCK
    blocks = tile[:, :whole].unflatten(1, (count, BLOCK))
    chosen = keys_of(blocks.amax(2), columns[:count] - start).topk(k, dim=1, sorted=False).values
    chosen = positions_of(chosen)[:, :, None].expand(-1, -1, BLOCK)
    inside = chosen * BLOCK + columns[:BLOCK]
    keys = keys_of(blocks.gather(1, chosen), inside).flatten(1)
    return torch.cat([keys, keys_of(tile[:, whole:], columns[whole:])], 1)


def keys_of(similarity: Tensor, position: Tensor) -> Tensor:
    """Integers in the order of the similarities, with ties in the reverse order of their
    positions.
    """
    bits = similarity.add(0.0).view(torch.int32).long()  # -0.0 + 0.0 is 0.0
    rank = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (rank << 32) | (0xFFFFFFFF - position)


def similarity_of(keys: Tensor) -> Tensor:
    """The similarities that keys were made of."""
    rank = keys >> 32
    return torch.where(rank < 0, rank ^ 0x7FFFFFFF, rank).to(torch.int32).view(torch.float32)


def positions_of(keys: Tensor) -> Tensor:
    """The positions that keys were made of."""
    return 0xFFFFFFFF - (keys & 0xFFFFFFFF)


def ordered(rows: Tensor, queries: Tensor, index: Tensor, metric: Metric) -> tuple[Tensor, Tensor]:
    """Distances from differences, and the positions in the order of distance."""
    index = index.sort(1).values
    distance = torch.empty(index.shape, device=rows.device)
    step = max(1, GATHERED // max(1, index.shape[1] * rows.shape[1]))
    for start in range(0, len(index), step):
        part = slice(start, start + step)
        neighbours, query = rows[index[part]], queries[part, None]
        square = (neighbours - query).square().sum(2)
        if metric == "cosine":  # |x - y|^2 = 2 - 2 cos, except for rows of zeros
            distance[part] = torch.where(
                neighbours.any(2) & query.any(2), square / 2, torch.ones_like(square)
            )
        else:
            distance[part] = square.sqrt()
    distance, order = distance.sort(dim=1, stable=True)
    return distance, index.gather(1, order)
