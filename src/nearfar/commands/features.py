"""The features of all images of a set, in pieces and with a progress bar."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from nearfar.data import Images
from nearfar.evaluation import extract
from nearfar.networks import Encoder
from nearfar.views import ViewPlan, make_views


def features_of(
    encoder: Callable[[Tensor], Tensor], images: Images, console: Console | None = None, name: str = ""
) -> Tensor:
    """Return the features of all images [N, dim], read in pieces so that any number fits in memory."""
    pieces = torch.arange(len(images)).split(1024)
    shown = track(
        pieces,
        name.replace("_", " "),
        console=console,
        transient=True,
        disable=console is None or not console.is_terminal,
    )
    device = "cuda" if torch.cuda.is_available() else None
    read = partial(extract, encoder, device=device) if isinstance(encoder, nn.Module) else encoder
    return torch.cat([read(images.gather(piece)) for piece in shown])


class ViewEncoder(nn.Module):
    """An encoder that sees one augmented view of each image."""

    def __init__(self, encoder: Encoder, view: ViewPlan, images: Images, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder, self.view, self.images, self.generator = encoder, view, images, generator

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode uint8 images [batch, channels, size, size], each differently augmented."""
        [views] = make_views(pixels, self.view, self.generator, self.images.mean, self.images.std)
        return self.encoder.backbone(views)
