"""Networks: backbones, heads, the momentum encoder, the queue, and the encoder that is kept."""

from nearfar.networks.backbone import Architecture, Backbone, build_backbone, encoder_names, size_step
from nearfar.networks.encoder import Encoder, load_encoder, save_encoder
from nearfar.networks.exporting import check_onnx, export_onnx, export_program, export_weights, write_timm_folder
from nearfar.networks.feature_maps import FeatureMaps
from nearfar.networks.heads import mlp
from nearfar.networks.layers import layer_scales
from nearfar.networks.momentum_encoder import MomentumEncoder
from nearfar.networks.pretrained import load_pretrained
from nearfar.networks.queue import Queue
from nearfar.networks.small import OWN_NETS, SmallNet
from nearfar.networks.split_norm import SplitBatchNorm, shuffled, split_batch_norm
from nearfar.networks.starting import StartingWeights, find_weights
from nearfar.networks.whitening import whiten_stem

__all__ = [
    "OWN_NETS",
    "Architecture",
    "Backbone",
    "Encoder",
    "FeatureMaps",
    "MomentumEncoder",
    "Queue",
    "SmallNet",
    "SplitBatchNorm",
    "StartingWeights",
    "build_backbone",
    "check_onnx",
    "encoder_names",
    "export_onnx",
    "export_program",
    "export_weights",
    "find_weights",
    "layer_scales",
    "load_encoder",
    "load_pretrained",
    "mlp",
    "save_encoder",
    "shuffled",
    "size_step",
    "split_batch_norm",
    "whiten_stem",
    "write_timm_folder",
]
