"""Recipes hold what the papers and their released scripts say: numbers read there, one by one."""

import pytest

from nearfar.methods import method_class
from nearfar.views import compose

FACTS = {
    # Google's code: projection heads end with batch norm; appendix B.9: lr 1.0 for 256, batch 512,
    # t 0.5, ResNet-50. Its loss is the sum of both views' means, twice ours: 1e-6 there, and one
    # rate for all.
    ("simclr", "cifar"): dict(
        encoder="resnet50",
        lr=1.0,
        batch_size=512,
        temperature=0.5,
        output_norm=True,
        vector_lr=2.0,
        weight_decay=5e-7,
    ),
    ("simclr", "imagenet"): dict(
        encoder="resnet50",
        lr=0.3,
        batch_size=4096,
        sync_batch_norm=True,
        vector_lr=2.0,
        weight_decay=5e-7,
    ),
    # BYOL: 1.5e-6 on the sum of both directions.
    ("byol", "imagenet"): dict(lr=0.2, vector_lr=2.0, weight_decay=1.5e-6 / 2),
    # main_vicreg.py: the rate ends at 0.001 of itself; moco-v3's CONFIG.md: 1e-6 for 100 epochs.
    ("vicreg", "imagenet"): dict(lr=0.2, final_lr=0.001, weight_decay=1e-6),
    ("moco-v3", "imagenet"): dict(lr=0.6, epochs=100, weight_decay=1e-6),
    # Released script-weights 0.2, learning-rate-biases 0.0048.
    ("barlow-twins", "imagenet"): dict(
        lr=0.2, vector_lr=0.0048 / 0.2, views=None, optimizer="lars"
    ),
    # solo-learn's barlow.yaml (lr 0.3, decay 1e-4, a tenth of the loss), byol.yaml (lr 1.0, decay
    # 1e-5, the sum of both directions) and vicreg.yaml (25, the sum of both hinges).
    ("barlow-twins", "cifar"): dict(
        lr=0.03, weight_decay=1e-3, optimizer="larc-clip", batch_size=256
    ),
    ("byol", "cifar"): dict(
        lr=2.0, weight_decay=5e-6, projector=(4096, 256), predictor=(4096, 256), momentum=0.99
    ),
    ("vicreg", "cifar"): dict(
        lr=0.3, variance=50.0, invariance=25.0, views="solo-vicreg", warmup_epochs=10
    ),
    # solo-learn's nnclr.yaml and swav.sh.
    ("nnclr", "cifar"): dict(
        lr=0.4,
        weight_decay=1e-5,
        queue_size=65536,
        views="solo-alpha+solo-beta",
        epochs=1000,
        view_statistics=True,
    ),
    ("swav", "cifar"): dict(
        lr=0.6,
        weight_decay=1e-6,
        stored=3840,
        stored_from=50,
        frozen_epochs=2,
        small_views=0,
        view_statistics=True,
    ),
    # ReSSL's data/augmentation.py: crops of 224, 192, 160, 128 and 96 px, the same colour for all.
    ("ressl", "imagenet-multi-crop"): dict(
        small_views=4,
        queue_size=131072,
        lr=0.05,
        norm_groups=8,
        online_norm_groups=8,
        sync_batch_norm=False,
    ),
    # ressl.py: no decay for "bn" and "bias"; network/head.py: no normalisation.
    ("ressl", "imagenet"): dict(decay_all=False, hidden_norm=False, weight_decay=1e-4),
    ("ressl", "cifar"): dict(decay_all=False, hidden_norm=True, weight_decay=5e-4),
    ("swav", "imagenet"): dict(
        optimizer="larc", num_prototypes=3000, small_views=6, warmup_start=0.3 / 4.8
    ),
    # main_lorac.py: SyncBN for the queries' encoder, keys shuffled over 4 GPUs.
    ("lorac", "imagenet"): dict(
        optimizer="larc", lr=1.8, final_lr=0.01, norm_groups=4, sync_batch_norm=True, beta=4.0
    ),
    ("moco-m", "imagenet"): dict(norm_groups=4, sync_batch_norm=True),
    ("saclr", "cifar"): dict(
        encoder="resnet18",
        projector=(8192, 8192, 8192),
        warmup_epochs=10,
        lr=0.03,
        batch_size=128,
        epochs=1000,
        final_lr=0.001,
    ),
    # Released script main_saclr.py: its two transforms are BYOL's, in the crops of torchvision's
    # default.
    ("saclr", "imagenet-released"): dict(
        encoder="resnet50",
        views="byol-alpha+byol-beta",
        lr=0.075,
        lr_scaling="sqrt",
        projector=(8192, 8192, 8192),
    ),
    ("saclr", "imagenet-released-moco"): dict(views="strong", final_lr=0.001, weight_decay=1e-4),
    ("jcl", "imagenet"): dict(key_views=4, norm_groups=8),
    ("moco-v1", "imagenet"): dict(
        lr_drops=(120, 160), views="moco-v1", queue_size=65536, norm_groups=8
    ),
    ("moco-v2", "cifar"): dict(
        projector=(128,),
        norm_groups=8,
        online_norm_groups=8,
        views="simclr-cifar",
        warmup_epochs=0,
        temperature=0.1,
    ),
    ("wmse", "cifar"): dict(
        optimizer="adam",
        decay_all=True,
        warmup_epochs=500 * 512 / 50000,
        weight_decay=1e-6,
        lr_drop=0.2,
    ),
    ("sigclr", "cifar"): dict(
        batch_size=128, lr=0.3, reference_batch=64, views=None, encoder="resnet18"
    ),
    # Released configurations: exclude_wd_norm and exclude_wd_bias False.
    ("sce", "cifar"): dict(
        encoder="resnet18", norm_groups=8, temperature=0.2, target_temperature=0.1, decay_all=True
    ),
    ("sce", "cifar100"): dict(decay_all=True, weight_decay=5e-4),
    ("sce", "tiny-imagenet"): dict(decay_all=True, weight_decay=5e-4),
    ("sce", "stl10"): dict(
        encoder="resnet18-small-stem",
        queue_size=16384,
        momentum=0.996,
        target_temperature=0.05,
        decay_all=True,
    ),
    ("sce", "imagenet100"): dict(lr=0.3, projector=(4096, 256), hidden_norm=False, batch_size=512),
    ("sce", "imagenet"): dict(lr=0.5, projector=(2048, 2048, 256), output_norm=True),
    ("sce", "imagenet-lars"): dict(
        optimizer="lars", batch_size=4096, symmetric=True, predictor=(4096, 256)
    ),
    ("sce", "imagenet-multi-crop"): dict(
        small_views=4, queue_size=65536, epochs=200, projector=(4096, 256)
    ),
    # projector_resnet50_mlp3_bn3.yaml, and the multi-crop configuration's own widths.
    ("sce", "imagenet-lars-released"): dict(
        projector=(2048, 2048, 256), predictor=(4096, 256), output_norm=True
    ),
    ("sce", "imagenet-multi-crop-released"): dict(
        projector=(4096, 4096, 256), predictor=(4096, 256), small_views=4
    ),
    ("simclr", "cifar-solo-learn"): dict(
        lr=0.4,
        optimizer="larc-clip",
        projector=(2048, 256),
        view_statistics=True,
        hidden_norm=False,
        weight_decay=1e-4,
    ),
    ("simsiam", "cifar-solo-learn"): dict(
        lr=0.5 / 2, weight_decay=2e-5, optimizer="sgd", epochs=1000
    ),  # 2 - 2 cos
    ("moco-v2", "cifar-solo-learn"): dict(
        lr=0.3, queue_size=32768, queue_per_view=True, final_momentum=0.999, symmetric=True
    ),
    ("ressl", "cifar-solo-learn"): dict(
        lr=0.05,
        projector=(4096, 256),
        momentum=0.99,
        final_momentum=1.0,
        hidden_norm=False,
        views="solo-ressl+solo-weak",
    ),
    # losses.py of iSogCLR: the sum of both views' means without 1 / t, twice our gradient; of
    # SogCLR 2 t times it.
    ("isogclr", "cifar"): dict(
        lr=0.8,
        optimizer="larc",
        highest=1.0,
        gradient_limit=3.0,
        projector=(8192, 8192, 8192),
        weight_decay=5e-4 / 2,
    ),
    ("isogclr", "imagenet"): dict(
        lr=1.2, weight_decay=1e-4 / 2, temperature=0.7, beta=0.8, lr_temperature=0.001
    ),
    ("sogclr", "cifar"): dict(lr=0.8, optimizer="larc", weight_decay=5e-4 / 0.6, temperature=0.3),
    ("sogclr", "imagenet"): dict(
        temperature=0.1, vector_lr=0.2, weight_decay=1e-6 / 0.2, views="byol-alpha"
    ),
}


