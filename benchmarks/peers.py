"""The losses of other packages, and the environment that they are installed in.

The environment is benchmarks/.venv-peers: its own packages are the peers, everything else (torch
among it) comes from the environment that the benchmark was started with, so that all losses run on
the same torch.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

HERE = Path(__file__).resolve().parent
ENVIRONMENT = HERE / ".venv-peers"
REQUIREMENTS = HERE / "requirements-peers.txt"

Loss = Callable[..., Tensor]


def peer_python() -> Path:
    """The interpreter that sees both the project and its peers; the environment is made if it is
    missing or outdated.

    Raises `RuntimeError` when the peers cannot be installed.
    """
    python, done = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "installed.txt"
    base = sysconfig.get_path("purelib")
    wanted = f"{base}\n{REQUIREMENTS.read_text()}"
    if done.exists() and done.read_text() == wanted:
        return python
    print("installing the peers into benchmarks/.venv-peers ...", flush=True)
    venv.create(ENVIRONMENT, with_pip=True, clear=True)
    packages = next((ENVIRONMENT / "lib").glob("python*/site-packages"))
    (packages / "project.pth").write_text(f"import site; site.addsitedir({base!r})\n")
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "-r", REQUIREMENTS]
    outcome = subprocess.run(install, capture_output=True, text=True)
    if outcome.returncode:
        raise RuntimeError(
            "the peers could not be installed: " + outcome.stderr.strip().splitlines()[-1]
        )
    done.write_text(wanted)
    return python


def inside_environment() -> bool:
    return Path(sys.prefix).resolve() == ENVIRONMENT.resolve()


def lightly_ntxent(size: int) -> Loss:
    from lightly.loss import NTXentLoss

    loss = NTXentLoss(temperature=0.1)
    return lambda z1, z2, index: loss(z1, z2)


def lightly_dcl(size: int) -> Loss:
    from lightly.loss import DCLLoss

    loss = DCLLoss(temperature=0.1)
    return lambda z1, z2, index: loss(z1, z2)


def lightly_dclw(size: int) -> Loss:
    from lightly.loss import DCLWLoss

    loss = DCLWLoss(temperature=0.1)
    return lambda z1, z2, index: loss(z1, z2)


def lightly_memory_bank(size: int) -> Loss:
    """MoCo's loss; its queue is inside the loss, and every call pushes the keys."""
    from lightly.loss import NTXentLoss

    made: list[torch.nn.Module] = []

    def forward(query: Tensor, key: Tensor, queue: Tensor) -> Tensor:
        if not made:
            made.append(NTXentLoss(temperature=0.2, memory_bank_size=(len(queue), queue.shape[1])))
            made[0].memory_bank.bank = queue.clone()
        return made[0](query, key)

    return forward


def metric_learning_ntxent(size: int) -> Loss:
    from pytorch_metric_learning.losses import NTXentLoss, SelfSupervisedLoss

    loss = SelfSupervisedLoss(NTXentLoss(temperature=0.1))
    return lambda z1, z2, index: loss(z1, z2)


def _libauc(size: int, individual: bool) -> Loss:
    from libauc.losses.contrastive import GCLoss_v1

    with contextlib.redirect_stdout(io.StringIO()):
        return GCLoss_v1(
            N=size, tau=0.1, gamma=0.9, device=torch.device("cpu"), enable_isogclr=individual
        )


def libauc_sogclr(size: int) -> Loss:
    return _libauc(size, individual=False)


def libauc_isogclr(size: int) -> Loss:
    return _libauc(size, individual=True)


def open_clip_clip(size: int) -> Loss:
    from open_clip.loss import ClipLoss

    loss = ClipLoss()
    return lambda z1, z2, index: loss(F.normalize(z1, dim=1), F.normalize(z2, dim=1), 10.0)


def open_clip_siglip(size: int) -> Loss:
    from open_clip.loss import SigLipLoss

    loss = SigLipLoss()
    return lambda z1, z2, index: loss(F.normalize(z1, dim=1), F.normalize(z2, dim=1), 10.0, -10.0)


def torch_clip(size: int) -> Loss:
    """torch's chunked cross entropy, both directions."""
    from torch.nn import LinearCrossEntropyOptions

    options = LinearCrossEntropyOptions()

    def forward(z1: Tensor, z2: Tensor, index: Tensor) -> Tensor:
        a, b = F.normalize(z1, dim=1), F.normalize(z2, dim=1)
        forwards = F.linear_cross_entropy(a / 0.1, b, index, options=options)
        return (forwards + F.linear_cross_entropy(b / 0.1, a, index, options=options)) / 2

    return forward


def torch_simclr(size: int) -> Loss:
    """torch's chunked cross entropy over all rows: it has no mask, so every row stays among its own
    negatives.
    """
    from torch.nn import LinearCrossEntropyOptions

    options, target = LinearCrossEntropyOptions(), torch.arange(2 * size).roll(size)

    def forward(z1: Tensor, z2: Tensor, index: Tensor) -> Tensor:
        z = F.normalize(torch.cat([z1, z2]), dim=1)
        return F.linear_cross_entropy(z / 0.1, z, target, options=options)

    return forward
