"""Methods of pretraining: `SimCLR(temperature=0.1)` declares one, `Model` builds its networks
around a backbone.

One file for each family. A method of one's own is a frozen dataclass on `Method` that declares its
views and a `Setup`; `register_method` lists it by name beside these. The named pairings are in
`nearfar.methods.pairing`, the schedules in `nearfar.methods.method`.
"""

from nearfar.methods.lorac import LORAC, LORACbs, MoCoM
from nearfar.methods.method import Head, Method, Setup, Teacher
from nearfar.methods.moco import JCL, NNCLR, MoCoV1, MoCoV2, MoCoV3
from nearfar.methods.model import Model
from nearfar.methods.non_contrastive import (
    BYOL,
    WMSE,
    BarlowTwins,
    LeJEPA,
    SimSiam,
    SwAV,
    VICReg,
)
from nearfar.methods.pairing import Embeddings, Pairing
from nearfar.methods.recipe import Recipe
from nearfar.methods.registry import (
    computation_of,
    describe,
    method_class,
    method_name,
    method_names,
    register_method,
)
from nearfar.methods.relational import SCE, ReSSL
from nearfar.methods.saclr import SACLR
from nearfar.methods.sigclr import SigCLR
from nearfar.methods.simclr import DCL, DCLW, SimCLR
from nearfar.methods.sogclr import ISogCLR, SogCLR
from nearfar.methods.wcl import WCL

__all__ = [
    "BYOL",
    "DCL",
    "DCLW",
    "JCL",
    "LORAC",
    "NNCLR",
    "SACLR",
    "SCE",
    "WCL",
    "WMSE",
    "BarlowTwins",
    "Embeddings",
    "Head",
    "ISogCLR",
    "LORACbs",
    "LeJEPA",
    "Method",
    "MoCoM",
    "MoCoV1",
    "MoCoV2",
    "MoCoV3",
    "Model",
    "Pairing",
    "ReSSL",
    "Recipe",
    "Setup",
    "SigCLR",
    "SimCLR",
    "SimSiam",
    "SogCLR",
    "SwAV",
    "Teacher",
    "VICReg",
    "computation_of",
    "register_method",
]
