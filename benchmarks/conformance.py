"""The contract of `nearfar.testing` on the losses of other packages, into docs/conformance.md.

    python benchmarks/conformance.py                         # all, a few minutes
    python benchmarks/conformance.py --only DCLLoss          # one anew, the others as they were
    python benchmarks/conformance.py --page                  # the page from docs/results alone

The packages are those of requirements-peers.txt, in the environment of peers.py. A loss has the
settings that its documentation has for several processes, where it has any; arguments that differ
in form go through an adapter of a line or two.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import peers  # noqa: E402

import references as plain  # noqa: E402
from nearfar.testing import Case, Outcome, Report, check_losses  # noqa: E402

TEMPERATURE = 0.2
IMAGES = 40
RESULTS, PAGE = ROOT / "docs/results/conformance.json", ROOT / "docs/conformance.md"
MARKER = "<!-- Below: written by benchmarks/conformance.py -->"
PAIR = ("view", "view")


class Views(nn.Module):
    """A loss that takes a list of views."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        return self.loss([z1, z2])


class Stacked(Views):
    """A loss that takes [batch, views, dim]."""

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        return self.loss(z1[:, None], z2[:, None])


class Crops(Views):
    """A loss of large and small crops by name."""

    def forward(self, z: Tensor) -> Tensor:
        return self.loss(local_proj=z[2:], global_proj=z[:2])


class Labelled(Views):
    """A loss of rows and labels: the two views of an image have a label that no other has."""

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        first = 1000 * dist.get_rank() if dist.is_initialized() else 0
        return self.loss(torch.cat([z1, z2]), first + torch.arange(len(z1)).repeat(2))


