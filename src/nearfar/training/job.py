"""A run with every name resolved to an object, and what it trains."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from nearfar.data import Images, open_images
from nearfar.methods import Method, Model
from nearfar.networks import Backbone, build_backbone
from nearfar.training.seeding import derive_seed
from nearfar.training.settings import Settings
from nearfar.views import Views


@dataclass(frozen=True)
class Job:
    """What a run needs: its settings, with nothing left to choose, and the objects that they name or describe.

    images: all of the data; None in a process that opens it again by its name.
    """

    settings: Settings
    method: Method
    encoder: str | nn.Module
    views: Views
    images: Images | None

    def sets(self) -> tuple[Images, Images | None]:
        """Return the images to train on and those held out to measure health on, if any."""
        settings = self.settings
        images = self.images or open_images(
            settings.data,
            split=settings.split,
            image_size=settings.image_size,
            channels=settings.channels,
            cache=settings.cache,
        )
        if settings.limit is not None:
            images = images.subset(range(min(settings.limit, len(images))))
        return images.split_holdout(settings.held_out, settings.seed) if settings.held_out else (images, None)

    def model(self, num_images: int) -> Model:
        """Build the networks and the loss as they stand before the first step, for that many training images."""
        return Model(self.method, initial_backbone(self.settings, self.encoder), num_images)


def initial_backbone(settings: Settings, encoder: str | nn.Module) -> Backbone:
    """Build the backbone as it stands before the first step: the same weights for the same settings."""
    torch.manual_seed(derive_seed(settings.seed, "weights"))
    return build_backbone(encoder, image_size=settings.image_size, channels=settings.channels, init=settings.init)
