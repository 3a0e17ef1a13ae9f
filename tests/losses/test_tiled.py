"""The size of a tile changes no value and no gradient, in any loss, however few rows it has."""

import pytest
import torch

from nearfar import losses as L
from nearfar import testing
from nearfar.pairs import attention, blocks

BATCH, DIM = 13, 6
TWO, KEYS = ["view", "view"], ["view", "key"]
LOSSES = {
    "SimCLR": (L.SimCLR, TWO),
    "DCLW": (lambda: L.DCL(weighted=True), TWO),
    "SACLR": (lambda: L.SACLR(40, negatives="all"), TWO),
    "SigCLR": (L.SigCLR, TWO),
    "SogCLR": (lambda: L.SogCLR(40), [*TWO, "index"]),
    "iSogCLR": (lambda: L.ISogCLR(40), [*TWO, "index"]),
    "MoCo": (L.MoCo, [*KEYS, "queue"]),
    "MoCo v3": (L.MoCoV3, KEYS),
    "SCE": (L.SCE, KEYS),
    "teacher": (L.TeacherSCE, [*TWO, "key"]),
    "teacher's relations": (lambda: L.TeacherSCE(lam=0.0), [*TWO, "key"]),
    "LORAC": (L.LORAC, ["views", "key", "queue"]),
    "JCL": (L.JCL, ["view", "keys", "queue"]),
    "NNCLR": (L.NNCLR, ["key", "view", "queue"]),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("rows", "pairs"), [(1, 1), (3, 40), (4, 17), (5, 200)])
def test_small_tiles_give_what_one_tile_gives(name, rows, pairs, monkeypatch):
    make, kinds = LOSSES[name]
    given = testing.make_inputs(kinds, BATCH, DIM, 40, 29, dtype=torch.float64)
    torch.manual_seed(0)
    value, gradients = testing.step_of(make().double(), given)
    monkeypatch.setitem(blocks.TILE_ROWS, "cpu", rows)
    monkeypatch.setitem(attention.TILE, "cpu", pairs)
    monkeypatch.setitem(attention.ROWS, "cpu", rows)
    torch.manual_seed(0)
    small, others = testing.step_of(make().double(), given)
    torch.testing.assert_close([small, *others], [value, *gradients], rtol=1e-9, atol=1e-11)
