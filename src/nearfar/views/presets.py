"""Presets: the distributions of views for a kind of images, and when to take which.

Each kind has three: NAME for the strong views of a method, NAME-weak for its weak ones, and NAME-small for its small
crops, whose side is 3/7 of the others'. Quarter turns with a share of 0.75 beside flips of 0.5 show an image in each of
its eight orientations equally often.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from nearfar.views.view import View


@dataclass(frozen=True)
class Preset:
    """The distributions for one kind of images; `when` says in one line when to take them."""

    when: str
    strong: View
    weak: View
    small: View


_PHOTOGRAPH = View(
    scale=(0.2, 1.0), flip=0.5, jitter=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, grey=0.1
)
# From above there is no up; the colour of a stain or a spectral band carries meaning, so it hardly changes.
_MICROSCOPE = View(
    scale=(0.25, 1.0),
    flip=0.5,
    rot90=0.75,
    jitter=0.8,
    brightness=0.2,
    contrast=0.2,
    saturation=0.1,
    hue=0.02,
    blur=0.2,
    sigma=(0.1, 1.0),
)
# Text is read one way round only, and a small crop of a page is any page.
_DOCUMENT = View(
    scale=(0.5, 1.0),
    ratio=(0.85, 1.18),
    flip=0.0,
    affine=0.5,
    degrees=3.0,
    translate=0.03,
    zoom=(0.95, 1.05),
    shear=3.0,
    jitter=0.8,
    brightness=0.4,
    contrast=0.4,
    saturation=0.1,
    grey=0.2,
    blur=0.3,
    sigma=(0.1, 1.0),
)
# After MoCo-CXR (Sowrirajan et al. 2021): small turns and left-right flips; a crop must not lose what is to be found.
_SCAN = View(
    scale=(0.4, 1.0),
    flip=0.5,
    affine=0.8,
    degrees=10.0,
    translate=0.05,
    zoom=(0.9, 1.1),
    jitter=0.8,
    brightness=0.3,
    contrast=0.4,
    blur=0.2,
    sigma=(0.1, 1.0),
    noise=0.3,
    noise_std=(0.0, 0.05),
)
# Small grey images such as digits, where mirror images differ in meaning: strokes move, bend and change in weight.
_GREY = View(
    scale=(0.7, 1.0),
    flip=0.0,
    affine=0.8,
    degrees=10.0,
    translate=0.08,
    zoom=(0.85, 1.15),
    shear=15.0,
    jitter=0.8,
    brightness=0.3,
    contrast=0.4,
    noise=0.3,
    noise_std=(0.0, 0.08),
)
# What is to be told apart has one scale, so all crops have it: a third of the area, and as much for each pixel of a
# small view. The weak view differs from the strong one in its colours alone.
_TEXTURE = View(
    scale=(0.33, 0.33),
    ratio=(1.0, 1.0),
    flip=0.5,
    rot90=0.75,
    jitter=0.8,
    brightness=0.3,
    contrast=0.3,
    saturation=0.2,
    hue=0.05,
)
# Channels that are not red, green and blue: light of all together, sharpness, noise and a missing one may vary, what
# they are to each other carries the meaning. Where up is, is not known.
_CHANNELS = View(
    scale=(0.2, 1.0),
    flip=0.5,
    jitter=0.8,
    brightness=0.3,
    contrast=0.3,
    drop=0.2,
    blur=0.2,
    sigma=(0.1, 1.0),
    noise=0.3,
    noise_std=(0.0, 0.03),
)
_STILL: dict[str, Any] = dict(affine=0.0, jitter=0.0, grey=0.0, drop=0.0, blur=0.0, noise=0.0)

PRESETS = {
    "photographs": Preset(
        "things, animals, places and products, upright, in colour",
        _PHOTOGRAPH,
        replace(_PHOTOGRAPH, **_STILL),
        replace(_PHOTOGRAPH, scale=(0.1, 0.4)),
    ),
    "microscope": Preset(
        "taken from above, so that no side is up, and colour has a meaning: microscopes, satellites, drones",
        _MICROSCOPE,
        replace(_MICROSCOPE, **_STILL),
        replace(_MICROSCOPE, scale=(0.1, 0.3)),
    ),
    "documents": Preset(
        "pages, forms, receipts and handwriting: never mirrored, crops keep most of the text",
        _DOCUMENT,
        replace(_DOCUMENT, scale=(0.7, 1.0), **_STILL),
        replace(_DOCUMENT, scale=(0.2, 0.5)),
    ),
    "scans": Preset(
        "X-rays, CT, MRI, ultrasound and other grey images of 64 pixels or more, each taken in much the same position",
        _SCAN,
        replace(_SCAN, **_STILL),
        replace(_SCAN, scale=(0.15, 0.4)),
    ),
    "textures": Preset(
        "surfaces, materials, fabrics and tissue: all of one scale, the same all over, and no side is up",
        _TEXTURE,
        replace(_TEXTURE, **_STILL),
        replace(_TEXTURE, scale=(0.06, 0.06)),
    ),
    "channels": Preset(
        "two channels or more than three, such as satellite bands and fluorescence markers; the default for these",
        _CHANNELS,
        replace(_CHANNELS, **_STILL),
        replace(_CHANNELS, scale=(0.06, 0.3)),
    ),
    "grey": Preset(
        "grey images of up to 48 pixels, such as digits, letters and symbols, whose mirror image is something else",
        _GREY,
        View(scale=(0.8, 1.0), ratio=(0.9, 1.1), flip=0.0),
        replace(_GREY, scale=(0.3, 0.6)),
    ),
}


def preset_distributions() -> dict[str, View]:
    """Return the distributions of all presets by name: NAME, NAME-weak and NAME-small for each."""
    return {
        f"{name}{role}": view
        for name, preset in PRESETS.items()
        for role, view in (("", preset.strong), ("-weak", preset.weak), ("-small", preset.small))
    }