class Clip(nn.Module):
    """open_clip's losses, which take unit rows and a scale, and are told their rank when made."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__()
        self.name, self.options = name, options

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        import open_clip.loss

        rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        loss = getattr(open_clip.loss, self.name)(rank=rank, world_size=size, **self.options)
        bias = (-10.0,) if self.name == "SigLipLoss" else ()
        return loss(F.normalize(z1, dim=1), F.normalize(z2, dim=1), 1 / TEMPERATURE, *bias)


class Gathering(Views):
    """LibAUC's loss, whose option `distributed` needs processes that have begun, and whose state,
    which `double()` does not reach, follows rows of float64.
    """

    def forward(self, z1: Tensor, z2: Tensor, index: Tensor) -> Tensor:
        self.loss.distributed = dist.is_initialized()
        for key, value in vars(self.loss).items():
            if isinstance(value, Tensor) and value.dtype == torch.float32 != z1.dtype:
                setattr(
                    self.loss, key, value.detach().to(torch.promote_types(value.dtype, z1.dtype))
                )
        return self.loss(z1, z2, index)


@dataclass(frozen=True)
class Peer:
    """A loss of another package: how it is made, what it takes, and its formula if it has one of
    `references`.
    """

    package: str
    make: Callable[[], nn.Module]
    kinds: tuple[str, ...] = PAIR
    reference: Callable[..., Tensor] | None = None
    skip: dict[str, str] = field(default_factory=dict)


def _lightly(name: str, *given: Any, **options: Any) -> nn.Module:
    import lightly.loss

    return getattr(lightly.loss, name)(*given, **options)


def _metric_learning(name: str, **options: Any) -> nn.Module:
    from pytorch_metric_learning import losses
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    return Labelled(DistributedLossWrapper(getattr(losses, name)(**options)))


def _libauc(individual: bool) -> nn.Module:
    from libauc.losses.contrastive import GCLoss_v1

    with contextlib.redirect_stdout(io.StringIO()):
        loss = GCLoss_v1(
            N=IMAGES, tau=TEMPERATURE, device=torch.device("cpu"), enable_isogclr=individual
        )
    return Gathering(loss)


def _stable(name: str, **options: Any) -> nn.Module:
    from stable_pretraining import losses

    return getattr(losses, name)(**options)


STANDS = {"gradcheck": "its averages stand for constants, and the value is not the objective"}
PEERS = {
    "NTXentLoss": Peer(
        "lightly",
        lambda: _lightly("NTXentLoss", TEMPERATURE, gather_distributed=True),
        reference=lambda a, b: plain.simclr(a, b, TEMPERATURE),
    ),
    "NTXentLoss, memory bank": Peer(
        "lightly",
        lambda: _lightly(
            "NTXentLoss", TEMPERATURE, memory_bank_size=(24, 6), gather_distributed=True
        ),
        ("view", "key"),
        skip={
            "permutation": "the bank keeps the order",
            "processes": "the bank starts with random numbers of each process",
            "unequal_parts": "the bank starts with random numbers of each process",
        },
    ),
    "DCLLoss": Peer(
        "lightly",
        lambda: _lightly("DCLLoss", TEMPERATURE, gather_distributed=True),
        reference=lambda a, b: plain.dcl(a, b, TEMPERATURE),
    ),
    "DCLWLoss": Peer(
        "lightly",
        lambda: _lightly("DCLWLoss", TEMPERATURE, gather_distributed=True),
        reference=lambda a, b: plain.dcl(a, b, TEMPERATURE, 0.5),
        skip={"gradcheck": "the weights of the positives are constants"},
    ),
    "BarlowTwinsLoss": Peer(
        "lightly",
        lambda: _lightly("BarlowTwinsLoss", gather_distributed=True),
        reference=lambda a, b: plain.barlow_twins(a, b, 5e-3),
    ),
    "VICRegLoss": Peer(
        "lightly",
        lambda: _lightly("VICRegLoss", gather_distributed=True),
        reference=plain.vicreg,
    ),
    "NegativeCosineSimilarity": Peer(
        "lightly",
        lambda: _lightly("NegativeCosineSimilarity"),
        reference=lambda a, b: -F.cosine_similarity(a, b).mean(),
    ),
    "TiCoLoss": Peer(
        "lightly",
        lambda: _lightly("TiCoLoss", gather_distributed=True),
        skip={"gradcheck": "the covariance is a constant"},
    ),
    "MMCRLoss": Peer("lightly", lambda: Stacked(_lightly("MMCRLoss"))),
    "FroSSLLoss": Peer("lightly", lambda: Views(_lightly("FroSSLLoss"))),
    "MACLLoss": Peer(
        "lightly",
        lambda: _lightly("MACLLoss"),
        skip={"gradcheck": "temperature and weights, which follow the batch, are constants"},
    ),
    "LeJEPALoss": Peer(
        "lightly",
        lambda: Crops(_lightly("LeJEPALoss", gather_distributed=True)),
        ("views",),
        skip={
            "float32": "directions are drawn in the dtype of the rows",
            "half": "directions are drawn in the dtype of the rows",
        },
    ),
    "NTXentLoss of pytorch-metric-learning": Peer(
        "pytorch-metric-learning",
        lambda: _metric_learning("NTXentLoss", temperature=TEMPERATURE),
        reference=lambda a, b: plain.simclr(a, b, TEMPERATURE),
    ),
    "SupConLoss": Peer(
        "pytorch-metric-learning",
        lambda: _metric_learning("SupConLoss", temperature=TEMPERATURE),
        reference=lambda a, b: plain.simclr(a, b, TEMPERATURE),
    ),
    "ClipLoss": Peer(
        "open_clip_torch",
        lambda: Clip("ClipLoss", local_loss=True, gather_with_grad=True),
        reference=lambda a, b: plain.clip(a, b, TEMPERATURE),
    ),
    "SigLipLoss": Peer(
        "open_clip_torch",
        lambda: Clip("SigLipLoss"),
        reference=lambda a, b: plain.siglip(a, b, TEMPERATURE),
    ),
    "GCLoss_v1 (SogCLR)": Peer(
        "libauc", lambda: _libauc(individual=False), (*PAIR, "index"), skip=STANDS
    ),
    "GCLoss_v1 (iSogCLR)": Peer(
        "libauc", lambda: _libauc(individual=True), (*PAIR, "index"), skip=STANDS
    ),
    "NTXEntLoss": Peer(
        "stable-pretraining",
        lambda: _stable("NTXEntLoss", temperature=TEMPERATURE),
        reference=lambda a, b: plain.simclr(a, b, TEMPERATURE),
    ),
    "VICRegLoss of stable-pretraining": Peer(
        "stable-pretraining", lambda: _stable("VICRegLoss"), reference=plain.vicreg
    ),
    "BarlowTwinsLoss of stable-pretraining": Peer(
        "stable-pretraining", lambda: _stable("BarlowTwinsLoss")
    ),
    "BYOLLoss": Peer(
        "stable-pretraining",
        lambda: _stable("BYOLLoss"),
        ("view", "key"),
        reference=plain.negative_cosine,
    ),
}


def reports(names: list[str]) -> dict[str, Report]:
    """Check these losses; those of one package share processes as long as none ends them."""
    by_loss: dict[str, Report] = {}
    for package in dict.fromkeys(PEERS[name].package for name in names):
        own = {name: PEERS[name] for name in names if PEERS[name].package == package}
        cases = {
            name: Case(peer.make(), peer.kinds, peer.reference, images=IMAGES)
            for name, peer in own.items()
        }
        for report in check_losses(cases, {name: peer.skip for name, peer in own.items()}):
            print(report, flush=True)
            by_loss[report.loss] = report
    return by_loss


def saved(by_loss: dict[str, Report]) -> dict[str, Any]:
    """Return the outcomes and the versions, for a file of JSON."""
    packages = {*(PEERS[name].package for name in by_loss), "torch"}
    lines = {
        name: {outcome.check: _cell(outcome) for outcome in by_loss[name].outcomes}
        for name in by_loss
    }
    about = {
        "command": "python benchmarks/conformance.py",
        "date": time.strftime("%Y-%m-%d"),
        "versions": {package: version(package) for package in sorted(packages)},
    }
    return about | {"losses": lines}


def _cell(outcome: Outcome) -> str:
    if outcome.skipped:
        return f"skipped: {outcome.words}"
    return "holds" if outcome.passed else f"fails: {outcome.words}"


SIGNS = {"holds": "yes", "skipped": "-", "fails": "**no**"}


def tables(results: dict[str, Any]) -> str:
    """Return versions, a table of losses and checks, and a line for each deviation, as Markdown."""
    losses = results["losses"]
    checks = list(next(iter(losses.values())))
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    lines = [f"`python benchmarks/conformance.py`, {results['date']}: {versions}.\n"]
    packages = list(dict.fromkeys(PEERS[name].package for name in losses))
    for package in packages:
        own = [name for name in losses if PEERS[name].package == package]
        short = [name.removesuffix(f" of {package}") for name in own]
        lines += [f"### {package}\n", f"| | {' | '.join(short)} |", "|---" * (len(own) + 1) + "|"]
        for check in checks:
            cells = [SIGNS[losses[name][check].partition(":")[0]] for name in own]
            lines.append(f"| `{check}` | {' | '.join(cells)} |")
        lines.append("")
        for name, label in zip(own, short, strict=True):
            words_of = {check: losses[name][check].partition(": ")[2] for check in checks}
            lines += [
                f"- {label}, `{check}`{' (left out)' if losses[name][check][0] == 's' else ''}: "
                f"{words}"
                for check, words in words_of.items()
                if words and words != "no plain form was given" and check not in USUAL
            ]
        lines.append("")
    return "\n".join(lines)


USUAL = ("half", "autocast", "memory", "unequal_parts")
"""Checks in which most losses deviate, for which the table says enough."""


TWO = """
import torch, torch.distributed as dist
{imports}
torch.manual_seed(0)
rows = torch.randn(2, 20, 6, requires_grad=True)
joint = torch.autograd.grad({loss}()(*rows), rows)[0]  # before there are two processes
dist.init_process_group("gloo")
own = slice(0, 10) if dist.get_rank() == 0 else slice(10, 20)
{loss}({gather})(*rows[:, own]).backward()
dist.all_reduce(rows.grad)  # the sum over the processes; DistributedDataParallel takes the mean
dist.get_rank() or print(f"off by {{(rows.grad / 2 - joint).norm() / joint.norm():.1%}}")
"""
GATHER = "gather_distributed=True"
BANK = """
import torch
from lightly.loss import NTXentLoss
torch.manual_seed(0)
loss = NTXentLoss(memory_bank_size=(24, 6))
query, keys = torch.randn(12, 6, requires_grad=True), torch.randn(12, 6)
print(f"saved: {list(loss.state_dict())}")
keys[0] = torch.nan
print(f"the bad batch: {loss(query, keys):.3f}; ", end="")
keys = torch.randn(12, 6)
print("later ones:", *(f"{loss(query, keys):.3f}" for _ in range(4)))
"""
TICO = """
import torch
from lightly.loss import TiCoLoss
torch.manual_seed(0)
loss, rows = TiCoLoss(), torch.randn(2, 12, 6)
loss(*rows)
print(f"saved: {list(loss.state_dict())}; ", end="")
loss(torch.full((12, 6), torch.nan), rows[1])
print("after a bad batch:", *(f"{loss(*torch.randn(2, 12, 6)):.3f}" for _ in range(4)))
"""
LIBAUC = """
import torch
from libauc.losses.contrastive import GCLoss_v1
torch.manual_seed(0)
loss, index = GCLoss_v1(N=40, tau=0.2, device=torch.device("cpu")), torch.arange(12)
rows = torch.randn(2, 12, 6)
loss(*rows, index)
print(f"saved: {list(loss.state_dict())}; ", end="")
loss(torch.full((12, 6), torch.nan), rows[1], index)
print("after a bad batch:", *(f"{loss(*torch.randn(2, 12, 6), index):.3f}" for _ in range(4)))
"""
HALF = """
import torch
from lightly.loss import NTXentLoss

