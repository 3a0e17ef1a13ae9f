"""Contrastive losses as nn.Modules, usable alone: `from nearfar.losses import SimCLR; SimCLR()(z1,
z2)`.

All losses have in common:
- They take raw embeddings [batch, dim] and normalise them where the formula has unit rows. A queue
  [keys, dim] holds unit rows; the loss reads it and never pushes to it. Views get gradients; keys
  and the queue get none.
- They return a scalar in float32 (float64 if an input is), under autocast too, and support one
  backward pass. Their running averages and learned numbers stay in float32 in a model that becomes
  half, as by `model.bfloat16()`.
- They raise ValueError for a number out of its range, unequal shapes, an empty queue, and a batch
  of one where the negatives or statistics come from the batch.
- SimCLR, DCL, SogCLR, SigCLR and SACLR with all negatives take `group_size=G`: the negatives of a
  row are then the other images of its own group of G consecutive ones, and pairs of different
  groups are not computed. G must divide the batch, and the rows of each process.
- Those with a softmax over negatives take `learn_temperature=True`: the parameter `log_scale` =
  log(1 / t) starts at the temperature given and is held between 0.01 and 100 (SogCLR: from 1/60),
  as CLIP's; `monitored` holds t. Targets of ReSSL, SCE and TeacherSCE keep their fixed
  temperature; the factor 2 t of MoCo v3 is part of what is differentiated.

In a loop of one's own on several processes, with torch's DistributedDataParallel, every loss takes
`gather=True`:
- Every process calls the loss at each step, on its own rows, as many as it has. The value, the
  gradient and the state (averages per image, SwAV's queue) are those of one process on the joined
  batch, rows in rank order, on every rank. What is quadratic in the batch is shared between the
  processes; what is sampled, rank 0 samples for all.
- The gradient of a rank's own rows is W times that of the joined batch (W processes), so that the
  mean that DistributedDataParallel takes over the ranks is the joined batch's gradient. Divide by W
  where gradients are summed.
- The gradient of the loss's own parameters (temperatures, SigCLR's bias, SwAV's prototypes) is
  complete on each rank. So it does not matter whether DistributedDataParallel, which takes the mean
  of equal numbers, wraps the loss or not.
- A queue of keys is the user's: push `gather_rows(keys)`, the keys of all processes, on every rank.
With `gather=False`, the default, each process sees its own rows only; a loss with averages per
image must then stand outside DistributedDataParallel, which copies the buffers of rank 0 to all
others. With one process nothing changes.
"""

from nearfar.losses.lorac import LORAC
from nearfar.losses.moco import JCL, NNCLR, MoCo, MoCoV3
from nearfar.losses.non_contrastive import (
    WMSE,
    BarlowTwins,
    LeJEPA,
    NegativeCosine,
    SIGReg,
    SwAV,
    VICReg,
)
from nearfar.losses.relational import SCE, ReSSL, TeacherSCE
from nearfar.losses.saclr import SACLR
from nearfar.losses.sigclr import SigCLR
from nearfar.losses.simclr import DCL, SimCLR
from nearfar.losses.sogclr import ISogCLR, SogCLR
from nearfar.losses.wcl import WCL
from nearfar.pairs import gather_rows

__all__ = [
    "DCL",
    "JCL",
    "LORAC",
    "NNCLR",
    "SACLR",
    "SCE",
    "WCL",
    "WMSE",
    "BarlowTwins",
    "ISogCLR",
    "LeJEPA",
    "MoCo",
    "MoCoV3",
    "NegativeCosine",
    "ReSSL",
    "SIGReg",
    "SigCLR",
    "SimCLR",
    "SogCLR",
    "SwAV",
    "TeacherSCE",
    "VICReg",
    "gather_rows",
]
