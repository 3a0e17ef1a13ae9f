"""Networks around a backbone: which crops go where, what moves after a step, where normalisation
stands.
"""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from nearfar.methods import Model, method_class
from nearfar.methods.registry import computation_of
from nearfar.networks import SplitBatchNorm
from nearfar.views import compose


class Brightness(nn.Module):
    """A backbone for any size; remembers the sizes it was given."""

    num_features = 3

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 3)
        self.calls = []

    def forward(self, images):
        self.calls.append(tuple(images.shape))
        return self.net(images.mean((2, 3)))


class Convolutions(nn.Sequential):
    """A backbone whose computation grows with the pixels, far above that of the heads."""

    num_features = 8

    def __init__(self):
        convolutions = [nn.Conv2d(8, 8, 9, padding=4) for _ in range(8)]
        super().__init__(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_crops_are_embedded_with_one_pass_per_size_and_returned_in_order():
    torch.manual_seed(0)
    method = method_class("moco-m")(projector=(5,), small_views=2, queue_size=8)
    model = Model(method, Brightness(), num_images=10)
    sizes = [8, 8, 8, 4, 4]
    views = [torch.randn(6, 1, size, size) for size in sizes]
    embeddings = model(views)
    assert model.backbone.calls == [(18, 1, 8, 8), (12, 1, 4, 4)]
    assert embeddings["projection"].shape == (5, 6, 5)
    for view, rows in zip(
        views, embeddings["projection"], strict=True
    ):  # no normalisation in MoCo's head
        torch.testing.assert_close(rows, model.online(view))
    # Keys come from the first two large crops, in one pass.
    assert model.momentum_encoder.networks[0].calls == [(12, 1, 8, 8)]
    torch.testing.assert_close(embeddings["key"][1], model.momentum_encoder(views[1]))


@pytest.mark.parametrize(
    ("method", "options", "by_hand"),
    [
        ("simclr", {}, 6),
        ("simclr", {"large_views": 3, "small_views": 4}, 9 + 12 * (96 / 224) ** 2),
        ("moco-v2", {}, 4),
        ("byol", {}, 8),
        ("jcl", {"key_views": 3}, 6),
    ],
)
def test_computation_is_what_torch_counts_in_a_step(method, options, by_hand):
    method = method_class(method).from_recipe(**options)
    assert computation_of(method) == pytest.approx(by_hand)
    net = Convolutions()
    model = Model(method, net, num_images=8)
    sides = [64 * side // 224 for side, *_ in compose(method.views, 224, 3).crops(224)]
    with FlopCounterMode(display=False) as forward:
        net(torch.randn(8, 8, 64, 64))
    with FlopCounterMode(display=False) as step:
        views = [torch.randn(8, 8, side, side, requires_grad=True) for side in sides]
        model.compute_loss(model(views), torch.arange(8)).backward()
    counted = step.get_total_flops() / forward.get_total_flops()
    assert counted == pytest.approx(by_hand, rel=0.05)  # heads and loss are counted too


PER_VIEW = ["byol", "simsiam", "moco-v2", "moco-v3", "barlow-twins", "vicreg", "ressl", "sce"]


EITHER = ["simclr", "nnclr", "swav"]


@pytest.mark.parametrize(
    ("method", "alone"),
    [*[(name, True) for name in PER_VIEW + EITHER], *[(name, False) for name in EITHER]],
)
def test_batch_statistics_are_those_that_the_authors_had(method, alone, build):
    """One view's embeddings do not feel another view where each passes the networks alone."""
    options = {"symmetric": True} if method in ("moco-v2", "ressl", "sce") else {}
    model = build(method, **options | ({"view_statistics": alone} if method in EITHER else {}))
    views = [torch.randn(8, 1, 4, 4) for _ in model.method.views]
    before = model(views)
    after = model([views[0], *(3 + 2 * view for view in views[1:])])
    for name in before:
        equal = torch.allclose(before[name][0], after[name][0], atol=1e-6)
        assert equal == alone, name


def test_swavs_projector_normalises_the_crops_of_both_sizes_together():
    model = Model(method_class("swav")(projector=(6, 5)), Brightness(), num_images=10)
    views = [torch.randn(7, 1, size, size) for size in (8, 8, 4, 4)]
    embeddings = model(views)
    assert model.backbone.calls == [(14, 1, 8, 8), (14, 1, 4, 4)]
    features = torch.cat([model.backbone(view) for view in views])
    torch.testing.assert_close(embeddings["projection"].flatten(0, 1), model.online[1](features))
    apart = torch.cat([model.online[1](half) for half in features.chunk(2)])
    assert (embeddings["projection"].flatten(0, 1) - apart).abs().max() > 0.01


@pytest.mark.parametrize(
    ("method", "options", "rows"),
    [
        ("lorac", {}, [12]),
        ("moco-m", {}, [12]),
        ("jcl", {"key_views": 4}, [24]),
        ("moco-v2", {"symmetric": True}, [6, 6]),
    ],
)
def test_keys_that_are_shuffled_together(method, options, rows, build):
    """Keys of all views in one order, as the authors of LORAC and JCL have them; else each view
    alone.
    """
    model = build(method, norm_groups=2, **options)
    seen = []

    def recorded(network, images):
        seen.append(len(images))
        return network(images)

    model.shuffled = recorded
    embeddings = model([torch.randn(6, 1, 4, 4) for _ in model.method.views])
    assert seen == rows and embeddings["key"].shape[:2] == (sum(rows) // 6, 6)


@pytest.mark.parametrize("method", ["byol", "moco-v2", "moco-v3", "ressl", "sce", "lorac", "jcl"])
def test_momentum_encoder_follows_after_the_step(method, build):
    model = build(method, momentum=0.75)
    with torch.no_grad():
        for parameter in model.online.parameters():
            parameter.add_(1)
    embeddings = model([torch.randn(16, 1, 4, 4) for _ in model.method.views])
    model.after_step(embeddings, 0, 10)
    for own, online in zip(
        model.momentum_encoder.networks.parameters(), model.online.parameters(), strict=True
    ):
        torch.testing.assert_close(own, online - 0.75)


def test_only_the_momentum_encoder_has_split_statistics():
    class Normalised(nn.Module):
        num_features = 4

        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.BatchNorm1d(4))

        def forward(self, images):
            return self.net(images)

    torch.manual_seed(0)
    method = method_class("moco-v2")
    whole = Model(method(projector=(4,), queue_size=8), Normalised(), 10)
    split = Model(method(projector=(4,), queue_size=8, norm_groups=2), Normalised(), 10)
    split.load_state_dict(whole.state_dict())
    assert not any(isinstance(module, SplitBatchNorm) for module in split.online.modules())
    assert [
        module.groups
        for module in split.momentum_encoder.modules()
        if isinstance(module, SplitBatchNorm)
    ] == [2]
    views = [torch.randn(8, 1, 4, 4) for _ in range(2)]
    first, second = whole(views), split(views)
    assert torch.equal(first["projection"], second["projection"])
    # Each half of the shuffled batch is centred on its own: over the batch the mean is that of the
    # whole again.
    torch.testing.assert_close(first["key"].mean(1), second["key"].mean(1))
    assert (first["key"] - second["key"]).abs().max() > 0.01


LINEAR, NORM, FIXED, RELU = "linear", "norm", "norm without affine", "relu"
HIDDEN = [LINEAR, NORM, RELU]
HEADS = {
    "moco-v1": ([LINEAR], None),
    "moco-v2": ([LINEAR, RELU, LINEAR], None),
    "moco-m": ([LINEAR, RELU, LINEAR], None),
    "lorac": ([LINEAR, RELU, LINEAR], None),
    "lorac-bs": ([LINEAR, RELU, LINEAR], None),
    "jcl": ([LINEAR, RELU, LINEAR], None),
    "sce": ([*HIDDEN, LINEAR], None),
    "byol": ([*HIDDEN, LINEAR], [*HIDDEN, LINEAR]),
    "nnclr": ([*HIDDEN, LINEAR, NORM], [*HIDDEN, LINEAR]),
    "simsiam": ([*HIDDEN, LINEAR, FIXED], [*HIDDEN, LINEAR]),
    "moco-v3": ([*HIDDEN, LINEAR, FIXED], [*HIDDEN, LINEAR]),
}


def layers(head):
    kinds = {nn.Linear: LINEAR, nn.ReLU: RELU}
    return [
        FIXED if getattr(layer, "affine", True) is False else kinds.get(type(layer), NORM)
        for layer in head
    ]


@pytest.mark.parametrize("method", HEADS)
def test_normalisation_stands_where_the_paper_has_it(method):
    model = Model(method_class(method)(), Brightness(), num_images=10)
    projector, predictor = HEADS[method]
    assert layers(model.online[1]) == projector
    assert (model.predictor and layers(model.predictor)) == predictor
    if model.predictor:
        assert (model.predictor[-1].bias is None) == (method == "moco-v3")
