"""Projectors and predictors."""

import pytest
import torch
from torch import nn

from nearfar.networks import mlp


def kinds(head: nn.Module) -> list[str]:
    return [type(module).__name__ for module in head]


def test_sce_head_normalises_the_hidden_layer_only() -> None:
    head = mlp(256, (512, 256))
    assert kinds(head) == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert head[0].bias is None and head[3].bias is not None
    assert head(torch.rand(4, 256)).shape == (4, 256)


def test_vicreg_head_has_three_layers_of_one_width() -> None:
    head = mlp(64, (128, 128, 128))
    assert kinds(head) == ["Linear", "BatchNorm1d", "ReLU"] * 2 + ["Linear"]


def test_moco_v2_head_has_no_normalisation() -> None:
    head = mlp(512, (512, 128), batch_norm=False)
    assert kinds(head) == ["Linear", "ReLU", "Linear"]
    assert head[0].bias is not None


def test_simsiam_output_is_normalised_without_affine() -> None:
    head = mlp(16, (32, 8), last_batch_norm=True, last_affine=False)
    assert kinds(head) == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d"]
    assert head[1].affine and not head[4].affine
    out = head(torch.randn(64, 16))
    torch.testing.assert_close(out.mean(0), torch.zeros(8), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.var(0, unbiased=False), torch.ones(8), atol=1e-2, rtol=0)


def test_moco_v3_predictor_ends_without_normalisation_and_bias() -> None:
    head = mlp(16, (32, 8), last_bias=False)
    assert kinds(head) == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert head[3].bias is None and mlp(16, (32, 8), batch_norm=False, last_bias=False)[0].bias is not None


def test_no_widths_is_the_identity() -> None:
    rows = torch.rand(3, 5)
    assert mlp(5, ())(rows) is rows
    assert not list(mlp(5, ()).parameters())


def test_widths_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        mlp(8, (16, 0))
