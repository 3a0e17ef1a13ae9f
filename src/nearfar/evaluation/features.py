"""Features of images: by an encoder, and of three baselines that need no training: pixels, colours
and edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from nearfar.data import Images
from nearfar.device import send
from nearfar.networks import Encoder
from nearfar.threads import fastest_threads, use_threads
from nearfar.views import Views, eight_bits, make_views, unit

ORIENTATIONS, CELL, CLIP = 9, 8, 0.2  # of HOG, as in the paper
RAW_SIDE, HOG_SIDE = 32, 64  # pixels, at most
EDGES_BESIDE = 0.5  # length of the rows of HOG beside those of a pretrained net, of length 1
LOOKED_AT = 64  # images
ROUNDING = 8  # of 255: by so much the channels of a gray JPEG may differ


def extract(
    encoder: nn.Module | Callable[[Tensor], Tensor],
    images: Images | Shaped[Tensor, "*shape"],
    *,
    batch_size: int = 512,
    device: torch.device | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Float[Tensor, "images dim"]:
    """Features of all images, float32 on the CPU, in the order of the images.

    encoder: takes images [batch, channels, height, width] and returns [batch, dim]. A module is in
    eval mode, without gradient and on `device` meanwhile; it is moved there once, and afterwards
    every module is back in its own mode and on its own device. images: Images, or a tensor [images,
    channels, height, width], uint8 or float in 0..1; any number, as they are gathered (and decoded,
    where no pixels are stored) a batch at a time. device: None leaves the encoder where it is.
    progress: called as progress(images done, images in all). ValueError for no images, another
    shape, or an encoder that returns another shape.

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
    # a trial takes as long as a batch
    threads = fastest_threads() if batch_size < count else torch.get_num_threads()
    with _in_use(encoder, device) as place, use_threads(threads), torch.no_grad():
        for index in torch.arange(count).split(batch_size):
            pixels = images[index] if isinstance(images, Tensor) else images.gather(index)
            features = encoder(send(pixels, place))
            if features.ndim != 2 or len(features) != len(index):
                raise ValueError(
                    f"the encoder must return [{len(index)}, dim], got {list(features.shape)}"
                )
            if out is None:
                out = torch.empty(count, features.shape[1])
            out[index] = features.float().cpu()
            if progress is not None:
                progress(int(index[-1]) + 1, count)
    assert out is not None
    return out


