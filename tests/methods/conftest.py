"""Tiny models of every method, and their plain forms in references_methods.py."""

import runpy
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from nearfar.methods import Model, method_class, method_names

loaded = runpy.run_path(str(Path(__file__).with_name("references_methods.py")))
REFERENCES, VARIANTS = loaded["REFERENCES"], loaded["VARIANTS"]

TINY = {
    "projector": (32, 16),
    "predictor": (32, 16),
    "num_prototypes": 20,
    "momentum": 0.9,
    "small_views": 1,
}
OWN = {
    "ressl": {"small_views": 0},
    "sce": {"predictor": (), "small_views": 0},
    "simclr": {"small_views": 0},
    "simsiam": {"predictor": (8, 16)},
    "wmse": {"projector": (32, 4)},  # whitening needs more images than features
}


class Pixels(nn.Module):
    """A linear backbone on images of 4 x 4 pixels."""

    def __init__(self, num_features):
        super().__init__()
        self.num_features = num_features
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(16, num_features))

    def forward(self, images):
        return self.net(images)


def pytest_generate_tests(metafunc):
    """Run a test for every listed method (argument `name`), or for each of its variants (and
    `variant`).
    """
    if "variant" in metafunc.fixturenames:
        cases = [(name, variant) for name in method_names() for variant in VARIANTS.get(name, [{}])]
        metafunc.parametrize(
            ("name", "variant"), cases, ids=[f"{n}-{v}" if v else n for n, v in cases]
        )
    elif "name" in metafunc.fixturenames:
        metafunc.parametrize("name", method_names())


@pytest.fixture(scope="session")
def references():
    return REFERENCES


@pytest.fixture(scope="session")
def build():
    """Make a model of a method on 4 x 4 pixels, with tiny networks unless options say otherwise."""

    def make(name, num_images=20, queue_size=9, seed=0, **options):
        torch.manual_seed(seed)
        cls = method_class(name)
        numbers = TINY | {"queue_size": queue_size} | OWN.get(name, {})
        known = {field.name for field in fields(cls)}
        numbers = {key: value for key, value in numbers.items() if key in known}
        return Model(cls(**(numbers | options)), Pixels(32), num_images)

    return make


@pytest.fixture(scope="session")
def fake_embeddings():
    """Embeddings [views, batch, dim] in float64 such as a model returns; rows of one image have a
    part in common.
    """

    def make(model, batch, seed):
        generator = torch.Generator().manual_seed(seed)
        views = [torch.zeros(2, 1, 4, 4)] * len(model.method.views)
        with torch.no_grad():
            shapes = {name: rows.shape for name, rows in model.eval()(views).items()}
        model.train()
        dim = next(iter(shapes.values()))[2]
        common = torch.randn(batch, dim, generator=generator, dtype=torch.float64)
        return {
            name: common + torch.randn(count, batch, dim, generator=generator, dtype=torch.float64)
            for name, (count, _, _) in shapes.items()
        }

    return make


class SixteenImages:
    """Images with a pattern of 1 and -1 in eight pixels and, new in every view, noise as loud in
    the other eight.
    """

    def __init__(self):
        self.generator = torch.Generator().manual_seed(1)
        patterns = torch.ones(1, 1)
        for _ in range(3):  # eight orthogonal patterns and their opposites
            patterns = torch.cat(
                (torch.cat((patterns, patterns), 1), torch.cat((patterns, -patterns), 1))
            )
        self.patterns = torch.cat((patterns, -patterns)).view(16, 1, 2, 4)

    def view(self):
        noise = torch.randn(16, 1, 4, 4, generator=self.generator)
        noise[:, :, :2] = self.patterns + noise[:, :, :2] / 10
        return noise

    def recognised(self, model):
        """Count the images whose other view is nearer than every other image."""
        with torch.no_grad():
            first, second = (F.normalize(model.online(self.view()), dim=1) for _ in range(2))
        similarity = first @ second.T
        own = similarity.diagonal().clone()
        return int((own > similarity.fill_diagonal_(-2).max(1).values).sum())


@pytest.fixture
def sixteen_images():
    return SixteenImages()
