"""Networks: backbones, heads, the momentum twin, the queue, and the encoder that is kept."""

from nearfar.encoders.backbone import Architecture, Backbone, build_backbone
from nearfar.encoders.encoder import Encoder
from nearfar.encoders.heads import mlp
from nearfar.encoders.pretrained import load_pretrained
from nearfar.encoders.queue import Queue
from nearfar.encoders.small import SmallNet
from nearfar.encoders.split_norm import SplitBatchNorm, shuffled, split_batch_norm
from nearfar.encoders.storage import load_encoder, save_encoder
from nearfar.encoders.twin import Twin

__all__ = [
    "Architecture",
    "Backbone",
    "Encoder",
    "Queue",
    "SmallNet",
    "SplitBatchNorm",
    "Twin",
    "build_backbone",
    "load_encoder",
    "load_pretrained",
    "mlp",
    "save_encoder",
    "shuffled",
    "split_batch_norm",
]
