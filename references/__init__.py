"""Every loss written plainly, with its whole similarity matrix and autograd: the references of
tests and benchmarks.

In float64 these are what `nearfar.losses` is compared with; in float32 they are the forms that
people write by hand, and the benchmarks time them. Symbols and defaults are those of the losses.
Embeddings are raw rows, a queue holds unit rows. What a loss keeps between calls is in `state`, a
dictionary that starts empty; `images` is the size of the training set, None where the batch holds
all of it.
"""

from references.features import (
    barlow_twins,
    lejepa,
    negative_cosine,
    sigreg,
    sinkhorn,
    swav,
    vicreg,
    wmse,
)
from references.keys import (
    ceil,
    info_nce,
    jcl,
    lorac,
    moco_v3,
    nnclr,
    ressl,
    sce,
    teacher_sce,
)
from references.pairs import (
    State,
    clip,
    dcl,
    isogclr,
    saclr,
    sigclr,
    siglip,
    simclr,
    sogclr,
    wcl,
)
from references.rows import unit

__all__ = [
    "State",
    "barlow_twins",
    "ceil",
    "clip",
    "dcl",
    "info_nce",
    "isogclr",
    "jcl",
    "lejepa",
    "lorac",
    "moco_v3",
    "negative_cosine",
    "nnclr",
    "ressl",
    "saclr",
    "sce",
    "sigclr",
    "siglip",
    "sigreg",
    "simclr",
    "sinkhorn",
    "sogclr",
    "swav",
    "teacher_sce",
    "unit",
    "vicreg",
    "wcl",
    "wmse",
]
