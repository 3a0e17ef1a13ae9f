"""Lines on a device: which one a run takes, what it lacks, and how a run computes
there.
"""

import numpy as np
import pytest
import torch

import nearfar
from nearfar.device import (
    Draws,
    SideStream,
    check_precision,
    draw,
    find_device,
    gpu_names,
    half_precision,
    in_float64,
    is_out_of_memory,
    seed_generators,
    seeded,
    send,
    setup_of,
)
from nearfar.losses import LORAC, WMSE
from nearfar.neighbours import find_nearest, nearest_rows
from nearfar.training.processes import check_machine, this_process
from tests.standin import device as device_module
from tests.standin.device import DEVICE, NAME, available, synchronisations

pytestmark = pytest.mark.usefixtures("known_speed")

CPU = torch.device("cpu")


def test_the_gpu_is_taken_where_there_is_one(monkeypatch):
    assert [find_device(wish).type for wish in ("auto", "gpu", "cpu")] == [NAME, NAME, "cpu"]
    assert gpu_names() == [NAME] and this_process("auto", "32-true").device == DEVICE
    with pytest.raises(ValueError, match=rf"`accelerator='xpu'`: .*{NAME} and the CPU"):
        find_device("xpu")
    monkeypatch.setattr(device_module, "_there", False)
    assert find_device("auto").type == "cpu" and gpu_names() == []
    with pytest.raises(ValueError, match=r"`accelerator='gpu'`: .*the CPU alone"):
        find_device("gpu")


@pytest.mark.parametrize(
    ("waits", "action"),
    {
        "item": (True, lambda x: x.sum().item()),
        "bool": (True, lambda x: bool(x.any())),
        "float": (True, lambda x: float(x[0])),
        "cpu": (True, lambda x: x.cpu()),
        "tolist": (True, lambda x: x.tolist()),
        "nonzero": (True, lambda x: x.nonzero()),
        "mask": (True, lambda x: x[x > 0]),
        "equal": (True, lambda x: torch.equal(x, x)),
        "copied there": (True, lambda x: torch.ones(3).to(NAME)),
        "made there of numbers": (True, lambda x: torch.tensor([1.0, 2.0], device=NAME)),
        "sent": (False, lambda x: send(torch.ones(3), DEVICE)),
        "filled": (False, lambda x: x.new_full((2,), 3.0)),
        "computed": (False, lambda x: (2 * x @ x).clamp(min=0).add_(torch.tensor(1.0))),
    }.values(),
)
def test_the_stand_in_counts_what_waits_for_it(waits, action):
    x = torch.arange(3.0).to(NAME)
    with synchronisations() as notes:
        action(x)
    assert bool(notes) == waits


def test_several_processes_train_where_they_can():
    with pytest.raises(
        ValueError,
        match=rf"`devices=2`: .*{NAME}; use `accelerator='cpu'`",
    ):
        check_machine("auto", "32-true", devices=2)


def test_a_device_without_bfloat16_takes_float16():
    of_the_cpu = half_precision(CPU)
    assert half_precision(DEVICE) == "bf16-mixed"
    with available(without=[torch.bfloat16]):
        assert half_precision(DEVICE) == "16-mixed" and half_precision(CPU) == of_the_cpu in (
            "bf16-mixed",
            None,
        )
        with pytest.raises(ValueError, match=r"bfloat16 .*use 16-mixed"):
            check_precision(DEVICE, "bf16-mixed")


def whitened(z1, z2):
    torch.manual_seed(0)  # the order of the rows
    return float(WMSE()(z1, z2))


def test_a_device_without_float64_computes_what_needs_it_on_the_cpu():
    """Apple's GPUs: the nuclear norm of LORAC, the whitening of W-MSE and distances give what they
    give elsewhere.
    """
    made = torch.Generator().manual_seed(0)
    z1, z2 = (torch.randn(24, 4, generator=made) for _ in range(2))
    wmse, near = whitened(z1, z2), nearest_rows(z1, k=3, metric="euclidean").index
    queries, keys, queue = (
        torch.randn(3, 8, 4, generator=made),
        torch.randn(8, 4, generator=made),
        z1,
    )
    lorac = float(LORAC()(queries, keys, queue))
    with available(without=[torch.float64]):
        assert (
            in_float64(z1.to(NAME)).device.type == "cpu" and in_float64(z1).dtype == torch.float64
        )
        assert whitened(z1.to(NAME), z2.to(NAME)) == pytest.approx(wmse, rel=1e-6)
        assert torch.equal(nearest_rows(z1.to(NAME), k=3, metric="euclidean").index.cpu(), near)
        value = float(LORAC()(queries.to(NAME), keys.to(NAME), queue.to(NAME)))
        assert value == pytest.approx(lorac, rel=1e-6)
    assert in_float64(z1.to(NAME)).device.type == NAME


