"""How many kinds of things a pretrained net knows among images."""

from __future__ import annotations

import timm
import torch
from jaxtyping import Shaped
from torch import Tensor

from nearfar.networks.backbone import Backbone
from nearfar.networks.encoder import Encoder
from nearfar.networks.joined import SIDE
from nearfar.networks.pretrained import PRETRAINED, find_weights

PART = 64  # images that the net sees at a time


@torch.no_grad()
def inception_score(images: Shaped[Tensor, "images channels height width"]) -> float:
    """The exponential of the mean of KL(p(class | image) || p(class)) over images, p(class) being
    the mean over them: 1 if all images are alike to the net, or none looks like a class of
    ImageNet, and at most the number of images or of classes.

    The net is that of nearfar[pretrained], and sees 128 px. images: uint8, or floats in 0..1;
    grayscale or colour. ValueError where no pretrained weights are installed. Source: Salimans et
    al. 2016, section 4, whose net is Inception v3.
    """
    weights = find_weights(PRETRAINED)
    net = timm.create_model(str(weights.encoder))
    net.load_state_dict(weights.read({}))
    moments = weights.moments(3)
    assert moments is not None
    classifier = Encoder(Backbone(net, None, net.num_classes), SIDE, 3, *moments).eval()
    logits = torch.cat([classifier(part) for part in images.split(PART)])
    classes = logits.double().softmax(1)
    entropy = torch.special.entr(classes).sum(1).mean()
    return float((torch.special.entr(classes.mean(0)).sum() - entropy).exp())
