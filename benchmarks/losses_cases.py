"""Cases of benchmarks/losses.py: quantities, their implementations, inputs and arithmetic
floors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import peers
import torch
import torch.nn.functional as F
from torch import Tensor

import nearfar.losses as L
import references as plain
from nearfar.pairs import log_sum_exp, logistic_sum

Loss = Callable[..., Tensor]
QUEUE_BATCH = 256


@dataclass(frozen=True)
class Shape:
    """One size: batch and dim of the embeddings, rows of the queue (0: the loss has none)."""

    batch: int
    dim: int
    queue: int = 0


@dataclass(frozen=True)
class Quantity:
    """Computation of a loss: its plain form, which is its reference in float64, and the FLOP that it
    cannot go below.
    """

    name: str
    reference: Callable[..., Tensor]
    floor: Callable[[Shape], float]
    views: tuple[int, int] | None = (
        None  # queue losses: views of the query and of the key, 0 for a plain [batch, dim]
    )
    contrastive: bool = True  # the memory target is for contrastive losses


@dataclass(frozen=True)
class Case:
    """One implementation of a quantity; `build` returns a function of the inputs."""

    owner: str
    label: str
    quantity: Quantity
    build: Callable[[Shape], Loss]
    check_batches: tuple[int, ...] | None = None
    least_batch: int = 0
    patience: float = 1.0  # multiplies the time limit of one run
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.owner} {self.label}"

    def inputs(self, shape: Shape, seed: int = 0) -> list[Tensor]:
        """The embeddings that need a gradient first; raw rows whose positives lie near each
        other.
        """
        generator = torch.Generator().manual_seed(seed)
        noise = partial(torch.randn, generator=generator)
        first = noise(shape.batch, shape.dim)
        if self.quantity.views is None:
            second = first + noise(shape.batch, shape.dim)
            return [first.requires_grad_(), second.requires_grad_(), torch.arange(shape.batch)]
        query, key = (
            first + noise(*([views] if views else []), shape.batch, shape.dim)
            for views in self.quantity.views
        )
        return [query.requires_grad_(), key, F.normalize(noise(shape.queue, shape.dim), dim=1)]


def features(count: float) -> Callable[[Shape], float]:
    """Products with dim x dim matrices."""
    return lambda shape: 2.0 * count * shape.batch * shape.dim**2


def square(shape: Shape) -> float:
    """U = 2 n^2 d, the FLOP of the whole similarity matrix of n = 2 batch rows."""
    return 2.0 * (2 * shape.batch) ** 2 * shape.dim


def two_passes(shape: Shape) -> float:
    """2U by symmetry where the weights come after the first pass; 1.5U while the tiles can be kept
    (n <= 2048).
    """
    return (1.5 if shape.batch <= 1024 else 2.0) * square(shape)


def one_pass(shape: Shape) -> float:
    return 1.5 * square(shape)


def cross(shape: Shape) -> float:
    """One B x B matrix and its two gradients, nothing recomputed."""
    return 6.0 * shape.batch**2 * shape.dim


def sampled(shape: Shape) -> float:
    """SACLR-1: the positive and two negatives of each row, forward and both gradients."""
    return 3 * 2 * shape.batch * 6.0 * shape.dim


def in_batch(count: int) -> Callable[[Shape], float]:
    """Attentions over the batch's own keys."""
    return lambda shape: 4.0 * count * shape.batch**2 * shape.dim


def attentions(count: float) -> Callable[[Shape], float]:
    return lambda shape: 4.0 * count * shape.batch * shape.queue * shape.dim


def stateless(reference: Loss, **options: Any) -> Loss:
    """A reference of two views, with the arguments of one that keeps a state."""
    return lambda state, z1, z2, index: reference(z1, z2, **options)


def queued(reference: Loss, **options: Any) -> Loss:
    return lambda state, query, key, queue: reference(query, key, queue, **options)


def prototypes(dim: int) -> Tensor:
    """The 3000 prototypes that SwAV is measured with."""
    return F.normalize(torch.randn(3000, dim, generator=torch.Generator().manual_seed(1)), dim=1)


def plain_swav(state: plain.State, z1: Tensor, z2: Tensor, index: Tensor) -> Tensor:
    return plain.swav(torch.stack([z1, z2]), prototypes(z1.shape[1]).to(z1.dtype))


def plain_nnclr(
    state: plain.State, prediction: Tensor, projection: Tensor, queue: Tensor
) -> Tensor:
    return plain.nnclr(projection, prediction, queue)


