"""A view as data: the distribution that one crop of an image is sampled from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from nearfar.messages import raise_as_value_error

Range = tuple[float, float]
_PROBABILITIES = (
    "flip",
    "flip_vertical",
    "rot90",
    "affine",
    "jitter",
    "grayscale",
    "drop",
    "blur",
    "solarize",
    "noise",
)


@dataclass(frozen=True, kw_only=True)
class View:
    """One view's distribution; every number below is sampled anew for every image.

    Operations run in the order of the fields. Intensities are those of torchvision's transforms of
    the same name.

    size: side of the view in pixels, None for the side of the images. scale: range of the crop's
    share of the image's area; ratio: range of its width to height. flip, flip_vertical:
    probabilities of a left-right and of an upside-down flip. rot90: probability of a turn by 90,
    180 or 270 degrees, each equally likely. affine: probability of a turn of up to `degrees` either
    way, a shift of up to `translate` of the side, a zoom from the range `zoom` and a shear of up to
    `shear` degrees along both axes; the border is repeated outwards. jitter: probability of
    changing brightness, contrast, saturation and hue, in an order sampled for each image (factors
    from 1 - x to 1 + x, hue by up to `hue` turns). grayscale: probability of losing all colour.
    drop: probability of losing one channel, any of them, which becomes its mean. blur: probability
    of a gaussian blur, its deviation in pixels from `sigma`, its kernel a tenth of the side.
    solarize: probability of inverting every value at or above 0.5. noise: probability of gaussian
    noise, its deviation, in units of the full range of values, from `noise_std`. Saturation, hue
    and grayscale need three channels and are left out for any other number; drop needs two. Raises
    ValueError for a number out of range.

    >>> View(flip=0.5, jitter=0.8, brightness=0.4).scale
    (0.2, 1.0)
    """

    size: int | None = None
    scale: Range = (0.2, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    flip: float = 0.5
    flip_vertical: float = 0.0
    rot90: float = 0.0
    affine: float = 0.0
    degrees: float = 0.0
    translate: float = 0.0
    zoom: Range = (1.0, 1.0)
    shear: float = 0.0
    jitter: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    grayscale: float = 0.0
    drop: float = 0.0
    blur: float = 0.0
    sigma: Range = (0.1, 2.0)
    solarize: float = 0.0
    noise: float = 0.0
    noise_std: Range = (0.0, 0.1)

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise ValueError(f"a view's size must be at least 1 pixel, got {self.size}")
        for name in _PROBABILITIES:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(
                    f"a view's {name} is a probability from 0 to 1, got {getattr(self, name)}"
                )
        for name in ("degrees", "translate", "shear", "brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"a view's {name} must not be negative, got {getattr(self, name)}")
        if not 0 <= self.hue <= 0.5:
            raise ValueError(f"a view's hue is a share of a turn from 0 to 0.5, got {self.hue}")
        if self.shear >= 45:
            raise ValueError(f"a view's shear must stay below 45 degrees, got {self.shear}")
        for name in ("scale", "ratio", "zoom", "sigma"):
            low, high = getattr(self, name)
            if not 0 < low <= high < math.inf:
                raise ValueError(
                    f"a view's {name} is a range of positive numbers (low, high), got {(low, high)}"
                )
        if self.scale[1] > 1:
            raise ValueError(f"a view's scale is a share of the area, at most 1, got {self.scale}")
        if not 0 <= self.noise_std[0] <= self.noise_std[1] < math.inf:
            raise ValueError(
                f"a view's noise_std is a range of numbers from 0 (low, high), got {self.noise_std}"
            )


@dataclass(frozen=True)
class ViewPlan:
    """The views of every image of a batch, in order, under a name.

    keep_colour: probability that no view of an image changes its colours (jitter, grayscale,
    dropped channel). Such images teach the encoder colours, the others what stays the same in spite
    of them (docs/views.md). Raises ValueError without a view, and for a probability out of range.

    >>> ViewPlan("mine", views=(View(flip=0.5), View(size=16))).name
    'mine'
    """

    name: str
    views: tuple[View, ...]
    keep_colour: float = 0.0

    def __post_init__(self) -> None:
        if not self.views:
            raise ValueError("a view plan needs at least one view")
        if not 0 <= self.keep_colour <= 1:
            raise ValueError(
                f"a plan's keep_colour is a probability from 0 to 1, got {self.keep_colour}"
            )

    def __len__(self) -> int:
        return len(self.views)

    def pick(self, positions: Sequence[int]) -> ViewPlan:
        """The plan of the views at these positions, in that order."""
        return replace(self, views=tuple(self.views[position] for position in positions))

    def crops(self, image_size: int) -> list[tuple[int, Range, Range]]:
        """Side in pixels, scale and ratio of each view's crop, as `Batches` takes them."""
        return [(view.size or image_size, view.scale, view.ratio) for view in self.views]

    def to_dict(self) -> dict[str, Any]:
        """The plan in plain values, with every number of every view, for YAML or JSON; `from_dict`
        reads it back.
        """
        views = [
            {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in asdict(view).items()
            }
            for view in self.views
        ]
        return {"name": self.name, "keep_colour": self.keep_colour, "views": views}

    @classmethod
    def from_dict(cls, values: Any) -> ViewPlan:
        """A plan from plain values: {"views": [{"scale": [0.2, 1.0], ...}, ...]}, and a "name" if
        there is one.

        What a view leaves out has its default. Raises ValueError for unknown names and for values
        of the wrong kind.
        """
        form = (
            "a view plan has the form {name: mine, views: [{scale: [0.2, 1.0], flip: "
            "0.5, ...}, ...]}"
        )
        with raise_as_value_error(form, AttributeError, KeyError, TypeError, ValueError):
            return cls(**{"name": "own", **values, "views": tuple(map(_view, values["views"]))})


def _view(values: Any) -> View:
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    return View(**given)
