"""Tile products against float64, by oneDNN and by torch's own."""

import pytest
import torch

from nearfar.pairs import products


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 5), (64, 33, 128)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products(monkeypatch, shape, dtype, onednn):
    if not onednn:
        monkeypatch.setattr(products, "_onednn_works", lambda: False)
    rows, columns, dim = shape
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, dim, generator=generator, dtype=torch.float64) for n in (rows, columns))
    tile = products.dot_products(x.to(dtype), y.to(dtype))
    torch.testing.assert_close(tile.double(), x @ y.T, rtol=1e-5, atol=1e-5)
    total = torch.ones(columns, dim, dtype=dtype)
    products.add_product_(total, tile.T, x.to(dtype))
    torch.testing.assert_close(total.double(), 1 + (x @ y.T).T @ x, rtol=1e-5, atol=1e-4)
