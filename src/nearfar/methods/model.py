"""The networks of a method as one module: what is trained, saved and resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from nearfar.device import quiet_compiler
from nearfar.methods.method import Method, Teacher
from nearfar.methods.pairing import Embeddings
from nearfar.networks import MomentumEncoder, Queue, shuffled, split_batch_norm


class Model(nn.Module):
    """Online branch, further heads, momentum encoder, queues and loss of a method around a
    backbone.

    backbone: any module from normalised images [batch, channels, size, size] to features [batch,
    num_features], with the attribute `num_features`. num_images: in the training set. teacher: how
    a frozen teacher's similarities enter the loss, if there is one; its features of the training
    images [num_images, dim] are then set as `teacher_rows`, which no state_dict holds.
    `forward(views)` returns the embeddings; `compute_loss` compares them. They are apart so that
    the loop can gather embeddings over processes, or make them in micro-batches, before the loss
    sees the whole batch. Raises ValueError for a method whose pairing needs more views than it
    declares.

    >>> model = Model(SimCLR(), nearfar.networks.SmallNet(image_size=32), num_images=100)
    >>> model([torch.randn(8, 3, 32, 32), torch.randn(8, 3, 32, 32)])["projection"].shape
    torch.Size([2, 8, 128])
    """

    def __init__(
        self,
        method: Method,
        backbone: nn.Module,
        num_images: int,
        teacher: Teacher | None = None,
    ) -> None:
        super().__init__()
        setup = method.setup_for(num_images, teacher)
        pairing = setup.pairing
        if (last := max(pairing.online_views + pairing.momentum_views)) >= len(method.views):
            raise ValueError(
                f"the pairing names view {last}, but the method has views 0 to "
                f"{len(method.views) - 1}"
            )
        self.method, self.setup = method, setup
        dim, num_features = setup.projector.widths[-1], cast(int, backbone.num_features)
        self.online = nn.Sequential(backbone, setup.projector.build(num_features))
        self.predictor = setup.predictor.build(dim) if setup.predictor else None
        second = setup.second_projector
        self.second_projector = None if second is None else second.build(num_features)
        self.momentum_encoder = MomentumEncoder(self.online) if setup.momentum else None
        if self.momentum_encoder is not None and setup.norm_groups > 1:
            split_batch_norm(self.momentum_encoder, setup.norm_groups)
        if setup.online_norm_groups > 1:
            split_batch_norm(self.online, setup.online_norm_groups)
        self.shuffled = shuffled
        """Applies a network to shuffled rows; on several processes to those of all."""
        queues = set() if setup.queue_size is None else set(pairing.queues or (0,))
        self.queues = nn.ModuleList(Queue(cast(int, setup.queue_size), dim) for _ in queues)
        self.loss = setup.loss
        self.teacher_rows: Tensor | None = None
        self.momentum: Tensor | None = None
        """That of the momentum encoder, on the device where a captured step reads it."""
        self._compiled: list[Callable[[Tensor], Tensor]] = []

    def compile_networks(self) -> None:
        """Compile backbone and projector for training, by torch.compile; who calls them alone gets
        them as they are.
        """
        quiet_compiler()
        self._compiled = [torch.compile(network) for network in self.online]

    @property
    def is_compiled(self) -> bool:
        """Return whether the networks were compiled."""
        return bool(self._compiled)

    @property
    def backbone(self) -> Any:
        """The backbone as it was given, the part that is kept."""
        return self.online[0]

    @property
    def trained_networks(self) -> list[nn.Module]:
        """Return the networks that gradients train: backbone and projector, and further heads."""
        networks = self.online, self.predictor, self.second_projector
        return [network for network in networks if network is not None]

    def forward(self, views: Sequence[Tensor], with_keys: bool = True) -> Embeddings:
        """Embed views, each [batch, channels, size, size] and normalised.

        The backbone has one pass for each size of view and a head one for all views, or each one
        for each view where the method has batch statistics of each view.
        """
        pairing, embed = self.setup.pairing, _one_by_one if self.setup.view_statistics else _by_size
        backbone, projector = self._compiled or self.online
        features = embed(backbone, [views[i] for i in pairing.online_views])
        projection = embed(projector, features.unbind())
        embeddings = {"projection": projection}
        if self.predictor is not None:
            embeddings["prediction"] = embed(self.predictor, projection.unbind())
        if self.second_projector is not None:
            embeddings["second"] = embed(self.second_projector, features.unbind())
        if self.momentum_encoder is not None and with_keys:
            with torch.no_grad():
                split = self.setup.norm_groups > 1
                network = (
                    partial(self.shuffled, self.momentum_encoder)
                    if split
                    else self.momentum_encoder
                )
                embeddings["key"] = embed(network, [views[i] for i in pairing.momentum_views])
        return embeddings

    def compute_loss(self, embeddings: Embeddings, index: Tensor | None) -> Tensor:
        """Return the scalar loss of the complete batch; updates the state of the loss alone.

        index: [batch] numbers of the images; None will do unless the loss keeps something for each
        image, or there is a teacher.
        """
        pairing, beside = self.setup.pairing, self.setup.beside
        if "teacher" in pairing.names:
            embeddings = embeddings | {"teacher": self._teacher_of(index)[None]}
        state: dict[str, Tensor | None] = {"index": index} if self.setup.needs_index else {}
        loss = pairing(self.loss, embeddings, [queue() for queue in self.queues], **state)
        if beside is None:
            return loss
        weight = self.setup.beside_weight
        return (1 - weight) * loss + weight * beside(*pairing.rows_beside(embeddings))

    def _teacher_of(self, index: Tensor | None) -> Tensor:
        """The teacher's features of the batch's images."""
        if self.teacher_rows is None or index is None:
            raise ValueError(
                "a teacher is compared with: set teacher_rows [images, dim], and give the index"
            )
        return self.teacher_rows[index]

    def set_schedules(self, epoch: float, epochs: float) -> None:
        """Set the loss's scheduled numbers, and the momentum if it is a tensor, for a moment of
        training.
        """
        for name, schedule in self.setup.schedules.items():
            setattr(self.loss, name, schedule(epoch, epochs))
        if self.momentum is not None and self.setup.momentum is not None:
            self.momentum.fill_(self.setup.momentum(epoch, epochs))

    @torch.no_grad()
    def after_step(self, embeddings: Embeddings, epoch: float, epochs: float) -> None:
        """Update the momentum encoder and enqueue the batch's keys; called after the optimiser's
        step.
        """
        if self.momentum_encoder is not None and self.setup.momentum is not None:
            momentum = (
                self.setup.momentum(epoch, epochs) if self.momentum is None else self.momentum
            )
            self.momentum_encoder.update(self.online, momentum)
        if self.queues:
            for queue, rows in zip(
                self.queues, self.setup.pairing.rows_to_enqueue(embeddings), strict=True
            ):
                cast(Queue, queue).push(rows)


def _one_by_one(network: Callable[[Tensor], Tensor], views: Sequence[Tensor]) -> Tensor:
    """Apply a network to each view alone; returns [views, batch, dim]."""
    return torch.stack([network(view) for view in views])


def _by_size(network: Callable[[Tensor], Tensor], views: Sequence[Tensor]) -> Tensor:
    """Apply a network with one forward for each size of view; returns [views, batch, dim] in the
    views' order.
    """
    rows: dict[int, Tensor] = {}
    for size in sorted({view.shape[1:] for view in views}, reverse=True):
        members = [i for i, view in enumerate(views) if view.shape[1:] == size]
        rows |= zip(
            members,
            network(torch.cat([views[i] for i in members])).chunk(len(members)),
            strict=True,
        )
    return torch.stack([rows[i] for i in range(len(views))])
