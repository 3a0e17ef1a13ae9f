"""Contrastive losses as nn.Modules, usable alone: `from nearfar.losses import SimCLR; SimCLR()(z1, z2)`."""

from nearfar.losses.barlow_twins import BarlowTwins
from nearfar.losses.cosine import NegativeCosine
from nearfar.losses.dcl import DCL
from nearfar.losses.isogclr import ISogCLR
from nearfar.losses.jcl import JCL
from nearfar.losses.lorac import LORAC
from nearfar.losses.moco import MoCo, MoCoV3
from nearfar.losses.nnclr import NNCLR
from nearfar.losses.relational import SCE, ReSSL
from nearfar.losses.saclr import SACLR
from nearfar.losses.sigclr import SigCLR
from nearfar.losses.simclr import SimCLR
from nearfar.losses.sogclr import SogCLR
from nearfar.losses.swav import SwAV
from nearfar.losses.vicreg import VICReg
from nearfar.losses.wmse import WMSE

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
]
