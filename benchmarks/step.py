"""The whole training step against its bare encoder, and against lightly with Lightning: `python
benchmarks/step.py`.

Each case is one run of the real training loop (`nearfar.training.loop.fit`). After every round of
its steps the loop waits while the contenders run theirs:
- bare: forward and backward of the same backbone and projector, with precomputed views and
  gradient, in this process
- plain memory: the same in a process with the default memory settings of torch and the system
- lightly: a plain lightly + Lightning loop with workers, in the peers' environment (peers.py),
  default memory settings
- lightly, our memory: the same with nearfar's memory settings
All run on as many cores as there are threads. Numbers are medians over rounds, ratios medians of
the rounds' ratios. They are written to docs/step.md below its marker; the text above it is kept.
The last lines are the targets.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import peers
import torch
from step_contenders import Process, bare
from step_loop import PARTS, Clock, run, timed_model

from nearfar.allocator import SETTINGS, reuse_memory
from nearfar.data import Images, open_images

DOCS = Path(__file__).resolve().parent.parent / "docs"
MARKER = "<!-- Below: written by benchmarks/step.py -->"
SIZE, VIEWS = 32, "saclr-cifar"
SHARE, SPEEDUP = 0.9, 2.0


@dataclass(frozen=True)
class Case:
    encoder: str
    method: str
    rounds: int
    steps: int  # of a round
    contenders: tuple[str, ...] = ()
    warm: int = 3  # steps before the first round
    lightly_steps: int = 6
    batch: int = 256

    @property
    def name(self) -> str:
        return f"{self.encoder}, {self.method}"


CASES = [
    Case(
        "small",
        "simclr",
        rounds=5,
        steps=8,
        contenders=("plain memory", "lightly", "lightly, our memory"),
    ),
    Case("small", "byol", rounds=5, steps=6),
    Case("resnet18", "simclr", rounds=3, steps=2, warm=1, contenders=("plain memory",)),
]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", help="images to train on, of 32 pixels (default: noise; the time is the same)"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="threads (default: all cores)",
    )
    parser.add_argument(
        "--rounds", type=int, help="rounds of every case (default: 5, and 3 of resnet18)"
    )
    parser.add_argument(
        "--only", nargs="+", default=[], help="only cases whose name contains one of these words"
    )
    parser.add_argument(
        "--without-peers", action="store_true", help="do not install or run lightly"
    )
    parser.add_argument("--out", type=Path, default=DOCS, help="folder for step.md (default docs/)")
    return parser.parse_args()


@contextlib.contextmanager
def started(case: Case, chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The contenders of a case by name, warmed up; their processes end with the block."""
    settings = asdict(case) | {"image_size": SIZE, "threads": chosen.threads}
    rounds: dict[str, Any] = {"bare": bare(**settings)}
    try:
        for name in case.contenders:
            kept = {} if "our memory" in name else SETTINGS
            environment = {key: value for key, value in os.environ.items() if key not in kept}
            if not name.startswith("lightly"):
                rounds[name] = Process(sys.executable, "bare", settings, environment)
            elif not chosen.without_peers:
                try:
                    own = settings | {"steps": case.lightly_steps}
                    rounds[name] = Process(peers.peer_python(), "lightly", own, environment)
                except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
                    print(f"{error}; going on without lightly", flush=True)
        for contender in rounds.values():
            contender()
        yield rounds
    finally:
        for contender in rounds.values():
            if isinstance(contender, Process):
                contender.close()


def measure(case: Case, images: Images, chosen: argparse.Namespace) -> dict[str, Any]:
    model = timed_model(case.method, case.encoder, SIZE, len(images), Clock())
    with started(case, chosen) as contenders:

        def between() -> dict[str, dict[str, float]]:
            return {name: contender() for name, contender in contenders.items()}

        rounds = run(images, model, case, VIEWS, between)
    for timed in rounds:
        for name in contenders:
            timed[name]["per_step"] = timed[name]["wall"] / (
                case.lightly_steps if name.startswith("lightly") else case.steps
            )
    return {"case": case, "rounds": rounds, "contenders": list(contenders)}


def step_seconds(result: dict[str, Any], name: str) -> float:
    return statistics.median(timed[name]["per_step"] for timed in result["rounds"])


def whole_seconds(result: dict[str, Any]) -> float:
    return statistics.median(timed["wall"] for timed in result["rounds"]) / result["case"].steps


def ratios(result: dict[str, Any], name: str) -> list[float]:
    """Return the speed of the whole step as a multiple of the contender's, in each round."""
    return [
        timed[name]["per_step"] * result["case"].steps / timed["wall"] for timed in result["rounds"]
    ]


