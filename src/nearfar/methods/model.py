"""The networks of a method as one module: what is trained, saved and resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from nearfar.encoders import Backbone, Queue, Twin, mlp, shuffled, split_batch_norm
from nearfar.methods.method import Embeddings, Head, Method


class Model(nn.Module):
    """Online branch, predictor, twin, queue and loss of a method around a backbone.

    `forward(views)` returns the embeddings; `compute_loss` joins them. They are apart so that the loop can gather
    embeddings over processes, or make them in micro-batches, before the loss sees the whole batch.
    """

    def __init__(self, method: Method, backbone: Backbone, num_images: int) -> None:
        super().__init__()
        wiring = method.wiring(num_images)
        self.method, self.wiring = method, wiring
        dim = wiring.projector.widths[-1]
        self.online = nn.Sequential(backbone, _head(backbone.num_features, wiring.projector))
        self.predictor = _head(dim, wiring.predictor) if wiring.predictor else None
        self.twin = Twin(self.online) if wiring.twin else None
        if self.twin is not None and wiring.norm_groups > 1:
            split_batch_norm(self.twin, wiring.norm_groups)
        self.queue = None if wiring.queue_size is None else Queue(wiring.queue_size, dim)
        self.loss = wiring.loss

    @property
    def backbone(self) -> Backbone:
        """The online backbone, the part that is kept."""
        return cast(Backbone, self.online[0])

    def forward(self, views: Sequence[Tensor], with_target: bool = True) -> Embeddings:
        """Embed views, each [batch, channels, size, size] and normalised; one pass for each size of view."""
        online = range(len(views)) if self.wiring.online is None else self.wiring.online
        projection = _by_size(self.online, [views[i] for i in online])
        embeddings = {"projection": projection}
        if self.predictor is not None:
            embeddings["prediction"] = self.predictor(projection.flatten(0, 1)).view_as(projection)
        if self.twin is not None and with_target:
            with torch.no_grad():
                twin = partial(shuffled, self.twin) if self.wiring.norm_groups > 1 else self.twin
                embeddings["target"] = _by_size(twin, [views[i] for i in self.wiring.target])
        return embeddings

    def compute_loss(self, embeddings: Embeddings, index: Tensor) -> Tensor:
        """Return the scalar loss of the complete batch; updates the loss's state, leaves twin and queue alone."""
        queue = None if self.queue is None else self.queue.rows
        return self.method.compute(self.loss, embeddings, index, queue)

    def set_schedules(self, epoch: float, epochs: int) -> None:
        """Set the loss's scheduled numbers for a moment of training."""
        for name, schedule in self.wiring.schedules.items():
            setattr(self.loss, name, schedule(epoch, epochs))

    @torch.no_grad()
    def after_step(self, embeddings: Embeddings, epoch: float, epochs: int) -> None:
        """Move the twin towards the online branch and push the batch's keys; called after the optimiser's step."""
        if self.twin is not None and self.wiring.twin is not None:
            self.twin.update(self.online, self.wiring.twin(epoch, epochs))
        if self.queue is not None:
            self.queue.push(self.method.pushed(embeddings))


def _head(in_features: int, head: Head) -> nn.Module:
    return mlp(
        in_features,
        head.widths,
        batch_norm=head.hidden_norm,
        last_batch_norm=head.output_norm,
        last_affine=head.output_affine,
    )


def _by_size(network: Callable[[Tensor], Tensor], views: Sequence[Tensor]) -> Tensor:
    """Apply a network with one forward for each size of view; returns [views, batch, dim] in the views' order."""
    sizes = sorted({view.shape[-2:] for view in views}, reverse=True)
    rows: list[Tensor | None] = [None] * len(views)
    for size in sizes:
        members = [i for i, view in enumerate(views) if view.shape[-2:] == size]
        out = network(torch.cat([views[i] for i in members])).chunk(len(members))
        for i, rows_of_view in zip(members, out, strict=True):
            rows[i] = rows_of_view
    return torch.stack([row for row in rows if row is not None])
