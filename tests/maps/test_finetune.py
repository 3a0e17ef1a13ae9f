import pytest
import torch

from nearfar.data import open_images
from nearfar.evaluation import extract
from nearfar.maps import finetune_map, fit_projector
from nearfar.networks import Encoder, build_backbone
from nearfar.views import View, ViewPlan

PLAN = ViewPlan("crops", (View(scale=(0.5, 1.0)), View(scale=(0.5, 1.0))))


@pytest.fixture(scope="module")
def start(images_file):
    """Images, an encoder of random weights and a projector that was fitted to it."""
    torch.manual_seed(0)
    images = open_images(images_file, image_size=8, channels=1)
    encoder = Encoder(build_backbone("small", image_size=8, channels=1), 8, 1, images.mean, images.std).eval()
    seen = torch.stack([extract(encoder, images.gather(torch.arange(80)).roll(shift, 3)) for shift in (0, 1)])
    return images, encoder, fit_projector(seen, epochs=5)


def state(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(first, second):
    return all(torch.equal(value, second[name]) for name, value in first.items())


def test_all_layers_move_those_given_stay_and_the_places_are_centred(start):
    images, encoder, projector = start
    before = state(encoder), state(projector)
    steps = []
    net, head = finetune_map(encoder, projector, images, PLAN, epochs=2, progress=lambda *at: steps.append(at))
    assert same(before[0], state(encoder)) and same(before[1], state(projector))
    assert steps == [(1, 2), (2, 2)]  # 80 images are one batch
    for module, old in ((net, encoder), (head.net, projector.net)):
        pairs = zip(module.parameters(), old.parameters(), strict=True)
        assert all(not torch.equal(a, b) and not a.requires_grad for a, b in pairs)
    assert not net.training
    places = head(extract(net, images))
    assert places.mean(0).abs().max() < 1e-3 * places.std()
    assert torch.cov(places.T)[0, 1].abs() < 1e-3 * places.var()


def test_seed_decides_alone_and_torch_s_random_state_is_kept(start):
    images, encoder, projector = start

    def places(seed):
        net, head = finetune_map(encoder, projector, images, PLAN, epochs=1, seed=seed)
        return head(extract(net, images))

    kept = torch.get_rng_state()
    first = places(1)
    assert torch.equal(torch.get_rng_state(), kept)
    torch.manual_seed(3)
    assert torch.equal(places(1), first)
    assert not torch.equal(places(2), first)


def test_one_image_is_no_map(start):
    images, encoder, projector = start
    with pytest.raises(ValueError, match="at least two images"):
        finetune_map(encoder, projector, images.subset([0]), PLAN)
