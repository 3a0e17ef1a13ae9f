"""The facts that a run is planned from: its data by its headers, and this machine."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from nearfar.data import Images, Stream
from nearfar.data.scanning import Scanned
from nearfar.data.streams import glance
from nearfar.data.table import most_common_channels, most_common_side, readable
from nearfar.device import describe_gpu, find_device, half_precision
from nearfar.networks.pretrained import installed_weights
from nearfar.threads import fastest_threads
from nearfar.training.processes import world_size
from nearfar.training.request import MINUTES
from nearfar.training.settings import Settings, given_or

FINISHING = 6.0  # seconds for the last health metrics, the nearest images, the files and the report


@dataclass(frozen=True)
class Facts:
    """Numbers of data and machine, known before a run is planned.

    images: how many there are, before `limit`. side: pixels of the shorter side of most of them.
    channels: that most of them have, or that were asked for. device: its kind. place: the device or
    its threads, in words. half: the half precision that it computes in, None for none. processes:
    that train. seconds: left for training, where a time is to be filled. weights: whether
    pretrained weights are installed. opened: the images, whose statistics, value range and split
    are known once they are open.
    """

    images: int
    side: int
    channels: int
    device: str
    place: str
    half: str | None
    processes: int
    seconds: float
    weights: bool
    opened: Images | Stream | None = None

    @classmethod
    def of_machine(
        cls, given: Settings, *, images: int, side: int, channels: int, seconds: float
    ) -> Facts:
        """Look at this machine; what is known of the images is given."""
        device = find_device(given.accelerator)
        on_gpu = device.type != "cpu"
        return cls(
            images=images,
            side=side,
            channels=channels,
            device=device.type,
            place=describe_gpu()["name"] if on_gpu else f"{torch.get_num_threads()} threads",
            half=half_precision(device),
            processes=world_size(given.devices),
            seconds=seconds,
            weights=installed_weights() is not None,
        )

    def of_opened(self, images: Images | Stream, seconds: float) -> Facts:
        """Return the facts once the images are open, of which some may not have been readable."""
        counts = replace(self, images=len(images), channels=images.channels)
        return replace(counts, seconds=seconds, opened=images)


def gather_facts(given: Settings, data: Images | Scanned, began: float) -> Facts:
    """Gather the facts for a run; no image is decoded.

    data: of the settings, by `find_data`. began: when the time of the run began, as
    `time.perf_counter` gave it.
    """
    images, side, channels = _of_data(given, data)
    return Facts.of_machine(
        given,
        images=images,
        side=side,
        channels=given.channels or channels,
        seconds=seconds_left(given, began),
    )


def _of_data(given: Settings, data: Images | Scanned) -> tuple[int, int, int]:
    """Return the number of images, the shorter side of most, and the channels of most."""
    if isinstance(data, Images):
        return len(data), data.image_size, data.channels
    if given.stream:
        count, table = glance(data, given.split)
    else:
        table = data.choose(given.split).table
        count = len(readable(table))
    bands = table["bands"].to_numpy()[readable(table)].astype(np.int64)
    return count, most_common_side(table), most_common_channels(bands)


def seconds_left(given: Settings, began: float) -> float:
    """Return the time for training: what was not used of the minutes until now, but at least half
    of them.
    """
    whole = 60 * given_or(given.minutes, MINUTES)
    return max(whole / 2, whole - (time.perf_counter() - began) - FINISHING)


def choose_threads(given: Settings) -> int:
    """Return the CPU threads of each process: as given, or the fastest number, or beside a GPU or
    others a share.
    """
    processes = world_size(given.devices)
    if given.threads is not None:
        return given.threads
    if processes == 1 and find_device(given.accelerator).type == "cpu":
        return fastest_threads()
    return max(1, torch.get_num_threads() // (1 if "OMP_NUM_THREADS" in os.environ else processes))


def default_precision(given: Settings) -> Any:
    """Return the precision for "auto" where processes cannot agree on a measurement: half
    precision on a GPU.
    """
    device = find_device(given.accelerator)
    return "32-true" if device.type == "cpu" else half_precision(device)
