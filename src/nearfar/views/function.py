"""Views from a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from nearfar.messages import one_line
from nearfar.views.view import ViewPlan

ViewsOf: TypeAlias = Callable[[Tensor], Sequence[Tensor]]


class ViewFunction:
    """A function that makes the views of a batch, in the place of a `ViewPlan`.

    function: [batch, channels, height, width], uint8, or float in 0..1 where images have more than 8 bits -> a sequence
    with one tensor [batch, channels, side, side] for each view, uint8 or float in 0..1; `make_views` normalises them.
    image_size, channels: of the images that it will get; with them it is tried once here, on two images of noise of
    8 bits, to count its views. name: default, its own name.
    Raises ValueError for a function that fails or returns anything else.

    Its random numbers must come from torch's global generator, on the images' device: that is seeded for each call
    from the generator of `make_views` and put back afterwards, so a resumed run sees the views of an uninterrupted one.
    Numbers from `random` or NumPy are not. The function sees the images of one call only: with several processes, or
    with micro-batches, each part of the batch is sampled from its own seed, and gets other views than in one whole
    batch. For new processes it must be possible to pickle it.
    """

    def __init__(self, function: ViewsOf, image_size: int, channels: int, name: str | None = None) -> None:
        self.function, self.name = function, name or getattr(function, "__qualname__", type(function).__qualname__)
        self.positions: tuple[int, ...] | None = None
        noise = torch.randint(0, 256, (2, channels, image_size, image_size), generator=torch.Generator().manual_seed(0))
        with one_line(f"the view function {self.name} fails"):
            views = self._call(noise.to(torch.uint8), 0)
        self.positions = tuple(range(len(views)))
        for view in views:
            if view.is_floating_point() and not (view.min() >= -0.5 and view.max() <= 1.5):
                raise ValueError(
                    f"the view function {self.name} gives floats from {view.min():.3g} to {view.max():.3g}: "
                    "give them in 0..1, not normalised, or uint8"
                )

    def __len__(self) -> int:
        return len(self.positions or ())

    def pick(self, positions: Sequence[int]) -> ViewFunction:
        """The same function, of which only the views at these positions are used, in that order."""
        own = self.positions or ()
        picked = object.__new__(ViewFunction)
        picked.function, picked.name = self.function, self.name
        picked.positions = tuple(own[position] for position in positions)
        return picked

    def crops(self, image_size: int) -> None:
        """None: the function needs whole images, so there is nothing to crop beforehand."""

    def views(
        self, images: Shaped[Tensor, "batch channels height width"], generator: torch.Generator, start: int
    ) -> list[Float[Tensor, "batch channels side side"]]:
        """Make the views as floats in 0..1; `start` is the place of the first image in the whole batch."""
        seed = int(torch.randint(2**62, (), generator=generator))
        views = self._call(images, seed + start)
        chosen = [views[position] for position in self.positions or ()]
        return [view.float() / 255 if view.dtype == torch.uint8 else view.float() for view in chosen]

    def _call(self, images: Tensor, seed: int) -> list[Tensor]:
        with _seeded(images.device, seed):
            views = self.function(images.clone())  # it may change them in place, and a micro-batch comes twice
        if isinstance(views, Tensor) or not isinstance(views, Sequence) or not views:
            raise ValueError(
                f"the view function {self.name} must return a list of tensors, not a {type(views).__name__}"
            )
        if self.positions is not None and max(self.positions) >= len(views):
            raise ValueError(f"the view function {self.name} gave {len(views)} views, and more before")
        for view in views:
            right = isinstance(view, Tensor) and view.ndim == 4 and view.shape[:2] == images.shape[:2]
            if not right or view.shape[2] != view.shape[3]:
                given = list(view.shape) if isinstance(view, Tensor) else f"a {type(view).__name__}"
                raise ValueError(
                    f"the view function {self.name} must give views [{len(images)}, {images.shape[1]}, side, side] of "
                    f"these images, not {given}"
                )
            if not view.is_floating_point() and view.dtype != torch.uint8:
                raise ValueError(f"the view function {self.name} must give uint8 or floats in 0..1, not {view.dtype}")
        return list(views)


@contextmanager
def _seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Give torch's global generators, of the CPU and of the device, a seed for a while."""
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(gpus):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach generators that are not put back
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield


Views: TypeAlias = ViewPlan | ViewFunction
"""What `make_views` takes: both have a name, a length, `pick` and `crops`."""
