"""Sources of images, the pixel cache, and loaders that yield (images, index)."""

from nearfar.data.crops import CroppingBatches
from nearfar.data.few import open_few
from nearfar.data.fingerprint import Fingerprint, fingerprint_of, fingerprint_of_images
from nearfar.data.images import Images
from nearfar.data.loader import Batches, rank_rows
from nearfar.data.locating import list_splits
from nearfar.data.objects import describe
from nearfar.data.opening import open_images
from nearfar.data.sample_photographs import photographs
from nearfar.data.stream_batches import StreamBatches
from nearfar.data.streams import Stream, open_stream
from nearfar.data.surveying import survey

__all__ = [
    "Batches",
    "CroppingBatches",
    "Fingerprint",
    "Images",
    "Stream",
    "StreamBatches",
    "describe",
    "fingerprint_of",
    "fingerprint_of_images",
    "list_splits",
    "open_few",
    "open_images",
    "open_stream",
    "photographs",
    "rank_rows",
    "survey",
]
