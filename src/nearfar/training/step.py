"""The gradient of one batch: embeddings, the loss on the joined batch, and back through the
networks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nearfar.data import rank_rows
from nearfar.device import is_out_of_memory, seed_generators
from nearfar.methods import Embeddings, Model
from nearfar.pairs import shared_rows
from nearfar.pairs.shares import gather_rows, world_size
from nearfar.training.processes import Process

MakeViews = Callable[[slice], list[Tensor]]
"""Makes the views of some rows of this process's batch; the same rows always get the same views."""


class GradientStep:
    """Computes the full batch's gradient, whole or in micro-batches.

    With `micro_batch` images at a time (two at least, for batch normalisation) the embeddings are
    made first without a graph, the loss's gradient is taken on them, and each micro-batch is then
    run again with a graph to carry its rows' gradient back: the exact gradient of the full batch in
    the memory of a micro-batch, at the price of a second forward. Batch normalisation uses the
    statistics of each micro-batch, in both passes alike; running statistics are updated once, in
    the second. "auto" starts with the whole batch and halves the micro-batch after an out-of-memory
    error; the step is repeated.
    """

    def __init__(
        self, process: Process, model: Model, micro_batch: int | Literal["auto"] | None = None
    ) -> None:
        self.process, self.model = process, model
        self.backs_off = micro_batch == "auto"
        self.micro_batch = None if micro_batch == "auto" else micro_batch

    def __call__(
        self, make_views: MakeViews, index: Tensor, batch: int, seed: int
    ) -> tuple[Tensor, Embeddings]:
        """Leave the gradient of the joined batch in the parameters; return the loss and the
        embeddings.

        The embeddings are those of the joined batch. make_views: of this rank's rows. index: [own
        rows] image numbers. batch: rows on all ranks together. seed: of dropout and of the loss's
        samples, the same on every rank. Raises ValueError for a loss without a gradient for the
        embeddings.
        """
        statistics = Statistics(self.model)
        while True:
            # A step may change buffers and the loss's state (SwAV's unit rows) before the optimiser
            # does.
            model = self.model
            moving = (
                (list(model.buffers()), model.loss.state_dict()) if self.backs_off else ([], {})
            )
            buffers, loss = copy.deepcopy(moving)
            try:
                value, seen = self._gradient(make_views, index, batch, seed)
                statistics.put_back_unless_finite(value)
                return value, seen
            except RuntimeError as error:
                rows = min(self.micro_batch or len(index), len(index))
                if not (self.backs_off and is_out_of_memory(error) and rows > 1):
                    raise
                self.micro_batch = (rows + 1) // 2
            model.zero_grad()
            for value, before in zip(model.buffers(), buffers, strict=True):
                value.copy_(before)
            model.loss.load_state_dict(loss)

    def _gradient(
        self, make_views: MakeViews, index: Tensor, batch: int, seed: int
    ) -> tuple[Tensor, Embeddings]:
        count = -(-len(index) // (self.micro_batch or len(index)))
        count = max(1, min(count, len(index) // 2))  # one image alone has no batch statistics
        parts = [rank_rows(len(index), part, count) for part in range(count)]
        graph: Embeddings = {}
        if len(parts) == 1:
            graph = self._embed(make_views, parts[0], seed)
            own = {name: rows.detach() for name, rows in graph.items()}
        else:
            with torch.no_grad(), frozen_statistics(self.model):
                pieces = [self._embed(make_views, rows, seed) for rows in parts]
            own = {name: torch.cat([piece[name] for piece in pieces], 1) for name in pieces[0]}

        world, rank = self.process.world_size, self.process.rank
        shares = [rank_rows(batch, other, world) for other in range(world)]
        joined = {name: join_batches(part, batch, dim=1) for name, part in own.items()}
        seen = {name: part.detach().requires_grad_(name != "key") for name, part in joined.items()}
        seed_generators(seed)
        with shared_rows(shares, rank):
            loss = self.model.compute_loss(seen, join_batches(index, batch))
        if loss.requires_grad:
            self.process.backward(loss)
        if all(part.grad is None for part in seen.values()):
            raise ValueError(
                f"the loss {type(self.model.loss).__name__} has no gradient for the embeddings, "
                f"so that nothing would be trained: it may detach them"
            )
        loss = loss.detach()

        for rows in parts:
            out = graph if len(parts) == 1 else self._embed(make_views, rows, seed, with_keys=False)
            mine = slice(shares[rank].start + rows.start, shares[rank].start + rows.stop)
            carried = [
                (out[name], part.grad[:, mine])
                for name, part in seen.items()
                if part.grad is not None
            ]
            torch.autograd.backward(
                [part for part, _ in carried], [grad.to(part.dtype) for part, grad in carried]
            )
        sum_gradients(
            parameter
            for network in self.model.trained_networks
            for parameter in network.parameters()
        )
        return loss, {name: rows.detach() for name, rows in seen.items()}

    def _embed(
        self, make_views: MakeViews, rows: slice, seed: int, with_keys: bool = True
    ) -> Embeddings:
        seed_generators(seed + 1 + rows.start + 1_000_003 * self.process.rank)
        views = make_views(rows)
        with self.process.autocast():
            return self.model(views, with_keys)


class Statistics:
    """Running statistics of the online networks as they are before a step."""

    def __init__(self, model: Model) -> None:
        self.buffers = [
            buffer
            for network in model.trained_networks
            for buffer in network.buffers()
            if buffer.is_floating_point()
        ]
        self.before = self._joined()

    def _joined(self) -> Tensor:
        return torch.cat([buffer.flatten() for buffer in self.buffers] or [torch.empty(0)])

    @torch.no_grad()
    def put_back_unless_finite(self, loss: Tensor) -> None:
        """Leave nothing of a batch whose loss is not finite, nor numbers that are not; waits for no
        GPU.
        """
        if not self.buffers:
            return
        now = self._joined()
        kept = torch.where(now.isfinite() & loss.isfinite(), now, self.before)
        parts = kept.split([buffer.numel() for buffer in self.buffers])
        shaped = [part.view_as(own) for part, own in zip(parts, self.buffers, strict=True)]
        torch._foreach_copy_(self.buffers, shaped)


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Leave the running statistics of batch normalisation alone for a while; batches still use
    their own.
    """
    tracking = [
        m
        for m in model.modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats
    ]
    for module in tracking:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True


def join_batches(own: Tensor, batch: int, dim: int = 0) -> Tensor:
    """Return the joined tensor of all ranks along the batch dimension, in rank order; no gradient
    flows through.

    own: this rank's rows, `rank_rows(batch, rank, world)` of them along `dim`. One process:
    returned as it is.
    """
    world = world_size()
    if world == 1:
        return own
    shares = [rank_rows(batch, rank, world) for rank in range(world)]
    return gather_rows(own.movedim(dim, 0), [rows.stop - rows.start for rows in shares]).movedim(
        0, dim
    )


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up the gradients of all ranks in place, in one message; a parameter without gradient
    counts as zero.
    """
    if world_size() == 1:
        return
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trained:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    flat = torch.cat(
        [parameter.grad.flatten() for parameter in trained if parameter.grad is not None]
    )
    dist.all_reduce(flat)
    for parameter, summed in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
        parameter.grad = summed.view_as(parameter)
