"""From a batch of images to its views, by a plan or by a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from nearfar.device import seeded, send
from nearfar.messages import raise_as_value_error
from nearfar.progress import log
from nearfar.views import fused
from nearfar.views.geometry import affine, crop, whole
from nearfar.views.photometric import (
    blur,
    drop_channel,
    grayscale_,
    jitter_,
    kernel_size,
    noise_,
    solarize_,
)
from nearfar.views.sampling import SampledViews, ViewParameters, sample_views
from nearfar.views.view import View, ViewPlan

TRIAL_COPIES, TRIALS = 6, 4  # of an image in a batch, and of the batch
ViewsOf: TypeAlias = Callable[[Tensor], Sequence[Tensor]]


class ViewFunction:
    """A function that makes the views of a batch, in the place of a `ViewPlan`.

    function: [batch, channels, height, width], uint8, or float in 0..1 where images have more than
    8 bits -> a sequence with one tensor [batch, channels, side, side] for each view, uint8 or float
    in 0..1; `make_views` normalises them. image_size, channels: of the images that it will get;
    with them it is tried once here, on two images of noise of 8 bits, to count its views. Raises
    ValueError for a function that fails or returns anything else.

    Its random numbers must come from torch's global generator, on the images' device: that is
    seeded for each call from the generator of `make_views` and put back afterwards, so a resumed
    run sees the views of an uninterrupted one. Numbers from `random` or NumPy are not. The function
    sees the images of one call only: with several processes, or with micro-batches, each part of
    the batch is sampled from its own seed, and gets other views than in one whole batch. For new
    processes it must be possible to pickle it.

    >>> twice = ViewFunction(lambda images: [images, images.flip(3)], image_size=8, channels=3)
    >>> images, generator = torch.zeros(2, 3, 8, 8), torch.Generator()
    >>> len(make_views(images, twice, generator, mean=[0.5] * 3, std=[0.25] * 3))
    2
    """

    def __init__(self, function: ViewsOf, image_size: int, channels: int) -> None:
        self.function, self.name = (
            function,
            getattr(function, "__qualname__", type(function).__qualname__),
        )
        self.positions: tuple[int, ...] = ()
        noise = torch.randint(
            0,
            256,
            (2, channels, image_size, image_size),
            generator=torch.Generator().manual_seed(0),
        )
        with raise_as_value_error(f"the view function {self.name} fails"):
            views = self._call(noise.to(torch.uint8), 0)
        self.positions = tuple(range(len(views)))
        if self._draws_once(noise[:1].to(torch.uint8)):
            log.warning(
                "the view function %s draws its random numbers once for the whole batch, "
                "so that all images of a batch "
                "are changed alike, which helps to tell nothing apart: apply it to each "
                "image (torchvision's "
                "transforms v2 draw once a call)",
                self.name,
            )
        for view in views:
            if view.is_floating_point() and not (view.min() >= -0.5 and view.max() <= 1.5):
                raise ValueError(
                    f"the view function {self.name} gives floats from {view.min():.3g} to "
                    f"{view.max():.3g}: "
                    "give them in 0..1, not normalised, or uint8"
                )

    def _draws_once(self, image: Tensor) -> bool:
        """Return whether copies of an image in one batch get the same views, and another call other
        views.
        """
        made = [self._call(image.repeat(TRIAL_COPIES, 1, 1, 1), seed) for seed in range(TRIALS)]
        for views in zip(*made, strict=True):
            alike = all(torch.equal(view, view[:1].expand_as(view)) for view in views)
            others = any(not torch.equal(view, views[0]) for view in views)
            if alike and others:
                return True
        return False

    def __len__(self) -> int:
        return len(self.positions)

    def pick(self, positions: Sequence[int]) -> ViewFunction:
        """The same function, of which only the views at these positions are used, in that order."""
        picked = object.__new__(ViewFunction)
        picked.function, picked.name = self.function, self.name
        picked.positions = tuple(self.positions[position] for position in positions)
        return picked

    def crops(self, image_size: int) -> None:
        """None: the function needs whole images, so there is nothing to crop beforehand."""

    def views(
        self,
        images: Shaped[Tensor, "batch channels height width"],
        generator: torch.Generator,
        start: int,
    ) -> list[Float[Tensor, "batch channels side side"]]:
        """Make the views as floats in 0..1; `start` is the place of the first image in the whole
        batch.
        """
        seed = int(torch.randint(2**62, (), generator=generator))
        views = self._call(images, seed + start)
        chosen = [views[position] for position in self.positions]
        return [
            view.float() / 255 if view.dtype == torch.uint8 else view.float() for view in chosen
        ]

    def _call(self, images: Tensor, seed: int) -> list[Tensor]:
        with seeded(images.device, seed):
            views = self.function(
                images.clone()
            )  # it may change them in place, and a micro-batch comes twice
        if not isinstance(views, Sequence) or len(views) <= max(self.positions, default=0):
            given = (
                f"{len(views)} views"
                if isinstance(views, Sequence)
                else f"a {type(views).__name__}"
            )
            raise ValueError(
                f"the view function {self.name} must return as many views each time, in a "
                f"list, not {given}"
            )
        for view in views:
            tensor = isinstance(view, Tensor) and (
                view.is_floating_point() or view.dtype == torch.uint8
            )
            if (
                not tensor
                or view.shape[:2] != images.shape[:2]
                or view.shape[2:] != view.shape[-1:] * 2
            ):
                given = (
                    f"{view.dtype} {list(view.shape)}"
                    if isinstance(view, Tensor)
                    else f"a {type(view).__name__}"
                )
                raise ValueError(
                    f"the view function {self.name} must give views [{len(images)}, "
                    f"{images.shape[1]}, side, side] of "
                    f"these images, uint8 or floats in 0..1, not {given}"
                )
        return list(views)


Views: TypeAlias = ViewPlan | ViewFunction
"""Views that `make_views` takes: both have a name, a length, `pick` and `crops`."""

_CPU_VALUES = 3 * 2**17
"""Values of a chunk for each CPU thread: intermediates then stay in the cache (128 colour images of
32 pixels).
"""
_DEVICE_VALUES = 2**28


@torch.no_grad()
def make_views(
    images: Tensor | Sequence[Tensor],
    plan: Views,
    generator: torch.Generator,
    mean: Sequence[float],
    std: Sequence[float],
    rows: slice | None = None,
    total: int | None = None,
) -> list[Tensor]:
    """Make every view of a plan from a batch of images: one float32 tensor [batch, channels, side,
    side] for each view.

    images: uint8 or float in 0..1 [batch, channels, height, width] on any device, any number of
    channels; or a list with one such tensor for each view, cropped to its side beforehand (as by
    `Batches`): then all but the crop is done here. plan: a ViewPlan, or a ViewFunction, which takes
    whole images only. generator: on the CPU; its state is all that the samples depend on. mean,
    std: one number for each channel in units of 0..1, for the normalisation that ends every view.
    rows, total: `images` are the `rows` of a batch of `total` images (default: all); samples are
    made for the whole batch, so that processes which share a batch see the views that one process
    would (not so for a ViewFunction). Raises ValueError for images of other values or shapes, or
    that do not fit mean and std.

    >>> images = torch.zeros(5, 3, 32, 32, dtype=torch.uint8)
    >>> views, generator = plan("simclr", 32, 3), torch.Generator()
    >>> first, second = make_views(images, views, generator, mean=[0.5] * 3, std=[0.25] * 3)
    >>> first.shape
    torch.Size([5, 3, 32, 32])
    """
    if isinstance(plan, ViewFunction):
        return _by_function(images, plan, generator, mean, std, rows)
    sources = _sources(images, plan)
    batch, _ = _check(sources[0], mean, std)
    sizes = [_size(source) for source in sources]
    sampled = sample_views(
        plan,
        [generator],
        batch if total is None else total,
        sizes,
        rows,
        is_cropped=not isinstance(images, Tensor),
    )
    return apply_views(images, plan, sampled, mean, std)


def _by_function(
    images: Tensor | Sequence[Tensor],
    plan: ViewFunction,
    generator: torch.Generator,
    mean: Sequence[float],
    std: Sequence[float],
    rows: slice | None,
) -> list[Tensor]:
    if not isinstance(images, Tensor):
        raise ValueError(
            f"the view function {plan.name} makes views from whole images, not from crops"
        )
    _check(images, mean, std)
    shift, scale = _moments(mean, std, images.device)
    start = 0 if rows is None or rows.start is None else rows.start
    made = plan.views(images, generator, start)
    return [torch.addcmul(shift, view, scale) for view in made]


@torch.no_grad()
def apply_views(
    images: Tensor | Sequence[Tensor],
    plan: ViewPlan,
    sampled: SampledViews,
    mean: Sequence[float],
    std: Sequence[float],
) -> list[Tensor]:
    """Make the views of `make_views` from parameters that `sample_views` has sampled for these
    images.
    """
    sources = _sources(images, plan)
    batch, channels = _check(sources[0], mean, std)
    sides = [_side(view, source) for view, source in zip(plan.views, sources, strict=True)]
    is_cropped = not isinstance(images, Tensor)
    for side, source in zip(sides, sources, strict=True):
        if is_cropped and source.shape != (batch, channels, side, side):
            raise ValueError(
                f"crops for this view must be {[batch, channels, side, side]}, got "
                f"{list(source.shape)}"
            )
    made = fused.make(sources, plan, sides, sampled, mean, std)
    if made is not None:
        return made
    shift, scale = _moments(mean, std, sources[0].device)
    views = []
    for i, (view, source, side) in enumerate(zip(plan.views, sources, sides, strict=True)):
        parameters = sampled.of_view(i)
        out = torch.empty(batch, channels, side, side, device=source.device)
        for part in _chunks(source, side):
            piece = parameters[part]
            pixels = (
                whole(source[part], piece.flip)
                if is_cropped
                else crop(source[part], piece.box, side, piece.flip)
            )
            torch.addcmul(shift, _change(pixels, view, piece), scale, out=out[part])
        views.append(out)
    return views


def _sources(images: Tensor | Sequence[Tensor], plan: ViewPlan) -> list[Tensor]:
    """The images that each view is made from."""
    sources = [images] * len(plan) if isinstance(images, Tensor) else list(images)
    if len(sources) != len(plan):
        raise ValueError(f"the plan has {len(plan)} views, and crops for {len(sources)} were given")
    return sources


def _size(images: Tensor) -> tuple[int, int]:
    height, width = images.shape[-2:]
    return height, width


def _moments(mean: Sequence[float], std: Sequence[float], device: torch.device) -> Tensor:
    """Shift and scale of values in 0..1 for the normalisation: [2, channels, 1, 1]."""
    moments = [[-m / s for m, s in zip(mean, std, strict=True)], [1 / s for s in std]]
    return send(torch.tensor(moments), device)[..., None, None]


def _chunks(source: Tensor, side: int) -> list[slice]:
    """Slices of the images that are worked on at a time."""
    batch, channels, height, width = source.shape
    limit = _CPU_VALUES * torch.get_num_threads() if source.device.type == "cpu" else _DEVICE_VALUES
    step = max(1, limit // (channels * max(side * side, height * width)))
    return [slice(start, start + step) for start in range(0, batch, step)]


def _change(pixels: Tensor, view: View, sampled: ViewParameters) -> Tensor:
    """Overwrite `pixels` [n, channels, side, side] in 0..1 with all that comes between crop and
    normalisation.
    """
    colour = pixels.shape[1] == 3
    _where(pixels, sampled.flip_vertical, lambda x, i: x.flip(2))
    for quarters in (1, 2, 3):
        _where(
            pixels,
            sampled.quarters == quarters,
            lambda x, i: x.rot90(int(sampled.quarters[i[0]]), (2, 3)),
        )
    _where(pixels, sampled.affine, lambda x, i: affine(x, sampled.motion[i]))
    if view.jitter and (view.brightness or view.contrast or view.saturation or view.hue):
        jitter_(pixels, sampled.factors, sampled.hue, sampled.order, sampled.hue_place)
    if colour:
        _where(pixels, sampled.grayscale, lambda x, i: grayscale_(x))
    if pixels.shape[1] > 1:
        _where(pixels, sampled.drop, lambda x, i: drop_channel(x, sampled.dropped[i]))
    _where(pixels, sampled.blur, lambda x, i: blur(x, sampled.sigma[i], kernel_size(x.shape[-1])))
    _where(pixels, sampled.solarize, lambda x, i: solarize_(x))
    _where(
        pixels, sampled.noise, lambda x, i: noise_(x, sampled.noise_std[i], sampled.noise_seed[i])
    )
    return pixels


def _where(pixels: Tensor, chosen: Tensor, operation: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Replace the images where `chosen` is true by what the operation makes of them and of their
    numbers.
    """
    index = chosen.nonzero().squeeze(1)
    if len(index):
        rows = send(index, pixels.device)
        pixels.index_copy_(0, rows, operation(pixels.index_select(0, rows), index))


