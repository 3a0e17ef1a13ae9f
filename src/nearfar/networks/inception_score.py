"""The number of kinds of things that the installed pretrained net knows among images."""

from __future__ import annotations

import timm
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from nearfar.networks.backbone import Backbone
from nearfar.networks.encoder import Encoder
from nearfar.networks.joined import SIDE
from nearfar.networks.pretrained import PRETRAINED, find_weights

PART = 64  # images that the net sees at a time


@torch.no_grad()
def class_probabilities(
    images: Shaped[Tensor, "images channels height width"],
) -> Float[Tensor, "images classes"]:
    """Probabilities of ImageNet's classes by the net of nearfar[pretrained], at 128 px.

    images: uint8, or floats in 0..1; grayscale or colour. ValueError where no pretrained weights
    are installed.
    """
    weights = find_weights(PRETRAINED)
    tensors, moments = weights.read({}), weights.moments(3)
    net = timm.create_model(str(weights.encoder))
    net.load_state_dict(tensors)
    assert moments is not None
    backbone = Backbone(net, None, len(tensors["classifier.bias"]))
    classifier = Encoder(backbone, SIDE, 3, *moments).eval()
    logits = [classifier(part) for part in images.split(PART)]
    return torch.cat(logits).softmax(1)


def inception_score(classes: Float[Tensor, "images classes"]) -> float:
    """The exponential of the mean of KL(p(class | image) || p(class)), p(class) being the mean over
    images: 1 if all are alike to the net, or none looks like a class; at most the number of images
    or of classes.

    Source: Salimans et al. 2016, section 4, with another net.

    >>> inception_score(torch.eye(4))  # of four classes, each sure
    4.0
    """
    classes = classes.double()
    entropy = torch.special.entr(classes).sum(1).mean()
    return float((torch.special.entr(classes.mean(0)).sum() - entropy).exp())
