"""Features of images by an encoder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from safetensors.torch import save
from torch import Tensor, nn

from nearfar.data import Images, bits
from nearfar.data.table import digest
from nearfar.device import send
from nearfar.engine import Keys, each, engine
from nearfar.networks import Encoder
from nearfar.networks.encoder import describe_encoder
from nearfar.networks.folding import folded
from nearfar.progress import progress
from nearfar.threads import fastest_threads, use_threads
from nearfar.views import View, ViewPlan, Views, eight_bits, make_views

LOOKED_AT = 64  # images
TRIED = 512  # images above which a trial of the number of threads is worth its time


def extract(
    encoder: nn.Module | Callable[[Tensor], Tensor],
    images: Images | Shaped[Tensor, "*shape"],
    *,
    batch_size: int = 512,
    device: torch.device | str | None = None,
    title: str = "computing features",
) -> Float[Tensor, "images dim"]:
    """Features of all images, float32 on the CPU, in the order of the images.

    encoder: takes images [batch, channels, height, width] and returns [batch, dim]. A module is in
    eval mode, without gradient and on `device` meanwhile; it is moved there once, and afterwards
    every module is back in its own mode and on its own device. images: Images, or a tensor [images,
    channels, height, width], uint8 or float in 0..1; any number, as they are gathered (and decoded,
    where no pixels are stored) a batch at a time. device: None leaves the encoder where it is.
    title: of the bar. ValueError for no images, another shape, or an encoder that returns another
    shape.

    >>> extract(torch.nn.Flatten(), torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 192])
    """
    count, shape = (
        len(images),
        list(images.shape) if isinstance(images, Tensor) else f"{len(images)} images",
    )
    if count == 0 or (isinstance(images, Tensor) and images.ndim != 4):
        raise ValueError(
            f"images must be [images, channels, height, width], at least one, got {shape}"
        )
    out: Tensor | None = None
    threads = fastest_threads() if count > TRIED else torch.get_num_threads()
    with (
        _in_use(encoder, device) as place,
        use_threads(threads),
        progress(title, count) as bar,
    ):
        batches = torch.arange(count).split(batch_size)
        is_cpu = place.type == "cpu"
        lighter = folded(encoder) if isinstance(encoder, Encoder) and is_cpu else encoder
        work = partial(_features, lighter, images, place)
        made: Iterator[dict[str, np.ndarray]] = map(work, batches)
        # other encoders may draw random numbers, one batch after the other
        if isinstance(encoder, Encoder) and isinstance(images, Images) and is_cpu:
            made = each(work, batches, _keys(encoder, images))
        for index, features in zip(batches, made, strict=True):
            if out is None:
                out = torch.empty(count, features["features"].shape[1])
            out.numpy()[index] = features["features"]
            bar.advance(len(index))
    assert out is not None
    return out


def _features(
    encoder: nn.Module | Callable[[Tensor], Tensor],
    images: Images | Shaped[Tensor, "*shape"],
    place: torch.device,
    index: Int64[Tensor, " batch"],
) -> dict[str, np.ndarray]:
    """The features of a batch, float32 [batch, dim]."""
    with torch.no_grad():
        pixels = images[index] if isinstance(images, Tensor) else images.gather(index)
        features = encoder(send(pixels, place))
    if features.ndim != 2 or len(features) != len(index):
        raise ValueError(f"the encoder must return [{len(index)}, dim], got {list(features.shape)}")
    return {"features": features.float().cpu().numpy()}


def _keys(encoder: Encoder, images: Images) -> Keys | None:
    """Of a batch, what its features depend on; None where nobody keeps them."""
    if engine() is None:
        return None
    about = [list(images.form), describe_encoder(encoder)]
    state = encoder.state_dict().items()  # not that of the net alone: directions, too
    tensors = {name: value.cpu().contiguous().clone() for name, value in state}  # none is shared
    of_all = digest([save(tensors), json.dumps(about).encode()])
    digests = images.digests

    def key(index: Int64[Tensor, " batch"]) -> str | None:
        own = [digests[row] for row in index.tolist()]
        return None if None in own else digest(json.dumps([of_all, *own]).encode())

    return key


def extract_view(
    encoder: Encoder,
    images: Images | Shaped[Tensor, "images channels size size"],
    view: Views,
    generator: torch.Generator,
    *,
    batch_size: int = 512,
    device: torch.device | str | None = None,
) -> Float[Tensor, "images dim"]:
    """Features of one augmented view of every image; else as `extract`.

    view: a plan or function of one view, as by `pick([0])`; it must give the encoder's number of
    channels. Views are normalised with the mean and deviation that the encoder was trained with,
    whatever images these are. generator: on the CPU; all that the views depend on. Raises
    ValueError for a plan of several views.

    >>> view = nearfar.views.compose(["simclr"], image_size=32, channels=3)
    >>> images = nearfar.data.open_images("photos", image_size=32)
    >>> extract_view(nearfar.load("runs/photos"), images, view, torch.Generator()).shape
    torch.Size([25, 128])
    """
    if len(view) != 1:
        raise ValueError(
            f"features are those of one view, and {view.name!r} makes {len(view)}: pick one"
        )
    seen = _SeesViews(encoder, view, generator)
    return extract(seen, images, batch_size=batch_size, device=device)


CROPS_AND_FLIPS = View(scale=(0.08, 1.0), flip=0.5)
"""A view as linear probes of the papers see training images."""


class CroppedAndFlipped(nn.Module):
    """An encoder of images, which sees a random crop of 8 to 100 per cent of each, flipped half of
    the time.

    Takes what the encoder takes: uint8, or float in 0..1 [batch, channels, side, side]. seed: of
    the crops and flips of all batches in turn.
    """

    def __init__(self, encoder: Callable[[Tensor], Tensor], seed: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, pixels: Tensor) -> Tensor:
        plan = ViewPlan("crops and flips", (CROPS_AND_FLIPS,))
        zeros, ones = [0.0] * pixels.shape[1], [1.0] * pixels.shape[1]
        [views] = make_views(pixels, plan, self.generator, zeros, ones)
        return self.encoder(views.clamp(0, 1))


class _SeesViews(nn.Module):
    def __init__(self, encoder: Encoder, view: Views, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder, self.view, self.generator = encoder, view, generator
        self.mean, self.std = encoder.mean.flatten().tolist(), encoder.std.flatten().tolist()

    def forward(self, pixels: Tensor) -> Tensor:
        [views] = make_views(pixels, self.view, self.generator, self.mean, self.std)
        return self.encoder.backbone(views)


@contextmanager
def _in_use(
    encoder: nn.Module | Callable[[Tensor], Tensor], device: torch.device | str | None
) -> Iterator[torch.device]:
    """An encoder in eval mode and on the device, which is yielded; as it was afterwards."""
    if not isinstance(encoder, nn.Module):
        yield torch.device("cpu" if device is None else device)
        return
    first = next(chain(encoder.parameters(), encoder.buffers()), None)
    home = torch.device("cpu") if first is None else first.device
    place = home if device is None else torch.device(device)
    modes = [(module, module.training) for module in encoder.modules()]
    try:
        encoder.eval()
        encoder.to(place)
        yield place
    finally:
        encoder.to(home)
        for module, mode in modes:
            module.training = mode


def are_gray(images: Images) -> bool:
    """Return whether 64 images at random are gray, though they have three channels, which agree but
    for JPEG's rounding.
    """
    if images.channels != 3 or not len(images):
        return False
    rows = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:LOOKED_AT]
    return bool(bits.are_gray(eight_bits(images.gather(rows))).all())
