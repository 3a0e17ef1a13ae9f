"""Two processes on halves of a batch are one process on the whole of it, for every method."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from nearfar.methods import Model, Teacher, method_class, method_names
from nearfar.networks import SplitBatchNorm, split_batch_norm
from nearfar.training import batch_norm
from nearfar.training.batch_norm import SyncBatchNorm, spread_norm_groups, sync_batch_norm
from tests.steps import descend

BATCH, STEPS, IMAGES = 13, 2, 40  # an odd batch: one process holds a row more
SPLIT = ("moco-v2", "jcl", "lorac", "sce")
TAUGHT = ("sce", "ressl", "simclr", "moco-v2", "byol")
IN_PARTS = ("simclr", "sigclr", "sogclr", "moco-v2")
SMALLER = {
    "queue_size": 20,
    "projector": (16, 6),
    "predictor": (8, 6),
    "num_prototypes": 10,
    "stored": 8,
}


class Backbone(nn.Sequential):
    num_features = 12

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.LazyLinear(12), nn.Tanh())
        self(torch.zeros(2, 1, 4, 4))


def build(name: str, synced: bool, groups: int = 0, taught: bool = False) -> Model:
    torch.manual_seed(0)
    method = method_class(name)
    options = {key: value for key, value in SMALLER.items() if key in method.__dataclass_fields__}
    if name == "sce":
        del options["predictor"]
    if groups:
        options |= {"norm_groups": groups, "small_views": 1}
        options = {
            key: value for key, value in options.items() if key in method.__dataclass_fields__
        }
    backbone = nn.Sequential(Backbone(), nn.BatchNorm1d(12)) if groups else Backbone()
    backbone.num_features = 12
    model = Model(method(**options), backbone, IMAGES, Teacher() if taught else None).double()
    model.teacher_rows = torch.randn(IMAGES, 9, generator=torch.Generator().manual_seed(5))
    if synced:
        return sync_batch_norm(model)
    if groups:
        return spread_norm_groups(model, 7 if groups == 3 else 12)
    for parent in list(model.modules()):
        for key, child in parent.named_children():
            if isinstance(child, nn.BatchNorm1d):
                setattr(parent, key, nn.Identity())
    return model


def train(
    name: str,
    rank: int,
    world: int,
    synced: bool = False,
    micro: int | None = None,
    groups: int = 0,
    taught: bool = False,
) -> dict[str, torch.Tensor]:
    model, batch = build(name, synced, groups, taught), 12 if groups else BATCH
    if groups:  # the online networks' statistics are not what this is about
        for module in model.online.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
    return descend(model, micro, batch, IMAGES, STEPS, rank, world, begun=2)[1]


def work(rank: int, world: int, path: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=world)
    states = {}
    for name in names:
        for synced in (False, True):
            states[name, synced] = train(name, rank, world, synced)
    for name in IN_PARTS:
        states[name, "parts"] = train(
            name, rank, world, micro=3
        )  # 7 rows make three parts, 6 make two
    for name in SPLIT:
        states[name, "groups"] = train(name, rank, world, groups=4)
    for name in TAUGHT:
        states[name, "taught"] = train(name, rank, world, micro=3, taught=True)
    torch.save(states, f"{path}/{rank}.pt")
    dist.barrier()  # whoever leaves first closes its connections
    dist.destroy_process_group()


def same(state, expected):
    assert state.keys() == expected.keys()
    for key in expected:
        torch.testing.assert_close(
            state[key],
            expected[key],
            rtol=1e-8,
            atol=1e-10,
            msg=lambda text, key=key: f"{key}: {text}",
        )


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("processes"))
    mp.spawn(work, (2, path, method_names()), nprocs=2)
    return [torch.load(f"{path}/{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("synced", [False, True], ids=["no norm", "synced norm"])
@pytest.mark.parametrize("name", method_names())
@pytest.mark.slow
def test_two_processes_are_one(name, synced, two_processes):
    single = train(name, 0, 1, synced)
    for states in two_processes:
        same(states[name, synced], single)


@pytest.mark.parametrize("name", IN_PARTS)
@pytest.mark.slow
def test_two_processes_in_micro_batches_are_one(name, two_processes):
    single = train(name, 0, 1)
    for states in two_processes:
        same(states[name, "parts"], single)


@pytest.mark.parametrize("name", TAUGHT)
@pytest.mark.slow
def test_two_processes_with_a_teacher_in_micro_batches_are_one(name, two_processes):
    single, alone = train(name, 0, 1, taught=True), train(name, 0, 1)
    assert (single["losses"] - alone["losses"]).abs().min() > 1e-6  # the teacher does matter
    for states in two_processes:
        same(states[name, "taught"], single)


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.slow
def test_batch_statistics_of_groups_shuffled_over_two_processes_are_those_of_one(
    name, two_processes
):
    single, whole = train(name, 0, 1, groups=4), train(name, 0, 1, groups=1)
    assert (single["losses"] - whole["losses"]).abs().min() > 1e-6  # the groups do matter
    for states in two_processes:
        same(states[name, "groups"], single)


def test_groups_that_the_processes_do_not_divide_are_refused(monkeypatch):
    monkeypatch.setattr(batch_norm, "world_size", lambda: 3)
    with pytest.raises(ValueError, match=r"norm_groups 4 .* 3 processes"):
        build("moco-v2", False, groups=4)
    with pytest.raises(ValueError, match=r"norm_groups 3: .* 7 .* 3 processes"):
        build("moco-v2", False, groups=3)


@pytest.mark.parametrize("name", method_names())
def test_micro_batches_have_the_gradient_of_the_batch(name):
    """Without batch normalisation the training is the same to the last digits, states included."""
    same(train(name, 0, 1, micro=4), train(name, 0, 1))


def test_split_normalisation_keeps_its_groups():
    net = split_batch_norm(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)), 2).append(
        nn.BatchNorm1d(4)
    )
    sync_batch_norm(net)
    assert [type(module) for module in net] == [nn.Linear, SplitBatchNorm, SyncBatchNorm]
