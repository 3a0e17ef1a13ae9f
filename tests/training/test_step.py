"""A step that runs out of memory is repeated in smaller parts, and nothing of it is lost."""

from dataclasses import fields
from functools import cache

import pytest
import torch
from torch import nn

from nearfar.methods import Model, method_class, method_names
from nearfar.training.processes import Process
from nearfar.training.step import GradientStep
from tests.steps import descend

BATCH, IMAGES, STEPS = 13, 20, 3
METHODS = {
    "simclr": {},
    "saclr": dict(scale="row", negatives=2),
    "sogclr": {},
    "moco-v2": dict(queue_size=20),
    "swav": dict(num_prototypes=10, stored=8, stored_from=0.0),
}


class Backbone(nn.Module):
    """A net with dropout and no memory for the graph of more than `limit` images; the first
    `spared` graphs do fit.
    """

    num_features = 12

    def __init__(self, limit, spared):
        super().__init__()
        self.linear, self.dropout = nn.Linear(16, 12), nn.Dropout(0.2)
        self.register_buffer("seen", torch.zeros(()))
        self.limit, self.spared = limit, spared

    def forward(self, images):
        self.seen += len(images)
        if torch.is_grad_enabled():
            self.spared -= 1
            if (
                len(images) > self.limit and self.spared < 0
            ):  # with 7 images only once the loss has moved its state
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return self.dropout(self.linear(images.flatten(1))).tanh()


def train(name, micro, fits=BATCH, spared=0, drop=0.0, norm=None):
    """Train on a machine whose memory is enough for all views of `fits` images; norm: None,
    "frozen" or "live".
    """
    torch.manual_seed(0)
    method = method_class(name)(projector=(16, 6), **METHODS[name])
    views = len(method.setup(IMAGES).pairing.online_views)
    model = Model(method, Backbone(fits * views, spared), IMAGES).double()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = drop
    for parent in list(model.modules()):
        for key, child in parent.named_children():
            if isinstance(child, nn.BatchNorm1d) and norm is None:
                setattr(parent, key, nn.Identity())
            elif isinstance(child, nn.BatchNorm1d) and norm == "frozen":
                child.eval().running_mean.copy_(torch.linspace(-0.1, 0.1, child.num_features))
    return descend(model, micro, BATCH, IMAGES, STEPS)


def check(got, expected):
    assert got.keys() == expected.keys()
    for key in [key for key in expected if not key.endswith("seen") or "loss" in key]:
        torch.testing.assert_close(
            got[key], expected[key], rtol=1e-9, atol=1e-11, msg=lambda text, k=key: f"{k}: {text}"
        )


@pytest.mark.parametrize("spared", [0, 1], ids=["at once", "later"])
@pytest.mark.parametrize("name", METHODS)
def test_auto_halves_until_it_fits_and_loses_nothing(name, spared):
    """The graph of 4 images fits and that of 7 does not: 13 -> 7 -> 4, with the losses and states
    of plain steps.
    """
    gradient_of, state = train(name, "auto", fits=4, spared=spared)
    assert gradient_of.micro_batch == 4
    check(state, train(name, None)[1])


@pytest.mark.parametrize("name", METHODS)
def test_a_step_repeated_is_the_step_in_parts(name):
    """Dropout samples, running counts and all: what the failed attempts left behind does not
    show.
    """
    _, repeated = train(name, "auto", fits=4, drop=0.2)
    _, parts = train(name, 4, drop=0.2)
    assert repeated.keys() == parts.keys()
    assert all(torch.equal(repeated[key], parts[key]) for key in parts)


def test_frozen_statistics_make_micro_batches_exact():
    """Batch normalisation that does not look at the batch leaves three steps of training the
    same.
    """
    check(train("simclr", 4, norm="frozen")[1], train("simclr", None, norm="frozen")[1])


def test_running_statistics_move_once_for_each_micro_batch():
    for micro, parts in ((None, 1), (4, 4)):
        counts = [
            value
            for key, value in train("simclr", micro, norm="live")[1].items()
            if "tracked" in key
        ]
        assert counts and all(count == STEPS * parts for count in counts)


def test_both_passes_see_the_same_views_and_dropout(monkeypatch):
    seen = {False: [], True: []}
    forward = Backbone.forward

    def recorded(self, images):
        rows = forward(self, images)
        seen[torch.is_grad_enabled()].append((images.clone(), rows.detach()))
        return rows

    monkeypatch.setattr(Backbone, "forward", recorded)
    train("simclr", 5, drop=0.5)
    assert len(seen[False]) == len(seen[True]) == 3 * STEPS
    for without_graph, with_graph in zip(seen[False], seen[True], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(without_graph, with_graph, strict=True))


