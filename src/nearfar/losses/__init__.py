"""Contrastive losses as nn.Modules, usable alone: `from nearfar.losses import SimCLR; SimCLR()(z1, z2)`."""

from nearfar.losses.barlow_twins import BarlowTwins
from nearfar.losses.cosine import NegativeCosine
from nearfar.losses.jcl import JCL
from nearfar.losses.lorac import LORAC
from nearfar.losses.moco import MoCo, MoCoV3
from nearfar.losses.nnclr import NNCLR
from nearfar.losses.relational import SCE, ReSSL
from nearfar.losses.swav import SwAV
from nearfar.losses.vicreg import VICReg
from nearfar.losses.wmse import WMSE

__all__ = [
    "JCL",
    "LORAC",
    "NNCLR",
    "SCE",
    "WMSE",
    "BarlowTwins",
    "MoCo",
    "MoCoV3",
    "NegativeCosine",
    "ReSSL",
    "SwAV",
    "VICReg",
]
