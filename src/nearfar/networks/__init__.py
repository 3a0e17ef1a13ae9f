"""Networks: backbones, heads, the momentum encoder, the queue, and the encoder that is kept."""

from nearfar.networks.backbone import Architecture, Backbone, build_backbone
from nearfar.networks.encoder import Encoder, load_encoder, save_encoder
from nearfar.networks.heads import mlp
from nearfar.networks.momentum_encoder import MomentumEncoder
from nearfar.networks.pretrained import load_pretrained
from nearfar.networks.queue import Queue
from nearfar.networks.small import SmallNet
from nearfar.networks.split_norm import SplitBatchNorm, shuffled, split_batch_norm

__all__ = [
    "Architecture",
    "Backbone",
    "Encoder",
    "MomentumEncoder",
    "Queue",
    "SmallNet",
    "SplitBatchNorm",
    "build_backbone",
    "load_encoder",
    "load_pretrained",
    "mlp",
    "save_encoder",
    "shuffled",
    "split_batch_norm",
]
