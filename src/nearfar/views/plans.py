"""Named plans: the distributions that the views of an image come from, of papers and for kinds of
images (presets).

A plan's name is one distribution for both views ("strong"), one for each view joined by "+"
("strong+weak"), or the name of a list in `_LISTS` ("multi-crop"). Where a paper does not give the
crop's share of the area, it is 0.2 to 1, as in the released code of SCE. Blur follows the tables at
every size; its kernel is a tenth of the side: 3 pixels at 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nearfar.messages import did_you_mean
from nearfar.views.view import Range, View, ViewPlan


@dataclass(frozen=True)
class Preset:
    """The distributions for one kind of images; `when` says in one line when to take them.

    Each makes three plans: NAME for a method's strong views, NAME-weak for its weak ones, and
    NAME-small for its small crops, whose side is 3/7 of the others'. Quarter turns with a share of
    0.75 beside flips of 0.5 show an image in each of its eight orientations equally often.
    """

    when: str
    strong: View
    weak: View
    small: View


_PHOTOGRAPH = View(
    scale=(0.2, 1.0),
    flip=0.5,
    jitter=0.8,
    brightness=0.4,
    contrast=0.4,
    saturation=0.4,
    hue=0.1,
    grayscale=0.1,
)
# From above there is no up; the colour of a stain or a spectral band carries meaning, so it hardly
# changes.
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
    grayscale=0.2,
    blur=0.3,
    sigma=(0.1, 1.0),
)
# After MoCo-CXR (Sowrirajan et al. 2021): small turns and left-right flips; a crop must not lose
# what is to be found.
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
# Small grayscale images such as digits, where mirror images differ in meaning: strokes move, bend
# and change in weight.
_GRAYSCALE = View(
    scale=(0.55, 1.0),
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
# What is to be told apart has one scale, so all crops have it: a third of the area, and as much for
# each pixel of a small view. The weak view differs from the strong one in its colours alone.
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
# Channels that are not red, green and blue: light of all together, sharpness, noise and a missing
# one may vary, what they are to each other carries the meaning. Where up is, is not known.
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


def _preset(when: str, strong: View, small: Range, **weak: Any) -> Preset:
    """A preset by its strong views and the scale of its small ones; weak views are cropped and
    flipped alone.
    """
    still = replace(strong, affine=0.0, jitter=0.0, grayscale=0.0, drop=0.0, blur=0.0, noise=0.0)
    return Preset(when, strong, replace(still, **weak), replace(strong, scale=small))


PRESETS = {
    "photographs": _preset(
        "upright colour photographs of objects, animals, places and products",
        _PHOTOGRAPH,
        (0.1, 0.4),
    ),
    "microscope": _preset(
        "images from above, without an upright orientation, whose colours matter: "
        "microscopes, satellites, drones",
        _MICROSCOPE,
        (0.1, 0.3),
    ),
    "documents": _preset(
        "pages, forms, receipts and handwriting; never mirrored, crops keep most of the text",
        _DOCUMENT,
        (0.2, 0.5),
        scale=(0.7, 1.0),
    ),
    "scans": _preset(
        "X-rays, CT, MRI, ultrasound and other grayscale images of 64 pixels or more, all "
        "taken in a similar position",
        _SCAN,
        (0.15, 0.4),
    ),
    "textures": _preset(
        "surfaces, materials, fabrics and tissue: uniform images of one scale, without an "
        "upright orientation",
        _TEXTURE,
        (0.06, 0.06),
    ),
    "channels": _preset(
        "two channels or more than three, such as satellite bands and fluorescence markers "
        "(the default for these)",
        _CHANNELS,
        (0.06, 0.3),
    ),
    "grayscale": _preset(
        "grayscale images of up to 48 pixels, such as digits, letters and symbols, "
        "whose mirror image means something else",
        _GRAYSCALE,
        (0.3, 0.6),
        scale=(0.8, 1.0),
        ratio=(0.9, 1.1),
    ),
}

# Table 2 of SCE; weak and strong are ReSSL's, alpha and beta BYOL's.
_WEAK = View(scale=(0.2, 1.0), flip=0.5)
_COLOUR = replace(
    _WEAK, jitter=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, grayscale=0.2
)
_STRONG = replace(_COLOUR, blur=0.5)
_ALPHA = replace(_COLOUR, saturation=0.2, blur=1.0)
_BETA = replace(_COLOUR, saturation=0.2, blur=0.1, solarize=0.2)
_GAMMA = replace(_COLOUR, saturation=0.2, blur=0.5, solarize=0.2)
# MoCo v1: colour for every image, no blur. Source: its released script.
_MOCO_V1 = replace(_COLOUR, jitter=1.0, hue=0.4)
# SimCLR: full strength of colour and blur for photographs; half of it and no blur below 64 pixels
# (its CIFAR setting).
_SIMCLR = replace(_STRONG, scale=(0.08, 1.0), brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2)
_SIMCLR_SMALL = replace(_COLOUR, scale=(0.08, 1.0))
# SwAV, and LORAC after it: colour and blur of SimCLR, crops of two sizes.
_LARGE = replace(_SIMCLR, scale=(0.14, 1.0))
_SMALL = replace(_SIMCLR, scale=(0.05, 0.14))
# Images of a few pixels: a crop must leave something to see, and every pixel counts too much to
# blur it.
_TINY = replace(_COLOUR, scale=(0.4, 1.0), grayscale=0.1)
# Small crops of ReSSL (strong colour), and of SCE after it (gamma), by their side in sevenths of
# the large crops'.
_LOCAL = {6: (0.172, 0.86), 5: (0.143, 0.715), 4: (0.114, 0.571), 3: (0.086, 0.429)}

_ROLES = {"strong": "", "weak": "-weak", "small": "-small"}
_DISTRIBUTIONS = {
    "weak": _WEAK,
    "strong": _STRONG,
    "strong-alpha": _ALPHA,
    "strong-beta": _BETA,
    "strong-gamma": _GAMMA,
    "moco-v1": _MOCO_V1,
    "simclr": _SIMCLR,
    "simclr-cifar": _SIMCLR_SMALL,
    # SimSiam, appendix D: the views of MoCo v2 without blur.
    "simsiam-cifar": _COLOUR,
    # BYOL crops 0.08 to 1 of the area, as do Barlow Twins and VICReg after it.
    "byol-alpha": replace(_ALPHA, scale=(0.08, 1.0)),
    "byol-beta": replace(_BETA, scale=(0.08, 1.0)),
    # SACLR, appendix A.2, after SimSiam on CIFAR.
    "saclr-cifar": replace(_COLOUR, grayscale=0.1),
    # SigCLR follows BYOL and CorInfoMax (its references 16 and 30), whose CIFAR code crops 0.08 to
    # 1 of the area.
    "sigclr-alpha": replace(_ALPHA, scale=(0.08, 1.0)),
    "sigclr-beta": replace(_BETA, scale=(0.08, 1.0)),
    # solo-learn's released configurations for CIFAR.
    "solo-alpha": replace(_COLOUR, saturation=0.2, scale=(0.08, 1.0)),
    "solo-beta": replace(_COLOUR, saturation=0.2, scale=(0.08, 1.0), solarize=0.2),
    "solo-weak": replace(_WEAK, scale=(0.08, 1.0)),
    "solo-moco": replace(_SIMCLR_SMALL, blur=0.5),
    "solo-ressl": replace(_SIMCLR_SMALL, saturation=0.2, blur=0.5),
    "solo-vicreg": replace(_COLOUR, saturation=0.2, solarize=0.1),
    "solo-swav": _SIMCLR,
    # LeJEPA's released settings.
    "lejepa": replace(_GAMMA, scale=(0.3, 1.0)),
    "local-lejepa": replace(_GAMMA, scale=(0.05, 0.3)),
    "large": _LARGE,
    "small": _SMALL,
    **{f"local-{sevenths}": replace(_GAMMA, scale=scale) for sevenths, scale in _LOCAL.items()},
    **{
        f"local-strong-{sevenths}": replace(_STRONG, scale=scale)
        for sevenths, scale in _LOCAL.items()
    },
    "tiny": _TINY,
    "tiny-weak": replace(_WEAK, scale=(0.6, 1.0)),
    **{
        f"{name}{role}": getattr(preset, kind)
        for name, preset in PRESETS.items()
        for kind, role in _ROLES.items()
    },
}

_SHARES = {
    "small": 3 / 7,
    "local-lejepa": 7 / 16,
    **{
        f"{kind}-{sevenths}": sevenths / 7
        for sevenths in _LOCAL
        for kind in ("local", "local-strong")
    },
    **{f"{name}-small": 3 / 7 for name in PRESETS},
}
"""Side of a view as a share of the image's side: 96 pixels of 224 are 3/7. At least 8 pixels, or
the image's side.
"""

_LISTS = {
    "asymmetric": ("strong-alpha", "strong-beta"),
    "sigclr-cifar": ("sigclr-alpha", "sigclr-beta"),
    "multi-crop": ("large",) * 2 + ("small",) * 6,
    "lorac": ("large",) * 3 + ("small",) * 5,
    "sce-multi-crop": ("strong-alpha", "strong-beta", "local-6", "local-5", "local-4", "local-3"),
}


def plan_names() -> list[str]:
    """Return the names of plans: lists of views first, then the distributions, which "+" joins to
    further plans.
    """
    return [*_LISTS, *_DISTRIBUTIONS]


def plan(name: str, image_size: int, channels: int) -> ViewPlan:
    """Return the plan of that name for square images of `image_size` pixels with `channels`
    channels.

    Sizes are resolved to pixels, and saturation, hue and grayscale are zero unless there are three
    channels. Raises ValueError for an unknown name, with the nearest one.

    >>> plan("strong+weak", image_size=96, channels=3).name
    'strong+weak'
    """
    return compose(names_in(name), image_size, channels, name)


def names_in(name: str) -> tuple[str, ...]:
    """Return the distributions' names in the name of a plan, one for each view."""
    return tuple(name.split("+")) if "+" in name else _LISTS.get(name, (name, name))