torch.manual_seed(0)
rows = torch.randn(2, 256, 64).bfloat16()
for temperature in (0.1, 0.11):
    loss = NTXentLoss(temperature)
    print(f"{temperature}: {loss(*rows).item():.4f} for {loss(*rows.float()).item():.4f}; ", end="")
"""
FROSSL = """
import torch
from lightly.loss import FroSSLLoss
views = torch.zeros(2, 12, 6)
print(FroSSLLoss()(list(views)))
"""
PICKLED = """
import pickle, torch
from libauc.losses.contrastive import GCLoss_v1
device, index = torch.device("cpu"), torch.arange(12)
loss = GCLoss_v1(N=40, tau=0.2, device=device, enable_isogclr=True)
rows = torch.randn(2, 12, 6, requires_grad=True)
loss(*rows, index)
try:
    pickle.loads(pickle.dumps(loss))(*rows, index)
except RuntimeError as error:
    print(error)
"""
SHOWN = [
    (
        "DCLWLoss on two processes",
        "The weights are a softmax over the positives of a process' own rows, not of all: about 2 % "
        "of the gradient with 10 rows each. DCLLoss, with the same program, is off by 0.0 %.",
        TWO.format(imports="from lightly.loss import DCLWLoss", loss="DCLWLoss", gather=GATHER),
    ),
    (
        "BarlowTwinsLoss on two processes",
        "The cross-correlation is gathered, but rows are standardised by the mean and the deviation "
        "of a process' own rows.",
        TWO.format(
            imports="from lightly.loss import BarlowTwinsLoss",
            loss="BarlowTwinsLoss",
            gather=GATHER,
        ),
    ),
    (
        "BarlowTwinsLoss of stable-pretraining on two processes",
        "It gathers without being asked, and standardises rows by a process' own rows too. Its "
        "VICRegLoss, with the same program, is off by 0.0 %.",
        TWO.format(
            imports="from stable_pretraining.losses import BarlowTwinsLoss",
            loss="BarlowTwinsLoss",
            gather="",
        ),
    ),
    (
        "FroSSLLoss of zero rows",
        "A batch whose rows are all zero has a norm of 0, and its logarithm is the loss. (Equal rows "
        "that are not zero, as after a collapse, are finite.)",
        FROSSL,
    ),
    (
        "NTXentLoss with a memory bank: state and a bad batch",
        "The bank is not among what is saved, so a resumed run starts with random keys; keys of a "
        "bad batch spoil the losses until they have left the bank.",
        BANK,
    ),
    (
        "TiCoLoss: state and a bad batch",
        "The running covariance is a plain attribute: it is not saved, and stays spoiled for good.",
        TICO,
    ),
    (
        "LibAUC's GCLoss_v1: state and a bad batch",
        "So are the averages of the images (and iSogCLR's temperatures). The authors' training "
        "scripts may save them apart; the module does not.",
        LIBAUC,
    ),
    (
        "LibAUC's iSogCLR after pickling",
        "The temperatures have a graph in the loss, and none in its copy, where they cannot be "
        "changed in place.",
        PICKLED,
    ),
    (
        "Rows in bfloat16",
        "With rows in bfloat16, value and sums are in bfloat16 too, and about three digits are "
        "left. Under autocast, where rows are in float32, fewer are lost.",
        HALF,
    ),
]


def show(snippet: str) -> str:
    """Run a program of ten lines, and return it with what it printed."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "show.py"
        file.write_text(snippet)
        words = [*launcher, file] if "dist." in snippet else [file]
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *words], capture_output=True, text=True
        )
    if done.returncode:
        raise RuntimeError(done.stderr)
    lines = dict.fromkeys(done.stdout.strip().splitlines())  # of two processes, the same ones once
    program = re.sub(r"(\nfrom .*\n)(?!\n)", r"\1\n", snippet.strip())  # as ruff formats it
    return f"```python\n{program}\n```\n\n```\n{chr(10).join(lines)}\n```\n"