SIMCLR = Quantity("SimCLR", stateless(plain.simclr, temperature=0.1), two_passes)
DCL = Quantity("DCL", stateless(plain.dcl, temperature=0.1), two_passes)
DCLW = Quantity("DCLW", stateless(plain.dcl, temperature=0.1, sigma=0.5), two_passes)
SACLR_ALL = Quantity("SACLR-all", plain.saclr, one_pass)
SACLR_ALL_ROW = Quantity("SACLR-all, row", partial(plain.saclr, per_image=True), one_pass)
SACLR_1 = Quantity("SACLR-1", plain.saclr, sampled)
SACLR_1_ROW = Quantity("SACLR-1, row", partial(plain.saclr, per_image=True), sampled)
SIGCLR = Quantity("SigCLR", stateless(plain.sigclr), one_pass)
SOGCLR = Quantity("SogCLR", plain.sogclr, two_passes)
ISOGCLR = Quantity("iSogCLR", plain.isogclr, two_passes)
CLIP = Quantity("CLIP", stateless(plain.clip), cross)
SIGLIP = Quantity("SigLIP", stateless(plain.siglip), cross)
MOCO_V3 = Quantity("MoCo v3", stateless(plain.moco_v3), in_batch(1))
SCE_IN_BATCH = Quantity("SCE, no queue", stateless(plain.sce), in_batch(2))
MOCO = Quantity("MoCo", queued(plain.info_nce), attentions(1), views=(0, 0))
RESSL = Quantity("ReSSL", queued(plain.ressl), attentions(2), views=(0, 0))
SCE = Quantity("SCE", queued(plain.sce), attentions(2), views=(0, 0))
MOCO_M = Quantity("MoCo-M", queued(plain.lorac, beta=float("inf")), attentions(2), views=(2, 0))
LORAC = Quantity("LORAC", queued(plain.lorac), attentions(2), views=(2, 0))
JCL = Quantity("JCL", queued(plain.jcl), attentions(1), views=(0, 4))
NNCLR = Quantity(
    "NNCLR",
    lambda state, query, key, queue: plain.nnclr(key, query, queue),
    attentions(0.5),
    views=(0, 0),
)
COSINE = Quantity(
    "negative cosine",
    stateless(plain.negative_cosine),
    lambda s: 6.0 * s.batch * s.dim,
    contrastive=False,
)
BARLOW = Quantity("Barlow Twins", stateless(plain.barlow_twins), features(3), contrastive=False)
VICREG = Quantity("VICReg", stateless(plain.vicreg), features(4), contrastive=False)
W_MSE = Quantity("W-MSE", stateless(plain.wmse), features(6), contrastive=False)
SWAV = Quantity("SwAV", plain_swav, lambda s: 6.0 * 2 * s.batch * 3000 * s.dim, contrastive=False)


def ours(
    quantity: Quantity, make: Callable[[int], torch.nn.Module], indexed: bool = False, **more: Any
) -> Case:
    """A loss of nearfar made from the number of images; those without per-image state are not given
    the index.
    """

    def build(shape: Shape) -> Loss:
        loss = make(shape.batch)
        return loss if indexed or quantity.views else lambda z1, z2, index: loss(z1, z2)

    return Case("nearfar", quantity.name, quantity, build, **more)


def peer(
    owner: str, label: str, quantity: Quantity, make: Callable[[int], Loss], **more: Any
) -> Case:
    return Case(owner, label, quantity, lambda shape: make(shape.batch), **more)


def two_set_info_nce(shape: Shape) -> Loss:
    def forward(z1: Tensor, z2: Tensor, index: Tensor) -> Tensor:
        positive, (rows, columns) = log_sum_exp(z1, z2, 0.1, across=True)
        return (F.softplus(rows - positive) + F.softplus(columns - positive)).mean() / 2

    return forward


def two_set_logistic(shape: Shape) -> Loss:
    scale, bias = torch.tensor(10.0), torch.tensor(-10.0)

    def forward(z1: Tensor, z2: Tensor, index: Tensor) -> Tensor:
        positive, total = logistic_sum(z1, z2, scale, bias, across=True)
        return (total + F.softplus(-(scale * positive + bias)).sum()) / len(z1)

    return forward


def nnclr(shape: Shape) -> Loss:
    loss = L.NNCLR()
    return lambda prediction, projection, queue: loss(projection, prediction, queue)