@pytest.mark.parametrize(("method", "kind"), FACTS)
def test_numbers_are_those_that_were_read(method, kind):
    recipe = method_class(method).recipe(kind)
    built = method_class(method).from_recipe(kind)
    for key, value in FACTS[method, kind].items():
        number = (
            getattr(built, key) if hasattr(built, key) and key != "views" else getattr(recipe, key)
        )
        assert number == pytest.approx(value) if isinstance(value, float) else number == value, key


def test_every_paper_recipe_is_whole(name):
    """Encoder, views that exist at its size, protocol, and sources that name settings or numbers
    there are.
    """
    method = method_class(name)
    for key, recipe in method.recipes.items():
        if key == "small":
            continue
        built = method.from_recipe(key)
        assert recipe.encoder.startswith("resnet") and recipe.protocol, key
        views = recipe.views.split("+") if recipe.views else built.views
        compose(views, recipe.image_size or 32, 3)
        assert set(recipe.sources) <= set(vars(recipe)) | set(vars(built)), key


@pytest.mark.parametrize("method", ["byol", "barlow-twins", "vicreg", "sigclr"])
def test_crops_of_byol_and_those_after_it_start_at_8_percent(method):
    assert {view.scale for view in compose(method_class(method).views, 224, 3).views} == {
        (0.08, 1.0)
    }