def write(results: dict[str, Any]) -> None:
    """Write the tables, and the programs with what they print, below the marker of the page."""
    head = PAGE.read_text().partition(MARKER)[0]
    shown = [f"### {title}\n\n{words}\n\n{show(snippet)}" for title, words, snippet in SHOWN]
    parts = [head + MARKER, "## Tables", tables(results), "## Programs that show it", *shown]
    PAGE.write_text("\n\n".join(part.strip() for part in parts) + "\n")


def main() -> None:
    """Check all losses and write the page, or print the tables of some."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PEERS, help="measure these anew")
    parser.add_argument("--page", action="store_true", help="write the page from the last results")
    given = parser.parse_args()
    if find_spec("lightly") is None:
        os.environ["PYTHONPATH"] = f"{ROOT / 'src'}"
        sys.exit(subprocess.call([peers.peer_python(), __file__, *sys.argv[1:]]))
    if given.page:
        write(json.loads(RESULTS.read_text()))
        return
    names = given.only or [name for name in PEERS if installed(PEERS[name].package)]
    results = saved(reports(names))
    if given.only:
        before = json.loads(RESULTS.read_text())
        results["losses"] = before["losses"] | results["losses"]
        results["versions"] = before["versions"] | results["versions"]
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    write(results)


def installed(package: str) -> bool:
    """Return whether a package can be imported."""
    module = {"open_clip_torch": "open_clip"}.get(package, package.replace("-", "_"))
    return find_spec(module) is not None


if __name__ == "__main__":
    main()
