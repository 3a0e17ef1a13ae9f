"""Colours of classes: far apart from each other, and visible on a light and on a dark ground."""

from __future__ import annotations

# Chosen by farthest-point search in OKLab within a band of lightness and chroma; the first ones are farthest apart.
PALETTE = (
    *("#3b83d6", "#ecaf07", "#9d3629", "#147c11", "#fd6fa2", "#15c8ce", "#873cb2", "#d9464c", "#f47205", "#967216"),
    *("#cfb0c0", "#6bcb51", "#bd6be0", "#1355c2", "#3e656a", "#7da3ff", "#a3a16b", "#916989", "#54a105", "#439183"),
)
GREY = "#8a8f98"


def class_colours(classes: int) -> list[str]:
    """Return one hex colour for each class; they repeat after 20 classes."""
    return [PALETTE[i % len(PALETTE)] for i in range(classes)]
