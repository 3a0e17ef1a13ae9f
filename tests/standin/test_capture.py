"""A step that a GPU captures and replays is the step without it, to the last bit.

A capture keeps every number of Python at its value and refuses to wait: a method whose step holds a
number that changes, or waits, ends here with other weights, or with the reason for which its steps
stay plain.
"""

import logging

import pytest
import torch

import nearfar
from nearfar.device import captures, setup_of
from nearfar.methods import Model, SimCLR, method_class, method_names
from nearfar.networks import build_backbone
from nearfar.training.capture import SWITCH, WARM_UP, TrainingStep, why_plain
from nearfar.training.loop import to_device
from nearfar.training.optimizers import build_optimizer, set_rates
from nearfar.training.processes import Process
from tests.standin.conftest import REAL
from tests.steps import at_step, same_runs

IMAGES, BATCH, SIZE, STEPS, EPOCHS = 40, 16, 8, 9, 2.0
OPTIMIZERS = ("sgd", "adamw", "lars", "muon")
PLAIN = dict.fromkeys(("lorac", "lorac-bs"), "torch's eigenvalues wait for the GPU")
"""Methods whose steps stay plain, and why."""
SETTINGS = dict(encoder="tiny", epochs=3, batch_size=16, held_out=16, log_every=1, lr=0.01)
SETTINGS |= dict(precision="32-true", seed=3)
TINY = {"queue_size": 24, "projector": (16, 8), "predictor": (16, 8), "num_prototypes": 20}
TINY |= {"num_directions": 8, "stored_from": 0}


def model_of(name, backbone="tiny", **options):
    """A method's networks, with small heads and queues."""
    torch.manual_seed(0)
    kind = method_class(name)
    method = kind.from_recipe("small")
    small = {key: value for key, value in TINY.items() if getattr(method, key, None)}
    method = kind.from_recipe("small", **(small | options))
    return Model(method, build_backbone(backbone, image_size=SIZE, channels=3), IMAGES)


def trained(model, device, optimizer="sgd", steps=STEPS, epochs=EPOCHS, size_of=None):
    """Losses, weights, state and monitored numbers after some steps; why they were plain, and how
    many were replayed.
    """
    process = Process(device)
    setup = to_device(process, model, "32-true", compiled=False)
    opt = build_optimizer(
        optimizer,
        model,
        lr=0.05,
        weight_decay=0.01,
        fused=setup.fused.value,
        on_device=setup.captured.value,
    )
    take_step, losses, replayed = TrainingStep(process, model, opt, BATCH, clip=1.0), [], 0
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        index = torch.randperm(IMAGES, generator=generator)[:BATCH].to(device)
        side = SIZE if size_of is None else size_of(step)
        views = [
            torch.randn(BATCH, 3, side, side, generator=generator).to(device)
            for _ in model.method.views
        ]
        epoch = epochs * step / steps
        set_rates(opt, 0.05 / (1 + step), 0.05)
        model.set_schedules(epoch, epochs)
        model.train()
        losses.append(
            take_step(lambda rows, v=views: [x[rows] for x in v], index, 7 * step, epoch, epochs)
        )
        replayed += take_step.is_captured
    state = [value for values in opt.state.values() for value in values.values()]
    held = [*model.state_dict().values(), *state]
    kept = [value.cpu() for value in [*losses, *held] if isinstance(value, torch.Tensor)]
    monitored = getattr(model.loss, "monitored", {}).values()
    return kept + [value.cpu() for value in monitored], take_step.plain_because, replayed


@pytest.fixture(autouse=True)
def exact(device):
    """The same bits each time on a GPU too."""
    if not captures(device):
        pytest.skip("this GPU has no graphs")
    torch.use_deterministic_algorithms(REAL)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def compared(device, monkeypatch):
    """A function that trains with plain steps and with captured ones, asserts that they are the
    same, and returns why they were plain, and how many were replayed.
    """

    def compare(make, *given, **options):
        with monkeypatch.context() as patch:
            patch.setenv(SWITCH, "plain")
            wanted, because, replayed = trained(make(), device, *given, **options)
        assert (because, replayed) == (f"{SWITCH}=plain", 0)
        kept, because, replayed = trained(make(), device, *given, **options)
        assert len(kept) == len(wanted)
        assert all(torch.equal(value, other) for value, other in zip(kept, wanted, strict=True))
        return because, replayed

    return compare


@pytest.mark.parametrize("name", method_names())
@pytest.mark.slow
def test_captured_steps_of_a_method_are_its_plain_steps(name, compared):
    """The rate moves in every step, momentum and schedules with the epochs."""
    optimizer = OPTIMIZERS[method_names().index(name) % len(OPTIMIZERS)]
    because, replayed = compared(lambda: model_of(name), optimizer)
    assert because == PLAIN.get(name, "")
    # in the first epoch JCL has another lambda than in the second, and SwAV's prototypes rest
    changes = name in ("jcl", "swav")
    assert replayed == (0 if because else STEPS - WARM_UP * (1 + changes))


