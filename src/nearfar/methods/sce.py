"""SCE as a method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nearfar.losses import SCE as Loss
from nearfar.methods.method import Embeddings, Head, Method, Wiring
from nearfar.methods.recipe import Recipe, small_data
from nearfar.methods.schedules import Cosine


@dataclass(frozen=True, kw_only=True)
class SCE(Method):
    """SCE: soft targets, of which lam goes to the positive and the rest to images the twin finds similar.

    Args:
        projector: widths of the projector.
        predictor: widths of a predictor on the online branch; none by default.
        temperature: of the online branch.
        target_temperature: of the twin's branch; it must be the sharper one.
        lam: weight of the contrastive term, 0 to 1.
        mu: weight of the relational term. Default: 1 - lam.
        eta: weight of the ceiling term. Default: 1 - lam.
        symmetric: pass both views through both branches.
        small_views: further small crops for the online branch, two global ones given.
        queue_size: keys kept; 0 compares with the batch's own keys.
        momentum: of the twin at the start; it rises to 1 along half a cosine.

    Differs from the paper: (1) the positive's weight among the soft targets is masked to exactly 0, where released
    code gives it the logit 0.
    """

    paper = "Denize et al., Similarity Contrastive Estimation for Self-Supervised Soft Contrastive Learning (SCE), WACV 2023"
    recipes = {
        "small": small_data(),
        "cifar": Recipe(
            source="SCE, appendix E",
            epochs=200,
            lr=0.06,
            weight_decay=5e-4,
            warmup_epochs=5,
            method={"projector": (512, 256), "temperature": 0.2, "target_temperature": 0.1},
        ),
        "imagenet": Recipe(
            source="SCE, section 4.2",
            epochs=200,
            batch_size=512,
            lr=0.5,
            weight_decay=1e-4,
            warmup_epochs=5,
            method={"projector": (2048, 2048, 256), "queue_size": 65536, "momentum": 0.996},
        ),
    }

    predictor: tuple[int, ...] = ()
    temperature: float = 0.1
    target_temperature: float = 0.07
    lam: float = 0.5
    mu: float | None = None
    eta: float | None = None
    symmetric: bool = False
    small_views: int = 0
    queue_size: int = 4096
    momentum: float = 0.99

    def crops(self) -> tuple[str, ...]:
        pair = ("strong-alpha", "strong-beta") if self.symmetric else ("strong", "weak")
        return pair + ("small",) * self.small_views

    def wiring(self, num_images: int) -> Wiring:
        both = self.symmetric or self.small_views > 0
        return Wiring(
            loss=Loss(self.temperature, self.target_temperature, self.lam, self.mu, self.eta),
            projector=Head(self.projector),
            predictor=Head(self.predictor) if self.predictor else None,
            twin=Cosine(self.momentum, 1.0),
            online=None if both else (0,),
            target=(0, 1) if both else (1,),
            queue_size=self.queue_size,
        )

    def compute(self, loss: nn.Module, embeddings: Embeddings, index: Tensor, queue: Tensor | None) -> Tensor:
        queries = embeddings["prediction" if self.predictor else "projection"]
        keys = embeddings["target"]
        if len(queries) == 1:
            return loss(queries[0], keys[0], queue)
        pairs = [(q, k) for k in range(len(keys)) for q in range(len(queries)) if q != k]
        return torch.stack([loss(queries[q], keys[k], queue) for q, k in pairs]).mean()