def parts_table(results: list[dict[str, Any]]) -> list[str]:
    lines = ["| ms per step | " + " | ".join(result["case"].name for result in results) + " |"]
    lines += ["|---" * (len(results) + 1) + "|"]
    for part in PARTS:
        cells = []
        for result in results:
            steps = result["case"].steps
            seconds = statistics.median(timed["parts"][part] for timed in result["rounds"]) / steps
            cells.append(f"{1000 * seconds:.1f} ({seconds / whole_seconds(result):.1%})")
        lines.append(f"| {part} | " + " | ".join(cells) + " |")
    lines.append(
        "| **whole step** | "
        + " | ".join(f"**{1000 * whole_seconds(r):.1f}**" for r in results)
        + " |"
    )
    lines.append(
        "| bare encoder | "
        + " | ".join(f"{1000 * step_seconds(r, 'bare'):.1f}" for r in results)
        + " |"
    )
    return lines


def speed_table(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| case | | images/s | relative speed of the whole step (rounds) | by CPU time |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        case = result["case"]
        lines.append(f"| {case.name} | whole step | {case.batch / whole_seconds(result):.0f} | | |")
        for name in result["contenders"]:
            speeds = sorted(ratios(result, name))
            spread = f"{statistics.median(speeds):.2f} ({speeds[0]:.2f} to {speeds[-1]:.2f})"
            used = [
                timed[name]["cpu"] / timed["cpu"]
                for timed in result["rounds"]
                if "cpu" in timed[name]
            ]
            by_cpu = f"{statistics.median(used):.2f}" if used else ""
            rate = case.batch / step_seconds(result, name)
            lines.append(f"| {case.name} | {name} | {rate:.0f} | {spread} | {by_cpu} |")
    return lines


def targets(results: list[dict[str, Any]]) -> list[str]:
    by_name = {result["case"].name: result for result in results}

    def line(text: str, case: str, contender: str, least: float, number_format: str) -> str:
        result = by_name.get(case)
        if result is None or contender not in result["contenders"]:
            return f"- not measured: {text}"
        ratio = statistics.median(ratios(result, contender))
        return f"- {'met' if ratio >= least else 'NOT MET'}: {text}: {ratio:{number_format}}"

    share = "of the bare encoder's speed at 32 px and batch 256"
    return [
        line(
            f"the small net's step has at least 90 % {share}", "small, simclr", "bare", SHARE, ".1%"
        ),
        line(
            f"ResNet-18's step has at least 90 % {share}", "resnet18, simclr", "bare", SHARE, ".1%"
        ),
        line(
            "2x lightly + Lightning at 32 px, small net", "small, simclr", "lightly", SPEEDUP, ".2f"
        ),
    ]


def markdown(results: list[dict[str, Any]], threads: int, load: float) -> str:
    with open("/proc/cpuinfo") as cpu:
        model = next(
            (line.split(":")[1].strip() for line in cpu if line.startswith("model name")),
            platform.machine(),
        )
    versions = [f"torch {torch.__version__}"]
    for package in ("lightly", "pytorch-lightning"):
        with contextlib.suppress(StopIteration):
            wanted = (
                line
                for line in peers.REQUIREMENTS.read_text().splitlines()
                if line.startswith(f"{package}==")
            )
            versions.append(next(wanted).replace("==", " "))
    return "\n".join(
        [
            f"`python benchmarks/step.py`, {datetime.date.today()}: {model}, {threads} "
            f"threads, float32, batch 256,",
            f"{SIZE} px, {', '.join(versions)}; load average {load:.1f} at the start.",
            "",
            "## Speed",
            *speed_table(results),
            "",
            "## Where a step's time goes",
            *parts_table(results),
            "",
            "## Targets",
            *targets(results),
            "",
        ]
    )


def main() -> None:
    chosen = options()
    reuse_memory()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: chosen.threads])
    torch.set_num_threads(chosen.threads)
    load = os.getloadavg()[0]
    cases = [
        case if chosen.rounds is None else replace(case, rounds=chosen.rounds) for case in CASES
    ]
    cases = [
        case for case in cases if not chosen.only or any(word in case.name for word in chosen.only)
    ]
    count = max(case.batch * (case.warm + case.rounds * (case.steps + 1) + 1) for case in cases)
    source = chosen.data or torch.randint(0, 256, (count, 3, SIZE, SIZE), dtype=torch.uint8)
    images = open_images(source, image_size=SIZE, channels=3)
    results = []
    for case in cases:
        results.append(measure(case, images, chosen))
        ratio = statistics.median(ratios(results[-1], "bare"))
        print(
            f"{case.name}: {case.batch / whole_seconds(results[-1]):.0f} images/s, "
            f"{ratio:.1%} of bare",
            flush=True,
        )

    path = chosen.out / "step.md"
    before = path.read_text().split(MARKER)[0] if path.exists() else "# The step\n\n"
    chosen.out.mkdir(parents=True, exist_ok=True)
    text = markdown(results, chosen.threads, load)
    path.write_text(f"{before}{MARKER}\n\n{text}")
    print("\n" + text)


if __name__ == "__main__":
    main()