def test_the_views_of_saclrs_released_script():
    first, second = compose(["byol-alpha", "byol-beta"], 224, 3).views
    for view in (first, second):
        assert (view.scale, view.flip, view.jitter, view.grayscale) == ((0.08, 1.0), 0.5, 0.8, 0.2)
        assert (view.brightness, view.contrast, view.saturation, view.hue) == (0.4, 0.4, 0.2, 0.1)
    assert (first.blur, first.solarize, second.blur, second.solarize) == (1.0, 0.0, 0.1, 0.2)


def test_the_views_of_solo_learns_configurations_for_cifar():
    """augmentations/symmetric.yaml, symmetric_weak.yaml and ressl.yaml: blur for half of the
    images.
    """
    colours = {"solo-swav": 0.8, "solo-moco": 0.4, "solo-ressl": 0.4, "solo-alpha": 0.4}
    for name, brightness in colours.items():
        view = compose([name], 32, 3).views[0]
        assert (view.scale, view.jitter, view.grayscale, view.brightness) == (
            (0.08, 1.0),
            0.8,
            0.2,
            brightness,
        ), name
        assert (view.blur, view.solarize) == (0.0 if name == "solo-alpha" else 0.5, 0.0), name
    assert [compose([name], 32, 3).views[0].saturation for name in colours] == [0.8, 0.4, 0.2, 0.2]


def test_the_views_of_sogclrs_released_code():
    view = compose([method_class("sogclr").recipe("imagenet").views], 224, 3).views[0]
    assert (view.scale, view.brightness, view.contrast, view.saturation, view.hue) == (
        (0.08, 1.0),
        0.4,
        0.4,
        0.2,
        0.1,
    )
    assert (view.jitter, view.grayscale, view.blur, view.solarize) == (0.8, 0.2, 1.0, 0.0)


def test_heads_without_normalisation_where_released_code_has_none():
    for method, recipe, layers in [
        ("simclr", "cifar-solo-learn", ["Linear", "ReLU", "Linear"]),
        ("ressl", "imagenet", ["Linear", "ReLU", "Linear"]),
        ("sce", "imagenet100", ["Linear", "ReLU", "Linear"]),
        ("sogclr", "imagenet", ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d"]),
    ]:
        head = method_class(method).from_recipe(recipe).setup(10).projector
        assert [type(layer).__name__ for layer in head.build(4)] == layers, method
    assert not head.output_affine