def compose(
    names: Sequence[str], image_size: int, channels: int, name: str | None = None
) -> ViewPlan:
    """Return a plan with one view for each distribution's name, in order; else as `plan`.

    >>> len(compose(["strong", "weak"], image_size=96, channels=3).views)
    2
    """
    if image_size < 1 or channels < 1:
        raise ValueError(
            f"views need at least 1 pixel and 1 channel, got size {image_size} and "
            f"{channels} channels"
        )
    views = tuple(_view(part, image_size, channels) for part in names)
    return ViewPlan("+".join(names) if name is None else name, views)


def fit_views(
    names: Sequence[str], image_size: int, channels: int, preset: str | None = None
) -> tuple[str, ...]:
    """Return the distributions to use in place of a method's views for images of that size, one for
    each view.

    Those of a preset, if one is named: strong, weak and small views keep their part. Else, from 64
    pixels on, they are the method's own. Below, there is no blur and there are no tiny crops; small
    grayscale images, such as digits, are not mirrored and move a little instead. Of other channels
    than grayscale and colour, those of the preset "channels". Raises ValueError for an unknown
    name.

    >>> fit_views(["simclr", "simclr"], image_size=32, channels=3)
    ('saclr-cifar', 'saclr-cifar')
    """
    for name in names:
        _check_plan(name)
    if preset is None and channels not in (1, 3):
        preset = "channels"
    if preset is not None:
        strong, weak, small = preset, f"{preset}-weak", f"{preset}-small"
    elif channels == 1 and image_size <= 48:
        strong, weak, small = "grayscale", "grayscale-weak", "grayscale"
    elif image_size <= 24:
        strong, weak, small = "tiny", "tiny-weak", "tiny"
    elif image_size < 64:
        strong, weak, small = "saclr-cifar", "weak", "local-4"
    else:
        return tuple(names)
    fitted = {"weak": weak, "small": small, "local": small}
    return tuple(fitted.get(name.split("-")[0], strong) for name in names)


def _check_plan(name: str) -> None:
    """Raise ValueError for a name that no plan has."""
    if name not in _DISTRIBUTIONS:
        near = did_you_mean(name, plan_names(), cutoff=0)
        raise ValueError(
            f"there is no view plan {name!r}: {near} There are {', '.join(plan_names())}"
        )


def _view(name: str, image_size: int, channels: int) -> View:
    _check_plan(name)
    view = _SIMCLR_SMALL if name == "simclr" and image_size < 64 else _DISTRIBUTIONS[name]
    size = max(round(_SHARES.get(name, 1.0) * image_size), min(8, image_size))
    view = replace(view, size=size)
    return view if channels == 3 else replace(view, saturation=0.0, hue=0.0, grayscale=0.0)