def swav(shape: Shape) -> Loss:
    loss = L.SwAV(shape.dim)
    loss.prototypes.data = prototypes(shape.dim)
    loss.freeze_prototypes = True
    return lambda z1, z2, index: loss(torch.stack([z1, z2]))


NEARFAR = [
    ours(SIMCLR, lambda size: L.SimCLR(temperature=0.1), patience=4.0),
    ours(DCL, lambda size: L.DCL(temperature=0.1)),
    ours(DCLW, lambda size: L.DCL(temperature=0.1, weighted=True)),
    ours(SACLR_ALL, lambda size: L.SACLR(size, negatives="all")),
    ours(SACLR_ALL_ROW, lambda size: L.SACLR(size, scale="row", negatives="all"), indexed=True),
    # with two images in the batch one negative is all there is, so the sample is known
    ours(SACLR_1, lambda size: L.SACLR(size, negatives=1), check_batches=(2,)),
    ours(
        SACLR_1_ROW,
        lambda size: L.SACLR(size, scale="row", negatives=1),
        indexed=True,
        check_batches=(2,),
    ),
    ours(SIGCLR, lambda size: L.SigCLR()),
    ours(SOGCLR, lambda size: L.SogCLR(size), indexed=True),
    ours(ISOGCLR, lambda size: L.ISogCLR(size), indexed=True),
    Case("nearfar", "pairs, two-set InfoNCE", CLIP, two_set_info_nce),
    Case("nearfar", "pairs, two-set logistic", SIGLIP, two_set_logistic),
    ours(MOCO_V3, lambda size: L.MoCoV3()),
    ours(SCE_IN_BATCH, lambda size: L.SCE()),
    ours(MOCO, lambda size: L.MoCo()),
    ours(RESSL, lambda size: L.ReSSL()),
    ours(SCE, lambda size: L.SCE()),
    ours(MOCO_M, lambda size: L.LORAC(beta=float("inf"))),
    ours(LORAC, lambda size: L.LORAC()),
    ours(JCL, lambda size: L.JCL()),
    Case("nearfar", "NNCLR", NNCLR, nnclr),
    ours(COSINE, lambda size: L.NegativeCosine()),
    ours(BARLOW, lambda size: L.BarlowTwins()),
    ours(VICREG, lambda size: L.VICReg()),
    ours(W_MSE, lambda size: L.WMSE(sub_batch=size), least_batch=1024),
    Case("nearfar", "SwAV", SWAV, swav),
]
WITH_PLAIN_FORM = [
    SIMCLR,
    DCL,
    SACLR_ALL,
    SIGCLR,
    SOGCLR,
    ISOGCLR,
    CLIP,
    SIGLIP,
    MOCO_V3,
    SCE_IN_BATCH,
]
WITH_PLAIN_FORM += [MOCO, RESSL, SCE, MOCO_M, LORAC, JCL, NNCLR]
PLAIN = [
    Case(
        "plain",
        quantity.name,
        quantity,
        lambda shape, quantity=quantity: partial(quantity.reference, {}),
    )
    for quantity in WITH_PLAIN_FORM
]
PEERS = [
    peer("lightly", "NTXentLoss", SIMCLR, peers.lightly_ntxent),
    peer("lightly", "DCLLoss", DCL, peers.lightly_dcl),
    peer("lightly", "DCLWLoss", DCLW, peers.lightly_dclw),
    peer("lightly", "NTXentLoss, memory bank", MOCO, peers.lightly_memory_bank),
    peer(
        "pytorch-metric-learning",
        "NTXentLoss",
        SIMCLR,
        peers.metric_learning_ntxent,
        check_batches=(96,),
    ),
    peer(
        "LibAUC",
        "GCLoss_v1",
        SOGCLR,
        peers.libauc_sogclr,
        note="multiplied by t, views added: 2t = 0.2",
    ),
    peer(
        "LibAUC",
        "GCLoss_v1, iSogCLR",
        ISOGCLR,
        peers.libauc_isogclr,
        note="each row is multiplied by its own 2t",
    ),
    peer("open_clip", "ClipLoss", CLIP, peers.open_clip_clip),
    peer("open_clip", "SigLipLoss", SIGLIP, peers.open_clip_siglip),
    peer("torch", "linear_cross_entropy, two sets", CLIP, peers.torch_clip),
    peer(
        "torch",
        "linear_cross_entropy, one set",
        SIMCLR,
        peers.torch_simclr,
        note="no mask: rows are own negatives",
    ),
]
