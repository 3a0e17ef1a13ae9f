"""The nearest rows of a matrix of which most are those of an earlier one, whose neighbours are
known: new rows are compared with all, or with those of the nearest lists, and the others with new
ones alone.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from nearfar.device import find_device
from nearfar.neighbours.approximate import (
    Lists,
    enough_lists,
    nearest_lists,
    queries_of_lists,
    search_lists,
)
from nearfar.neighbours.nearest import (
    QUERIES,
    ROWS,
    Nearest,
    larger,
    leave_out,
    ordered,
    padded,
    positions_of,
)
from nearfar.pairs.arithmetic import dot_products, unit_rows
from nearfar.progress import log, progress

MOST_NEW = 10  # rows to one that is new, at least, where earlier neighbours are of use
ROUNDING = 1e-5  # of similarities: distances that are computed from differences differ by less
PAIRS = 2**18  # of rows whose distances are computed at a time
SAMPLE = 256  # compared rows on which the share of the true neighbours is measured


def update_nearest(
    rows: Float[Tensor, "rows dim"],
    before: Nearest,
    place: Int64[Tensor, " rows"],
    k: int,
    lists: Lists | None = None,
) -> Nearest | None:
    """Find the k nearest others of each row by cosine, where those of most rows among themselves
    are known: as if all were compared, in a part of the time.

    before: of earlier rows. place: the position of each row among these, -1 for a new one. New
    rows, and those one of whose neighbours is gone, are compared with all; the others with new ones
    alone. lists: of the rows; both kinds are then compared with as many lists as `approximate_rows`
    would search for them, and a line of the log has the share of the true neighbours found. None
    where that is no less work: more than a tenth is compared, more than a tenth has come since the
    centres of the lists were learned, the earlier rows are in another order, or k is another
    number.
    """
    old = torch.where(place >= 0)[0]
    if before.index.shape[1] != k or bool((place[old].diff() < 0).any()):
        return None
    if lists is not None and len(rows) - lists.learned > len(rows) // MOST_NEW:
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
    if lists is not None and len(other):
        _compare_with_lists(unit, other, new, is_whole, lists, distance, index)
        return Nearest(distance, index)
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
        row, which = torch.where(is_near[:, column].T)
        _put_among(unit, start + column[row], some[are_new][which], distance, index)
    distance[some], index[some] = ordered(unit, queries.cpu(), positions_of(best).cpu(), "cosine")


def _compare_with_lists(
    unit: Float32[Tensor, "rows dim"],
    other: Int64[Tensor, " other"],
    new: Bool[Tensor, " rows"],
    is_whole: Bool[Tensor, " rows"],
    lists: Lists,
    distance: Float32[Tensor, "rows k"],
    index: Int64[Tensor, "rows k"],
) -> None:
    """Find the nearest of other rows in their lists, and put new ones among the nearest of those
    whose neighbours are known and that lie in the lists that these search.
    """
    k = index.shape[1]
    sample = other[:: -(-len(other) // SAMPLE)]
    count, share = enough_lists(unit, unit[sample], k, sample, lists)
    log.info(
        "the approximate search found %.1f %% of the true %d nearest of images that are new "
        "or lost a neighbour",
        100 * share,
        k,
    )
    near = search_lists(unit, unit[other], k, other, lists, count)
    distance[other], index[other] = near

    (fresh,) = torch.where(new)
    least = torch.where(is_whole, 1 - distance[:, -1] - ROUNDING, torch.inf)
    by_list = lists.list_of.argsort(stable=True)
    pairs = [torch.empty(2, 0, dtype=torch.int64)]  # of nothing, where images are gone alone
    searched = torch.cat(list(nearest_lists(lists.centres, unit[fresh], count))).long()
    for query, own in queries_of_lists(searched, lists.list_of[by_list].numpy()):
        in_list, some = by_list[own], fresh[query]
        row, column = torch.where(unit[in_list] @ unit[some].T >= least[in_list, None])
        pairs.append(torch.stack([in_list[row], some[column]]))
    row, fresh = torch.cat(pairs, 1)
    row, order = row.sort(stable=True)
    _put_among(unit, row, fresh[order], distance, index)


def _put_among(
    unit: Float32[Tensor, "rows dim"],
    row: Int64[Tensor, " pairs"],
    new: Int64[Tensor, " pairs"],
    distance: Float32[Tensor, "rows k"],
    index: Int64[Tensor, "rows k"],
) -> None:
    """Put new rows among the nearest of others. row: the other row of each pair, ascending."""
    k = index.shape[1]
    for own, others in zip(row.split(PAIRS), new.split(PAIRS), strict=True):
        if not len(own):
            continue
        far = ordered(unit, unit[own], others[:, None], "cosine")[0][:, 0]
        touched, place = own.unique_consecutive(return_inverse=True)
        far, near = (
            torch.cat([known[touched], padded(place, added, len(touched), missing)], 1)
            for known, added, missing in ((distance, far, torch.inf), (index, others, -1))
        )
        near, order = near.sort(1)  # the first ones of those at equal distances come first
        far, nearest = far.gather(1, order).sort(dim=1, stable=True)
        distance[touched], index[touched] = far[:, :k], near.gather(1, nearest)[:, :k]