def test_how_a_run_computes_on_a_device():
    """torch's optimisers as one kernel on GPUs, but not where a gradient is scaled; nothing special
    on the CPU.
    """
    taken = {
        (device.type, precision): [
            name for name, option in setup_of(device, precision)._asdict().items() if option.value
        ]
        for device in (CPU, DEVICE, torch.device("cuda"), torch.device("mps"))
        for precision in ("32-true", "bf16-mixed", "16-mixed")
    }
    assert all(taken["cpu", precision] == [] for precision in ("32-true", "bf16-mixed", "16-mixed"))
    assert taken["mps", "32-true"] == taken["mps", "bf16-mixed"] == ["fused"]
    assert taken[NAME, "32-true"] == ["fused", "captured"]
    assert taken["cuda", "32-true"] == ["fused", "pinned", "captured"]
    assert taken["cuda", "bf16-mixed"] == ["channels_last", "fused", "pinned", "captured"]
    assert taken["cuda", "16-mixed"] == ["channels_last", "pinned"]


def test_a_graph_keeps_the_numbers_and_the_memory_of_its_capture():
    side, total = SideStream(DEVICE), torch.zeros(2, device=DEVICE)
    number, fixed = 1.0, torch.ones(2, device=DEVICE)

    def work():
        nonlocal made
        made = total.add_(fixed * number).clone()

    made = total
    graph = side.capture(work)
    assert total.tolist() == [0, 0]  # nothing is computed yet
    number = 100.0
    for _ in range(2):
        graph.replay()
    assert total.tolist() == made.tolist() == [2, 2]
    fixed.fill_(5)
    graph.replay()
    assert made.tolist() == [7, 7]


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x + torch.ones(2).to(DEVICE, non_blocking=True),
        lambda x: torch.manual_seed(0),
        lambda x: torch.tensor([1.0], device=DEVICE),
    ],
    ids=["a number", "a mask", "values that are sent", "a seed", "a tensor of numbers"],
)
def test_a_capture_refuses_what_no_graph_can_hold(work):
    x = torch.ones(2, device=DEVICE)
    with pytest.raises(RuntimeError, match="captur"):
        SideStream(DEVICE).capture(lambda: work(x))
    assert (x + 1).tolist() == [2, 2]


def test_numbers_of_the_cpu_are_drawn_again_before_a_replay():
    """As the step of each seed draws them."""

    def step():
        return draw(lambda: torch.randperm(50), DEVICE).clone()

    def work():
        nonlocal kept
        seed_generators(3)
        kept = step()

    kept, draws = None, Draws(3)
    with draws.noted():
        graph = SideStream(DEVICE).capture(work)
    for seed in (11, 4):
        draws.again(seed)
        graph.replay()
        torch.manual_seed(seed)
        assert kept.tolist() == step().tolist()


def test_doctor_tells_the_device_and_why(log):
    diagnosis = nearfar.doctor()
    assert (
        diagnosis["device"] == NAME
        and diagnosis["precision"] == "32-true"
        and diagnosis["problems"] == []
    )
    assert diagnosis["gpus"] == [{"name": NAME, "memory": None, "bfloat16": True, "float64": True}]
    assert diagnosis["setup"]["fused"]["value"] and not diagnosis["setup"]["compiled"]["value"]
    text = log.text
    assert f"device     {NAME}\n" in text and "fused: yes" in text


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)"), True),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
            True,
        ),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_how_devices_say_that_memory_ended(error, memory):
    assert is_out_of_memory(error) == memory


def test_random_numbers_of_a_device_are_put_back():
    def drawn():
        return torch.rand(3), torch.rand(3, device=NAME).cpu()

    torch.manual_seed(1)
    wanted = drawn()
    torch.manual_seed(1)
    with seeded(NAME, 5):
        inner = drawn()
    for expected, other, of_seed in zip(wanted, drawn(), inner, strict=True):
        assert torch.equal(expected, other) and not torch.equal(expected, of_seed)
    with seeded(NAME, 5):
        assert all(torch.equal(draw, other) for draw, other in zip(inner, drawn(), strict=True))


def test_searches_run_on_the_gpu_and_end_on_the_cpu():
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32))
    nearest = find_nearest(rows, rows[:4], k=3)
    wanted = nearest_rows(rows, rows[:4], k=3)
    assert nearest.index.device.type == "cpu" and torch.equal(nearest.index, wanted.index)
    torch.testing.assert_close(nearest.distance, wanted.distance)
