"""Projectors and predictors of the papers, layer by layer."""

import pytest
import torch

from nearfar.networks import mlp

LINEAR, NORM, RELU = "Linear", "BatchNorm1d", "ReLU"


@pytest.mark.parametrize(
    ("widths", "options", "layers", "biases"),
    [
        ((512, 256), {}, [LINEAR, NORM, RELU, LINEAR], [False, True]),  # SCE
        ((128, 128, 128), {}, [LINEAR, NORM, RELU] * 2 + [LINEAR], [False, False, True]),  # VICReg
        ((512, 128), {"batch_norm": False}, [LINEAR, RELU, LINEAR], [True, True]),  # MoCo v2
        ((32, 8), {"last_bias": False}, [LINEAR, NORM, RELU, LINEAR], [False, False]),  # MoCo v3's predictor
        ((32, 8), {"last_bias": False, "batch_norm": False}, [LINEAR, RELU, LINEAR], [True, False]),
        ((32, 8), {"last_batch_norm": True}, [LINEAR, NORM, RELU, LINEAR, NORM], [False, False]),  # SimCLR
        ((), {}, [], []),
    ],
)
def test_layers_of_the_papers_heads(widths, options, layers, biases):
    head = mlp(16, widths, **options)
    assert [type(module).__name__ for module in head] == layers
    linear = [module for module in head if hasattr(module, "in_features")]
    assert [module.out_features for module in linear] == list(widths)
    assert [module.bias is not None for module in linear] == biases
    assert head(torch.rand(4, 16)).shape == (4, widths[-1] if widths else 16)


def test_simsiam_output_is_normalised_without_affine() -> None:
    head = mlp(16, (32, 8), last_batch_norm=True, last_affine=False)
    assert head[1].affine and not head[4].affine
    out = head(torch.randn(64, 16))
    torch.testing.assert_close(out.mean(0), torch.zeros(8), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.var(0, unbiased=False), torch.ones(8), atol=1e-2, rtol=0)


def test_widths_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        mlp(8, (16, 0))
