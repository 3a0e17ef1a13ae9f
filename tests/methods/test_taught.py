"""With a teacher every method has the relational term, beside its loss or as its targets, exactly."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import references as plain
from nearfar.methods import Model, Teacher, method_class
from tests.methods.conftest import OWN, TINY, Pixels

IMAGES, BATCH, TEACHER = 20, 12, Teacher(weight=0.3, temperature=0.2)
IN_PLACE = ("sce", "ressl")


def build(name, teacher=TEACHER, **options):
    torch.manual_seed(0)
    cls = method_class(name)
    numbers = TINY | {"queue_size": 9} | OWN.get(name, {}) | options
    known = {key: value for key, value in numbers.items() if key in cls.__dataclass_fields__}
    model = Model(cls(**known), Pixels(32), IMAGES, teacher).double()
    model.teacher_rows = torch.randn(IMAGES, 7, generator=torch.Generator().manual_seed(1))
    return model


def embedded(model, seed=2):
    """Embeddings of views that have something in common, and the numbers of their images."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(BATCH, 1, 4, 4, generator=generator, dtype=torch.float64)
    views = [
        common + torch.randn(BATCH, 1, 4, 4, generator=generator, dtype=torch.float64)
        for _ in model.method.views
    ]
    return model(views), torch.randperm(IMAGES, generator=generator)[:BATCH]


def test_the_term_is_weighed_against_the_loss_and_takes_the_place_of_targets(name):
    torch.manual_seed(3)
    model = build(name)
    embeddings, index = embedded(model)
    views, rows = embeddings["projection"], model.teacher_rows[index].double()
    torch.manual_seed(4)
    value = model.compute_loss(embeddings, index)
    if name == "sce":
        expected = plain.teacher_sce(views[0], views[1], rows, 0.1, 0.2, 0.5)
    elif name == "ressl":
        expected = masked(views[0], views[1], rows)
    else:
        alone = build(name, None)
        shown, _ = embedded(alone)
        kept = {kind: rows[: len(shown[kind])] for kind, rows in shown.items()}
        torch.manual_seed(4)
        term = plain.teacher_sce(views[0], views[1], rows, 0.1, 0.2, 0.0)
        expected = 0.7 * alone.compute_loss(kept, index) + 0.3 * term
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-8)


def masked(z1, z2, teacher):
    """Cross entropy of both ways with the positive on neither side."""
    own = torch.eye(BATCH, dtype=torch.bool)
    x, y, rows = plain.unit(z1), plain.unit(z2), plain.unit(teacher)
    target = (rows @ rows.T / 0.2).masked_fill(own, -torch.inf).softmax(1)
    logits = (x @ y.T / 0.1).masked_fill(own, -1e9)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


@pytest.mark.parametrize("taken", IN_PLACE)
def test_where_the_teacher_makes_the_targets_there_are_no_keys(taken):
    model = build(taken)
    assert model.momentum_encoder is None and not model.queues
    embeddings, _ = embedded(model)
    assert embeddings.keys() == {"projection"} and len(embeddings["projection"]) == 2
    assert not isinstance(model.setup.beside, nn.Module)
    assert model.method.taught_views == ("strong", "strong")


def test_the_teacher_is_in_no_state_and_gets_no_gradient(name):
    model = build(name)
    model.teacher_rows.requires_grad_()
    assert not [key for key in model.state_dict() if "teacher" in key or "beside" in key]
    embeddings, index = embedded(model)
    model.compute_loss(embeddings, index).backward()
    assert model.teacher_rows.grad is None
    model.teacher_rows = None
    with pytest.raises(ValueError, match="set teacher_rows"):
        model.compute_loss(*embedded(model))


def test_small_views_do_not_go_with_targets_of_a_teacher():
    for name in IN_PLACE:
        with pytest.raises(ValueError, match="not 3: leave `small_views`"):
            build(name, small_views=1)


def purity(name, teacher):
    """The share of images whose nearest other one is of their class, after 60 steps on images of
    which the class is a small part.
    """
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(96) % 4
    own = torch.randn(96, 16, generator=generator, dtype=torch.float64)
    patterns = torch.randn(4, 16, generator=generator, dtype=torch.float64)
    images = own + 0.7 * patterns[labels]
    model = build(name, teacher)
    model.teacher_rows = F.one_hot(labels).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        index = torch.randperm(96, generator=generator)[:48]
        views = []
        for _ in model.method.views:
            noise = torch.randn(48, 16, generator=generator, dtype=torch.float64)
            views.append((images[index] + 0.3 * noise).view(48, 1, 4, 4))
        embeddings = model(views)
        optimizer.zero_grad()
        model.compute_loss(embeddings, index).backward()
        optimizer.step()
        model.after_step(embeddings, 0, 1)
    with torch.no_grad():
        x = F.normalize(model.backbone(images.view(96, 1, 4, 4)), dim=1)
    nearest = (x @ x.T).fill_diagonal_(-1).argmax(1)
    return float((labels[nearest] == labels).double().mean())


@pytest.mark.parametrize("taken", IN_PLACE)
def test_a_teacher_that_knows_the_classes_teaches_them(taken):
    assert purity(taken, Teacher()) > purity(taken, None) + 0.1
