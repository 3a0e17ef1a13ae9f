"""Turns, shifts, zooms and shears."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def affine(
    images: Float[Tensor, "n channels side side"],
    motion: Float[Tensor, "n 6"],
    edge: Literal["border", "zeros"] = "border",
) -> Float[Tensor, "n channels side side"]:
    """Move each image about its centre, bilinearly.

    `motion` holds degrees (clockwise), shift to the right and down as shares of the side, zoom, and shear along x and y
    in degrees, with torchvision's meaning. `edge`: what comes in from outside, the repeated border or zeros.
    """
    angle, right, down, zoom, shear_x, shear_y = motion.double().unbind(1)
    angle, shear_x, shear_y = angle.deg2rad(), shear_x.deg2rad(), shear_y.deg2rad()
    turn = angle - shear_y
    a = turn.cos() / shear_y.cos()
    b = -a * shear_x.tan() - angle.sin()
    c = turn.sin() / shear_y.cos()
    d = -c * shear_x.tan() + angle.cos()
    # grid_sample asks where each target pixel comes from; the matrix (a b; c d) has determinant 1
    inverse = torch.stack([torch.stack([d, -b], 1), torch.stack([-c, a], 1)], 1) / zoom[:, None, None]
    shift = -inverse @ torch.stack([2 * right, 2 * down], 1)[:, :, None]
    theta = torch.cat([inverse, shift], 2).float().to(images.device)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode=edge, align_corners=False)