@pytest.mark.parametrize(
    ("micro", "parts"), [(4, [4, 3, 3, 3]), (6, [5, 4, 4]), (1, [3, 2, 2, 2, 2, 2])]
)
def test_parts_are_of_nearly_equal_size_and_no_image_is_alone(micro, parts, monkeypatch):
    """A single image has no batch statistics."""
    sizes = []
    forward = Backbone.forward
    monkeypatch.setattr(
        Backbone, "forward", lambda self, x: sizes.append(len(x) // 2) or forward(self, x)
    )
    train("simclr", micro, norm="live")
    assert sizes == 2 * STEPS * parts


def test_one_image_that_does_not_fit_is_an_error_and_a_number_does_not_back_off():
    for micro, fits in (("auto", 0.5), (4, 3)):
        with pytest.raises(torch.OutOfMemoryError):
            train("simclr", micro, fits=fits)


class Normalised(nn.Module):
    """A backbone with batch normalisation, and a mask of infinities as some nets have."""

    num_features = 12

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.BatchNorm1d(12))
        self.register_buffer("mask", torch.full((2,), -torch.inf))

    def forward(self, images):
        return self.net(images).tanh()


NARROW = dict(
    projector=(16, 6), predictor=(16, 6), queue_size=20, num_prototypes=10, stored=12, stored_from=0
)


def with_a_bad_batch(name, bad, rows):
    """Train as under a scaler of gradients, which leaves out a step whose gradient is not finite.

    bad: what one batch holds; None: that step is never taken. Returns losses and state.
    """
    torch.manual_seed(0)
    kind = method_class(name)
    own = {"predictor": ()} if name == "sce" else {}
    own |= {"projector": (16, 4)} if name == "wmse" else {}
    known = {field.name for field in fields(kind)}
    method = kind(**{key: value for key, value in (NARROW | own).items() if key in known})
    model = Model(method, Normalised(), IMAGES)
    gradient_of = GradientStep(Process(torch.device("cpu")), model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    made, losses = torch.Generator().manual_seed(1), []
    for step in range(5):
        views = torch.randn(len(method.views), BATCH, 1, 4, 4, generator=made)
        index = torch.randperm(IMAGES, generator=made)[:BATCH]
        if step == 2 and bad is None:
            if model.momentum_encoder is not None:  # it goes on towards the same networks
                model.momentum_encoder.update(model.online, model.setup.momentum(step, 5))
            continue
        if step == 2:
            views[:, rows] = bad
        model.train().set_schedules(step, 5)
        optimizer.zero_grad()
        loss, embeddings = gradient_of(lambda rows, v=views: list(v[:, rows]), index, BATCH, step)
        trained = [p.grad for p in model.parameters() if p.grad is not None]
        if all(grad.isfinite().all() for grad in trained):
            optimizer.step()
        model.after_step(embeddings, step, 5)
        assert loss.isfinite() == (step != 2)
        losses += [loss] if step != 2 else []
    return {"losses": torch.stack(losses), **model.state_dict()}


@cache
def without_that_step(name):
    return with_a_bad_batch(name, None, slice(None))


@pytest.mark.parametrize(
    ("bad", "rows"),
    [(torch.inf, slice(3, 4)), (torch.nan, slice(None))],
    ids=["one image infinite", "all images NaN"],
)
@pytest.mark.parametrize("name", method_names())
def test_one_bad_batch_leaves_no_trace(name, bad, rows):
    left, wanted = with_a_bad_batch(name, bad, rows), without_that_step(name)
    for key, value in wanted.items():
        counted = "num_batches_tracked" in key or "extra_state" in key  # how often, not what
        if name == "swav" and not counted:  # its unit rows are divided by their length once more
            torch.testing.assert_close(left[key], value, rtol=1e-4, atol=1e-6)
        elif not counted:
            assert torch.equal(left[key], value), key
        assert left[key].isfinite().all() or key.endswith("mask"), key


@pytest.mark.parametrize("micro", [None, 5])
def test_a_loss_that_trains_nothing_is_refused(micro):
    """It detaches the embeddings, or has a gradient for a parameter of its own alone."""

    class Detached(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self, first, second):
            return (self.factor * (first - second).square().detach()).mean()

    model = Model(method_class("simclr")(projector=(16, 6)), Backbone(2 * BATCH, 0), IMAGES)
    gradient_of = GradientStep(Process(torch.device("cpu")), model, micro)
    for factor in (1.0, nn.Parameter(torch.ones(()))):
        model.loss = Detached(factor)
        with pytest.raises(ValueError, match="Detached has no gradient"):
            gradient_of(
                lambda rows: list(torch.randn(2, BATCH, 16)[:, rows]),
                torch.arange(BATCH),
                BATCH,
                0,
            )