def _side(view: View, source: Tensor) -> int:
    if view.size is not None:
        return view.size
    height, width = source.shape[2:]
    if height != width:
        raise ValueError(
            f"the images are {height} x {width} pixels: give the view a size, or square images"
        )
    return width


def _check(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> tuple[int, int]:
    """The numbers of images and channels; ValueError for images of other values or shapes than
    `make_views` takes.
    """
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise ValueError(
            f"views are made from uint8 images, got {images.dtype}: give the raw pixels, 0 to 255"
        )
    on_cpu = images.device.type == "cpu"  # elsewhere the question would wait for the device
    if on_cpu and images.is_floating_point() and not ((images[:1] >= 0) & (images[:1] <= 1)).all():
        raise ValueError("views are made from uint8 images or floats in 0..1, not normalised")
    if images.ndim != 4:
        raise ValueError(
            f"views are made from [batch, channels, height, width], got shape {list(images.shape)}"
        )
    batch, channels = images.shape[:2]
    if not len(mean) == len(std) == channels:
        raise ValueError(
            f"images have {channels} channels, but mean has {len(mean)} numbers and std "
            f"has {len(std)}"
        )
    if not min(std) > 0:
        raise ValueError(
            f"std must be positive in every channel, got {list(std)}: give a constant channel 1"
        )
    return batch, channels
