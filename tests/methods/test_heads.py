"""Projectors and predictors of the papers, layer by layer."""

import pytest
import torch

from nearfar.methods import Head


def test_a_layer_has_a_bias_unless_a_normalisation_follows_or_it_is_the_last_and_told_so() -> None:
    for options, biases in [
        ({}, [False, True]),
        ({"hidden_norm": False}, [True, True]),
        ({"output_bias": False, "hidden_norm": False}, [True, False]),
        ({"output_norm": True}, [False, False]),
    ]:
        head = Head((32, 8), **options).build(16)
        assert [layer.bias is not None for layer in head if hasattr(layer, "in_features")] == biases
        assert head(torch.rand(4, 16)).shape == (4, 8)
    assert torch.equal(Head(()).build(16)(torch.ones(2, 16)), torch.ones(2, 16))


def test_simsiam_output_is_normalised_without_affine() -> None:
    head = Head((32, 8), output_norm=True, output_affine=False).build(16)
    assert head[1].affine and not head[4].affine
    out = head(torch.randn(64, 16))
    torch.testing.assert_close(out.mean(0), torch.zeros(8), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.var(0, unbiased=False), torch.ones(8), atol=1e-2, rtol=0)


def test_widths_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(16, 0\) must .* 0"):
        Head((16, 0)).build(8)