def extract_view(
    encoder: Encoder,
    images: Images | Shaped[Tensor, "images channels size size"],
    view: Views,
    generator: torch.Generator,
    *,
    batch_size: int = 512,
    device: torch.device | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Float[Tensor, "images dim"]:
    """Features of one augmented view of every image; else as `extract`.

    view: a plan or function of one view, as by `pick([0])`; it must give the encoder's number of
    channels. Views are normalised with the mean and deviation that the encoder was trained with,
    whatever images these are. generator: on the CPU; all that the views depend on.
    """
    if len(view) != 1:
        raise ValueError(
            f"features are those of one view, and {view.name!r} makes {len(view)}: pick one"
        )
    seen = _SeesViews(encoder, view, generator)
    return extract(seen, images, batch_size=batch_size, device=device, progress=progress)


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


def raw_pixels(pixels: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim"]:
    """The baseline that every encoder has to beat, for `extract`: the pixels themselves, in 0..1,
    as float32 features.

    Images with a side above 32 pixels are first averaged down to it (area mean, each side on its
    own), which keeps the features to channels * 32^2 numbers. Smaller images are taken as they are.
    """
    height, width = pixels.shape[2:]
    size = (min(height, RAW_SIDE), min(width, RAW_SIDE))
    values = unit(pixels)
    return (values if size == (height, width) else F.adaptive_avg_pool2d(values, size)).flatten(1)


def colour_histogram(
    pixels: Shaped[Tensor, "batch channels height width"],
) -> Float[Tensor, "batch dim"]:
    """How often each colour occurs in an image, wherever it is (Swain and Ballard 1991): float32
    rows of length 1.

    Three channels: 8 x 8 x 8 joint bins of red, green and blue, 512 features. Any other number: 32
    bins for each channel, on its own. The features are square roots of shares, so that their cosine
    is the Bhattacharyya coefficient and their distance Hellinger's: a large plain background then
    does not outweigh all else.
    """
    batch, channels = pixels.shape[:2]
    values = eight_bits(pixels).flatten(2).long()
    if channels == 3:
        red, green, blue = (values >> 5).unbind(1)
        bins, number = 64 * red + 8 * green + blue, 512
    else:
        first = 32 * torch.arange(channels, device=pixels.device)[:, None]
        bins, number = ((values >> 3) + first).flatten(1), 32 * channels
    first = number * torch.arange(batch, device=pixels.device)[:, None]
    counts = torch.bincount((bins + first).flatten(), minlength=batch * number).view(batch, number)
    return (counts / bins.shape[1]).sqrt()


def are_gray(images: Images) -> bool:
    """Whether 64 images at random are gray, though they have three channels, which agree but for
    JPEG's rounding.
    """
    if images.channels != 3 or not len(images):
        return False
    rows = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:LOOKED_AT]
    pixels = eight_bits(images.gather(rows)).int()
    apart = (pixels.amax(1) - pixels.amin(1)).flatten(1)
    return bool(((apart > ROUNDING).float().mean(1) < 0.01).all())


def hog(pixels: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim"]:
    """Histograms of oriented gradients (Dalal and Triggs, CVPR 2005), float32: where an image has
    edges, and which way.

    Gradients [-1, 0, 1] of the channel where they are steepest; 9 orientations without sign, each
    vote shared by the two nearest; cells of 8 x 8 pixels; blocks of 2 x 2 cells that overlap by
    one, each normalised by its length, clipped at 0.2 and normalised again (L2-Hys). Sides above 64
    pixels are first reduced to that, which gives 1764 features. Images below 32 pixels have smaller
    cells, four to a side. Differs from the paper: votes are not shared among neighbouring cells and
    not weighted towards a block's centre.
    """
    height, width = (min(max(side, 8), HOG_SIDE) for side in pixels.shape[2:])
    image = unit(pixels)
    if image.shape[2:] != (height, width):
        image = F.interpolate(image, size=(height, width), mode="bilinear", antialias=True)
    down = F.pad(image[:, :, 2:] - image[:, :, :-2], (0, 0, 1, 1))
    across = F.pad(image[:, :, :, 2:] - image[:, :, :, :-2], (1, 1))
    strength, steepest = torch.hypot(down, across).max(1, keepdim=True)
    angle = torch.atan2(down.gather(1, steepest), across.gather(1, steepest))
    # in bins, from the centre of the first
    place = angle % math.pi * (ORIENTATIONS / math.pi) - 0.5
    lower = place.floor()
    share = place - lower
    votes = strength.new_zeros(len(image), ORIENTATIONS, height, width)
    votes.scatter_add_(1, lower.long() % ORIENTATIONS, strength * (1 - share))
    votes.scatter_add_(1, (lower.long() + 1) % ORIENTATIONS, strength * share)
    cell = min(CELL, min(height, width) // 4)
    cells = F.avg_pool2d(votes, cell) * cell**2
    # [batch, rows, columns, 36]
    blocks = cells.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 4, 5, 1).flatten(3)
    return F.normalize(
        F.normalize(blocks, dim=3, eps=1e-5).clamp_max(CLIP), dim=3, eps=1e-5
    ).flatten(1)


class AtOnce(nn.Module):
    """Features that need no training on the images: `colour_histogram`, `hog` as rows of length
    1.5, and a net's.

    net: whose features come after the others, both as rows of length 1; None for the others alone.
    Of what was tried on training images, these have the best mean accuracy of kNN
    (docs/neighbours.md).
    """

    def __init__(self, net: Encoder | None = None) -> None:
        super().__init__()
        self.net = net

    def forward(
        self, pixels: Shaped[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch dim"]:
        """Return the features, those of the colours first."""
        features = torch.cat([colour_histogram(pixels), 1.5 * F.normalize(hog(pixels), dim=1)], 1)
        if self.net is None:
            return features
        return torch.cat([F.normalize(features, dim=1), F.normalize(self.net(pixels), dim=1)], 1)


class PretrainedAndEdges(nn.Module):
    """Features of a pretrained net as rows of length 1, and `hog` as rows of length 0.5.

    Where things are is in the edges, what they are in the net. `benchmarks/encoders.py` compares
    them with the net alone ("pretrained, edges" and "pretrained").
    """

    def __init__(self, net: Encoder) -> None:
        super().__init__()
        self.net = net

    def forward(
        self, pixels: Shaped[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch dim"]:
        """Return the features, those of the net first."""
        edges = EDGES_BESIDE * F.normalize(hog(pixels), dim=1)
        return torch.cat([F.normalize(self.net(pixels), dim=1), edges], 1)