VARIANTS = {
    "a queue that fills": ("swav", {"stored": 32, "stored_from": 0, "frozen_epochs": 0}),
    "shuffled groups": ("moco-v1", {"norm_groups": 4}),
    "several negatives": ("saclr", {"scale": "row", "negatives": 3}),
    "a learned temperature": ("simclr", {"learn_temperature": True}),
    "dropout": ("byol", {"backbone": "test_resnet(drop_path_rate=0.5)"}),
}


@pytest.mark.parametrize("case", VARIANTS)
@pytest.mark.slow
def test_captured_steps_with_state_and_random_numbers_are_the_plain_steps(case, compared):
    name, options = VARIANTS[case]
    because, replayed = compared(lambda: model_of(name, **options))
    # two steps fill SwAV's queue, and the next is the first without a change
    assert (because, replayed) == ("", STEPS - WARM_UP - 2 * (case == "a queue that fills"))


@pytest.mark.slow
def test_another_shape_drops_the_graph_and_makes_a_new_one(compared):
    because, replayed = compared(
        lambda: model_of("simclr"), steps=12, size_of=lambda step: SIZE if step < 6 else 2 * SIZE
    )
    assert (because, replayed) == ("", 12 - 2 * WARM_UP)


def test_a_network_that_waits_is_trained_by_plain_steps_and_says_so_once(compared, caplog):
    def look(module, given, out):
        out.sum().item()

    def waiting():
        model = model_of("simclr")
        model.backbone.register_forward_hook(look)
        return model

    with caplog.at_level(logging.INFO, logger="nearfar"):
        because, replayed = compared(waiting)
    assert replayed == 0 and because
    [line] = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    assert because in line


class OwnBackbone(torch.nn.Module):
    """A network of the user's own, which may count its steps."""

    num_features = 4

    def forward(self, images):
        return images.mean((2, 3))


def test_steps_that_no_graph_can_hold_are_plain_for_a_reason(device, monkeypatch):
    model = model_of("simclr")

    def because(optimizer="sgd", model=model, precision="32-true", world=1, **options):
        process = Process(device, precision, world_size=world)
        held = build_optimizer(
            optimizer, model.to(device), lr=0.1, weight_decay=0, fused=True, on_device=True
        )
        return why_plain(process, model, held, **options)

    assert because() == because("adamw") == because("lars") == because("muon") == ""
    assert "micro-batches" in because(micro_batch=8)
    assert "processes" in because(world=2)
    assert "number of Python" in because("larc")
    assert because(precision="16-mixed") == setup_of(device, "16-mixed").captured.reason
    assert "tests" in because(model=Model(SimCLR(), OwnBackbone(), IMAGES))
    monkeypatch.setenv(SWITCH, "plain")
    assert SWITCH in because()
    on_cpu = torch.device("cpu")
    assert "CPU" in why_plain(
        Process(on_cpu), model, build_optimizer("sgd", model, lr=1, weight_decay=0)
    )


@pytest.mark.parametrize("options", [dict(method="byol", optimizer="muon"), dict(method="saclr")])
@pytest.mark.slow
def test_a_captured_run_that_is_resumed_is_one_without_graphs(
    options, images_file, tmp_path, monkeypatch
):
    def begin(name, stops=()):
        with at_step(*stops):
            return nearfar.pretrain(
                images_file, out=tmp_path / name, accelerator="gpu", **SETTINGS, **options
            )

    with pytest.raises(nearfar.TrainingStopped):
        begin("parts", stops=[6])
    parts, whole = nearfar.resume(tmp_path / "parts"), begin("whole")
    monkeypatch.setenv(SWITCH, "plain")
    same_runs(parts, whole)
    same_runs(begin("plain"), whole)


LAUNCHES = {
    "simclr": (133, 2),
    "saclr": (202, 3),
    "sogclr": (156, 2),
    "byol": (356, 2),
    "moco-v2": (217, 2),
    "swav": (175, 2),
}
"""Of a plain step of the small net, views and rates aside, and of a replayed one beside its graph, at
most; they may only fall.
"""


@pytest.mark.skipif(REAL, reason="the stand-in counts launches")
@pytest.mark.parametrize("name", LAUNCHES)
@pytest.mark.slow
def test_a_step_launches_no_more_than_before(name, device):
    from tests.standin.device import launches, synchronisations

    model = model_of(name, "small")
    to_device(Process(device), model, "32-true", compiled=False)
    optimizer = build_optimizer("sgd", model, lr=0.1, weight_decay=0, fused=True, on_device=True)
    take_step = TrainingStep(Process(device), model, optimizer, BATCH)
    views = [torch.randn(BATCH, 3, SIZE, SIZE).to(device) for _ in model.method.views]
    index = torch.arange(BATCH).to(device)
    counts = {}
    for step in range(WARM_UP + 2):
        model.set_schedules(1.0, 4.0)
        with launches() as made, synchronisations() as waits:
            take_step(lambda rows: views, index, step, 1.0, 4.0)
        counts[take_step.is_captured] = made.total()
        assert waits == []
    assert (counts[False], counts[True]) == LAUNCHES[name]
