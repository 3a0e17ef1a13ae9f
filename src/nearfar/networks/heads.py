"""Projectors and predictors from a list of widths."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def mlp(
    in_features: int,
    widths: Sequence[int],
    *,
    batch_norm: bool = True,
    last_batch_norm: bool = False,
    last_affine: bool = True,
    last_bias: bool = True,
) -> nn.Sequential:
    """Stack linear layers, with normalisation and ReLU between them: [batch, in_features] -> [batch, widths[-1]].

    widths: features after each linear layer; an empty list gives the identity. batch_norm: normalise hidden layers.
    last_batch_norm: normalise the output as well (no ReLU after it); last_affine: with learnable scale and shift.
    A linear layer has a bias unless a normalisation follows, which would subtract it again, or it is the last one and
    `last_bias` is False.
    Raises ValueError for a width below 1.

    The heads of the papers: with the defaults SCE (512, 256), VICReg and SACLR (8192, 8192, 8192), BYOL's projector and
    predictor (4096, 256); MoCo v2 (2048, 128) with batch_norm=False; SimCLR with last_batch_norm=True; SimSiam's
    projector (2048, 2048, 2048) with last_batch_norm=True, last_affine=False; MoCo v3's predictor (4096, 256) with
    last_bias=False.
    """
    if any(width < 1 for width in (in_features, *widths)):
        raise ValueError(f"widths of a head must be 1 or more, got {in_features} -> {list(widths)}")
    layers: list[nn.Module] = []
    for number, width in enumerate(widths, start=1):
        last = number == len(widths)
        normalised = last_batch_norm if last else batch_norm
        layers.append(nn.Linear(in_features, width, bias=not normalised and (last_bias or not last)))
        if normalised:
            layers.append(nn.BatchNorm1d(width, affine=last_affine or not last))
        if not last:
            layers.append(nn.ReLU(inplace=True))
        in_features = width
    return nn.Sequential(*layers)
