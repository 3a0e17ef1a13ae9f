"""Pairings: which embeddings meet in the loss, as a table of its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Embeddings = dict[str, Tensor]
"""Embeddings of one batch, each [views, batch, dim]: "projection" (online projector), "prediction"
(online predictor, where there is one), "second" (a second projector of the backbone's features,
where there is one), "key" (the momentum encoder's projector, without gradient) and "teacher" (a
frozen teacher's features of the images themselves, one view).
"""

Rows = tuple[str, int | tuple[int, ...]]
"""Embeddings of one view, ("projection", 0): [batch, dim], or of several, ("key", (1, 2)): [views,
batch, dim].
"""


def _one_number(value: object, loss: nn.Module) -> Tensor:
    """Return the value of a loss; ValueError unless it is a tensor of one real number."""
    given = type(value).__name__
    if isinstance(value, Tensor):
        if value.numel() == 1 and value.is_floating_point():
            return value
        given = f"a tensor {list(value.shape)} of {value.dtype}"
    raise ValueError(
        f"the loss {type(loss).__name__} must give a tensor of one real number, not {given}"
    )


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """A table of the calls of a loss on one batch; views are named by their number.

    terms: the calls, each with its positional arguments. join: the loss is the "mean" or the "sum"
    of their values. named: further rows by the argument's name, the same in every call; the views
    of several entries are joined. enqueued: what enters the queue after the step, where there is
    one; several views in one entry enter as the mean of their unit rows. Default: every key.
    queues: number of the queue that each term reads, where there are several; entry i of `enqueued`
    then fills queue i. beside: the arguments of a second loss that stands beside this one, if any.

    >>> Pairing(terms=((("projection", 0), ("key", 1)),)).momentum_views
    (1,)
    """

    terms: tuple[tuple[Rows, ...], ...]
    join: Literal["mean", "sum"] = "mean"
    named: Mapping[str, tuple[Rows, ...]] = field(default_factory=dict)
    enqueued: tuple[Rows, ...] | None = None
    queues: tuple[int, ...] | None = None
    beside: tuple[Rows, ...] = ()

    def __call__(
        self,
        loss: nn.Module,
        embeddings: Embeddings,
        queues: Sequence[Tensor] = (),
        **state: Tensor | None,
    ) -> Tensor:
        """Return the scalar loss; each call gets its queue, where there are any, and `state` (the
        images' index). Raises ValueError for a loss that gives anything but one number.
        """
        named = {name: self._join(embeddings, entries) for name, entries in self.named.items()}
        values = []
        for number, term in enumerate(self.terms):
            queue = {"queue": queues[self.queues[number] if self.queues else 0]} if queues else {}
            rows = (self._select(embeddings, rows) for rows in term)
            values.append(_one_number(loss(*rows, **queue, **named, **state), loss))
        return torch.stack(values).mean() if self.join == "mean" else torch.stack(values).sum()

    def rows_beside(self, embeddings: Embeddings) -> list[Tensor]:
        """Return the arguments of the second loss."""
        return [self._select(embeddings, rows) for rows in self.beside]

    def rows_to_enqueue(self, embeddings: Embeddings) -> list[Tensor]:
        """Return the rows [rows, dim] that enter each queue after the step."""
        entries = (
            [("key", view) for view in self.momentum_views]
            if self.enqueued is None
            else self.enqueued
        )
        parts = [self._select(embeddings, rows) for rows in entries]
        rows = [
            part if part.ndim == 2 else F.normalize(part.float(), dim=-1).mean(0) for part in parts
        ]
        return [torch.cat(rows)] if self.queues is None else rows

    @property
    def names(self) -> set[str]:
        """The kinds of embeddings that are used, of those of `Embeddings`."""
        return {name for name, _ in self._all_rows()}

    @property
    def online_views(self) -> tuple[int, ...]:
        """The views that pass through the online branch, in order."""
        return self._views(("projection", "prediction", "second"))

    @property
    def momentum_views(self) -> tuple[int, ...]:
        """The views that pass through the momentum encoder, in order."""
        return self._views(("key",))

    def _all_rows(self) -> list[Rows]:
        joined = (*chain(*self.terms), *chain(*self.named.values()))
        return [*joined, *(self.enqueued or ()), *self.beside]

    def _views(self, names: tuple[str, ...]) -> tuple[int, ...]:
        used = [views for name, views in self._all_rows() if name in names]
        return tuple(
            sorted(set(chain(*((views,) if isinstance(views, int) else views for views in used))))
        )

    def _join(self, embeddings: Embeddings, entries: tuple[Rows, ...]) -> Tensor:
        parts = [self._select(embeddings, rows) for rows in entries]
        return torch.cat([part if part.ndim == 3 else part[None] for part in parts])

    def _select(self, embeddings: Embeddings, rows: Rows) -> Tensor:
        name, views = rows
        present = {"key": self.momentum_views, "teacher": (0,)}.get(name, self.online_views)
        if isinstance(views, int):
            return embeddings[name][present.index(views)]
        return torch.stack([embeddings[name][present.index(view)] for view in views])


def two_views() -> Pairing:
    """The projections of two views against each other."""
    return Pairing(terms=((("projection", 0), ("projection", 1)),))


def pairs_with_large(large: int, views: int) -> Pairing:
    """The projections of every two views of which one or both are large; the large ones come
    first.
    """
    pairs = [(i, j) for i in range(large) for j in range(i + 1, views)]
    return Pairing(terms=tuple((("projection", i), ("projection", j)) for i, j in pairs))


def all_views(views: int) -> Pairing:
    """The projections of all views, in one call."""
    return Pairing(terms=((("projection", tuple(range(views))),),))


def both_ways(
    first: str,
    second: str,
    join: Literal["mean", "sum"] = "mean",
    enqueued: tuple[Rows, ...] | None = None,
) -> Pairing:
    """Embeddings of one kind of each view against those of another kind of the other view."""
    return Pairing(
        terms=(((first, 0), (second, 1)), ((first, 1), (second, 0))), join=join, enqueued=enqueued
    )


def views_and_teacher(query: str = "projection") -> tuple[Rows, ...]:
    """The first two views, and the teacher's features of their images: arguments of TeacherSCE."""
    return (query, 0), (query, 1), ("teacher", 0)


def queries_against_keys(
    views: int = 2,
    query: str = "projection",
    *,
    both_ways: bool = False,
    queue_per_view: bool = False,
) -> Pairing:
    """The key of the second view, or of each of the first two, against the queries of all other
    views.

    queue_per_view: the keys of each view have a queue of their own.
    """
    keys = (0, 1) if both_ways else (1,)
    pairs = [(view, key) for key in keys for view in range(views) if view != key]
    queues = tuple(keys.index(key) for _, key in pairs) if queue_per_view else None
    return Pairing(terms=tuple(((query, view), ("key", key)) for view, key in pairs), queues=queues)
