"""The layouts of `nearfar map`: each places images on a plane, and can place others later."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from rich.console import Console
from torch import Tensor

from nearfar.commands.opening import features_shown, shown
from nearfar.data import Images
from nearfar.maps import ClusterEmbedding, NeighbourPlacement, Projector, finetune_map, fit_projector
from nearfar.messages import did_you_mean
from nearfar.networks import Encoder
from nearfar.training.seeding import stream
from nearfar.views import Views

LAYOUTS = ("projector", "finetune", "cluster-embedding")
NUM_VIEWS = 8


@dataclass(frozen=True)
class Layout:
    """Places of the images; the function from features to places; the encoder of these features if not the run's."""

    places: Tensor
    function: Projector | NeighbourPlacement
    encoder: Encoder | None = None


def check_layout(layout: str, num_views: int | None) -> None:
    """Raise ValueError for a layout that there is not, and for an option that it does not take."""
    if layout not in LAYOUTS:
        known = f"choose one of {', '.join(LAYOUTS)}"
        raise ValueError(f"there is no --layout {layout!r}: {did_you_mean(layout, LAYOUTS, known)}")
    if layout == "cluster-embedding" and num_views is not None:
        raise ValueError(
            "--num-views: the layout cluster-embedding looks at the images as they are, and takes no views"
        )


def lay_out(
    layout: str,
    trained: Encoder,
    images: Images,
    features: Tensor,
    plan: Views,
    console: Console,
    *,
    num_views: int | None = None,
    epochs: int | None = None,
    seed: int = 0,
) -> Layout:
    """Place images on a plane; features: those of the trained encoder, without augmentation."""
    if layout == "cluster-embedding":
        with shown(console, "laying out the map") as progress:
            embedding = ClusterEmbedding(metric="cosine", random_state=seed, progress=progress)
            if epochs is not None:
                embedding.set_params(max_iter=epochs)
            places = torch.from_numpy(embedding.fit_transform(features.numpy()))
        return Layout(places, NeighbourPlacement(features, places))
    seen, count = [], NUM_VIEWS if num_views is None else num_views
    for number in range(count):
        title, view = f"view {number + 1} of {count}", plan.pick([number % len(plan)])
        seen.append(features_shown(trained, images, console, title, view, stream(seed, "map", number)))
    with shown(console, "laying out the map") as progress:
        alone = None if layout == "finetune" else epochs  # of stage 3, where there is one
        projector = fit_projector(torch.stack(seen), features, epochs=alone, seed=seed, progress=progress)
    if layout == "projector":
        return Layout(projector(features), projector)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with shown(console, "training the map") as progress:
        encoder, projector = finetune_map(
            trained, projector, images, plan, epochs=epochs, seed=seed, device=device, progress=progress
        )
    return Layout(projector(features_shown(encoder, images, console, "placing")), projector, encoder)
