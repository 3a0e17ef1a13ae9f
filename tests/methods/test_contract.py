"""Properties of every method that is listed; one without a naive reference fails."""

import copy
from contextlib import nullcontext

import pytest
import torch

from nearfar.methods import method_names

HALF_WAY = (2, 4)  # epoch, of epochs: every schedule has moved


def test_every_method_has_a_reference(references):
    assert sorted(references) == method_names()


def test_value_is_that_of_the_naive_reference(name, variant, references, build, fake_embeddings):
    model = build(name, **variant)
    model.set_schedules(*HALF_WAY)
    state = (
        {"queues": [queue().double() for queue in model.queues]}
        if model.queues or name == "sce"
        else {}
    )
    if name == "swav":
        state["prototypes"] = model.loss.prototypes.detach().double()
    reference = references[name](model.method, state, *HALF_WAY)
    # Two steps: the second sees what the first left in the queue and in the state of images 7, 3
    # and 19.
    for seed, index in ((1, [3, 7, 1, 19, 0, 12]), (2, [7, 2, 3, 5, 19, 11])):
        embeddings = fake_embeddings(model, 6, seed)
        expected = float(reference(embeddings, torch.tensor(index)))
        loss = model.compute_loss(embeddings, torch.tensor(index))
        assert loss.shape == () and loss.isfinite()
        assert loss.item() == pytest.approx(expected, rel=2e-6)
        model.after_step(embeddings, *HALF_WAY)


def test_gradient_reaches_all_that_is_trained_and_nothing_of_the_momentum_encoder(name, build):
    model = build(name)
    model.set_schedules(*HALF_WAY)
    generator = torch.Generator().manual_seed(5)
    views = [torch.randn(16, 1, 4, 4, generator=generator) for _ in model.method.views]
    embeddings = model(views)
    model.compute_loss(embeddings, torch.arange(16)).backward()
    trained = {
        key: parameter for key, parameter in model.named_parameters() if parameter.requires_grad
    }
    assert {key.split(".")[0] for key in trained} >= {"online"} | (
        {"predictor"} if model.predictor else set()
    )
    for key, parameter in trained.items():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key
        # The bias of a linear layer may be centred away by what follows; anything else must feel
        # the loss.
        assert (parameter.grad != 0).any() or (parameter.ndim == 1 and key.endswith("bias")), key
    if model.momentum_encoder is not None:
        assert not embeddings["key"].requires_grad
        assert all(
            not p.requires_grad and p.grad is None for p in model.momentum_encoder.parameters()
        )
        assert not any(key.startswith("momentum_encoder") for key in trained)


def test_saved_and_loaded_it_goes_on_exactly(name, build):
    images = torch.randn(20, 1, 4, 4, generator=torch.Generator().manual_seed(3))

    def train(model, optimizer, steps):
        losses = []
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            torch.manual_seed(step)
            rows = torch.randperm(20, generator=generator)[:16]
            views = [
                images[rows] + 0.3 * torch.randn(16, 1, 4, 4, generator=generator)
                for _ in model.method.views
            ]
            model.set_schedules(step / 2, 2)
            embeddings = model(views)
            loss = model.compute_loss(embeddings, rows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.after_step(embeddings, step / 2, 2)
            losses.append(loss.item())
        return losses

    def fresh(seed):
        options = {"stored": 16, "stored_from": 0} if name == "swav" else {}
        model = build(name, seed=seed, **options)
        trained = [p for p in model.parameters() if p.requires_grad]
        return model, torch.optim.SGD(trained, lr=0.1, momentum=0.9)

    model, optimizer = fresh(0)
    train(model, optimizer, [0, 1])
    saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    losses = train(model, optimizer, [2, 3])

    resumed, its_optimizer = fresh(1)
    resumed.load_state_dict(saved["model"])
    its_optimizer.load_state_dict(saved["optimizer"])
    assert train(resumed, its_optimizer, [2, 3]) == losses
    for key, value in model.state_dict().items():
        assert torch.equal(resumed.state_dict()[key], value), key


@pytest.mark.slow
def test_sixteen_images_are_overfitted(name, build, sixteen_images):
    """After training, the other view of every image is nearer to it than any other image's."""
    model = build(name, num_images=16, queue_size=64)
    assert sixteen_images.recognised(model) < 10
    steps, lr = (300, 0.01) if name == "simsiam" else (100, 0.03)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
    for step in range(steps):
        model.set_schedules(step / 20, steps // 20)
        embeddings = model([sixteen_images.view() for _ in model.method.views])
        loss = model.compute_loss(embeddings, torch.arange(16))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.after_step(embeddings, step / 20, steps // 20)
    assert sixteen_images.recognised(model) == 16


def test_a_method_says_whether_it_needs_an_index(name, variant, build, fake_embeddings):
    model = build(name, **variant)
    model.set_schedules(*HALF_WAY)
    with pytest.raises(ValueError, match="index") if model.setup.needs_index else nullcontext():
        assert model.compute_loss(fake_embeddings(model, 6, 1), None).isfinite()
