"""Sources of images, the pixel cache, and loaders that yield (images, index)."""

from nearfar.data.batches import Batches, rank_rows
from nearfar.data.images import Images, photographs
from nearfar.data.opening import list_splits, open_images, scan
from nearfar.data.sources import describe
from nearfar.data.streams import Stream, StreamBatches, open_stream
from nearfar.data.table import difference

__all__ = [
    "Batches",
    "Images",
    "Stream",
    "difference",
    "list_splits",
    "open_images",
    "open_stream",
    "scan",
]
