"""Contrastive losses as nn.Modules, usable alone: `from nearfar.losses import SimCLR; SimCLR()(z1, z2)`.

In a loop of one's own on several processes, with torch's DistributedDataParallel, every loss takes `gather=True`:
- Every process calls the loss at each step, on its own rows, as many as it has. The value, the gradient and the state
  (averages per image, SwAV's queue) are those of one process on the joined batch, rows in rank order, on every rank.
  What is quadratic in the batch is shared between the processes; what is sampled, rank 0 samples for all.
- The gradient of a rank's own rows is W times that of the joined batch (W processes), so that the mean that
  DistributedDataParallel takes over the ranks is the joined batch's gradient. Divide by W where gradients are summed.
- The gradient of the loss's own parameters (SigCLR's bias and scale, SwAV's prototypes) is complete on each rank. So it
  does not matter whether DistributedDataParallel, which takes the mean of equal numbers, wraps the loss or not.
- A queue of keys is the user's: push `gather_rows(keys)`, the keys of all processes, on every rank.
With `gather=False`, the default, each process sees its own rows only. With one process nothing changes.
"""

from nearfar.losses.cosine import NegativeCosine
from nearfar.losses.decorrelation import WMSE, BarlowTwins, VICReg
from nearfar.losses.lorac import LORAC
from nearfar.losses.moco import JCL, MoCo, MoCoV3
from nearfar.losses.nnclr import NNCLR
from nearfar.losses.relational import SCE, ReSSL
from nearfar.losses.saclr import SACLR
from nearfar.losses.sigclr import SigCLR
from nearfar.losses.simclr import DCL, SimCLR
from nearfar.losses.sogclr import ISogCLR, SogCLR
from nearfar.losses.swav import SwAV
from nearfar.pairs import gather_rows

__all__ = [
    "DCL",
    "JCL",
    "LORAC",
    "NNCLR",
    "SACLR",
    "SCE",
    "WMSE",
    "BarlowTwins",
    "ISogCLR",
    "MoCo",
    "MoCoV3",
    "NegativeCosine",
    "ReSSL",
    "SigCLR",
    "SimCLR",
    "SogCLR",
    "SwAV",
    "VICReg",
    "gather_rows",
]
