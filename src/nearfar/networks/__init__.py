"""Networks: backbones, heads, MoCo's momentum encoder and queue, and the encoder that is saved."""

from nearfar.networks.backbone import (
    Architecture,
    Backbone,
    build_backbone,
    check_encoder,
    encoder_names,
    fitting_size,
    layer_scales,
    size_step,
)
from nearfar.networks.encoder import Encoder, load_encoder, save_encoder
from nearfar.networks.exporting import (
    check_onnx,
    export_onnx,
    export_program,
    export_weights,
    write_timm_folder,
)
from nearfar.networks.joined import Joined, first_encoder, join_encoders, named_encoder
from nearfar.networks.moco import MomentumEncoder, Queue, SplitBatchNorm, shuffled, split_batch_norm
from nearfar.networks.pretrained import StartingWeights, find_weights
from nearfar.networks.small import OWN_NETS, SmallNet, whiten_stem

__all__ = [
    "Backbone",
    "Encoder",
    "MomentumEncoder",
    "Queue",
    "SmallNet",
    "build_backbone",
    "encoder_names",
    "first_encoder",
    "load_encoder",
    "save_encoder",
]
