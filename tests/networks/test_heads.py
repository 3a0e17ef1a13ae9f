"""Projectors and predictors of the papers, layer by layer."""

import pytest
import torch

from nearfar.networks import mlp


def test_a_layer_has_a_bias_unless_a_normalisation_follows_or_it_is_the_last_and_told_so() -> None:
    for options, biases in [
        ({}, [False, True]),
        ({"batch_norm": False}, [True, True]),
        ({"last_bias": False, "batch_norm": False}, [True, False]),
        ({"last_batch_norm": True}, [False, False]),
    ]:
        head = mlp(16, (32, 8), **options)
        assert [layer.bias is not None for layer in head if hasattr(layer, "in_features")] == biases
        assert head(torch.rand(4, 16)).shape == (4, 8)
    assert torch.equal(mlp(16, ())(torch.ones(2, 16)), torch.ones(2, 16))


def test_simsiam_output_is_normalised_without_affine() -> None:
    head = mlp(16, (32, 8), last_batch_norm=True, last_affine=False)
    assert head[1].affine and not head[4].affine
    out = head(torch.randn(64, 16))
    torch.testing.assert_close(out.mean(0), torch.zeros(8), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.var(0, unbiased=False), torch.ones(8), atol=1e-2, rtol=0)


def test_widths_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        mlp(8, (16, 0))
