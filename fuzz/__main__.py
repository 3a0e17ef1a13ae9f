"""Fuzz all readers, one after the other, and write what was found.

python -m fuzz --seconds 60 --out fuzz.json
python -m fuzz --target tar --count 100000
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import mmap
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuzz.targets import Target

INSTRUMENTED = ["nearfar.data", "nearfar.evaluation.vectors", "nearfar.maps.columns"]
INSTRUMENTED += ["nearfar.maps.layouts", "nearfar.messages", "nearfar.networks.encoder"]
INSTRUMENTED += ["nearfar.networks.pretrained", "nearfar.training.run_folder", "nearfar.mcp"]
INSTRUMENTED += ["nearfar.training.settings", "nearfar.evaluation.results"]
INSTRUMENTED += ["nearfar_papers.annotations", "nearfar_papers.paper", "PIL", "yaml"]
"""Modules whose branches guide the choice of inputs."""

LIBRARIES = ["atheris", "numpy", "pillow", "pillow-heif", "pyarrow", "pydicom", "pyyaml"]
LIBRARIES += ["safetensors", "tifffile", "timm", "torch"]
CRASHES = ("crash-*", "timeout-*", "oom-*", "leak-*")  # files that libFuzzer writes
KEPT = Path(__file__).parent / "findings"  # inputs that failed once, by target
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "fuzz.json"
PAGE = RESULTS.parents[1] / "security.md"
MARK = "<!-- Below: written by python -m fuzz --page -->"
LOG = "libfuzzer.log"
MOST_RESTARTS = 20  # of a target whose process dies
RESIDENT_MB = 4096  # of a process, at which libFuzzer ends it


def main(words: Sequence[str] | None = None) -> int:
    """Fuzz; returns 1 where anything was found."""
    options = _options(words)
    _take_memory_as_needed()
    if options.replay:
        return replay()
    if options.page:
        text = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
        PAGE.write_text(text + MARK + table_of(json.loads(RESULTS.read_text())), encoding="utf-8")
        return 0
    try:
        import atheris
    except ImportError:
        print("fuzzing needs another package: pip install atheris", file=sys.stderr)
        return 2
    import timm  # noqa: F401
    import torch  # these libraries guide nothing, and take long to instrument
    import torchvision  # noqa: F401

    torch.set_num_threads(1)
    with atheris.instrument_imports(include=INSTRUMENTED):
        from fuzz.targets import TARGETS, prepare
    from nearfar.messages import check_known

    for name in options.target:
        check_known("target", name, TARGETS)
    prepare()
    gc.freeze()
    home = Path(tempfile.mkdtemp(prefix="nearfar-fuzz-", dir=_memory_folder()))
    corpus = home / "corpus" if options.corpus is None else options.corpus.resolve()
    report: dict[str, Any] = about(options)
    try:
        for name in options.target or TARGETS:
            campaign = Campaign(name, TARGETS[name], home, corpus / name, options)
            report["targets"][name] = campaign.fuzzed()
            report["inputs"] = sum(part["inputs"] for part in report["targets"].values())
            if options.out is not None:
                options.out.write_text(json.dumps(report, indent=1) + "\n")
    finally:
        shutil.rmtree(home, ignore_errors=True)
        gc.unfreeze()
    total = sum(len(part["findings"]) for part in report["targets"].values())
    print(f"{report['inputs']:,} inputs, {total} findings")
    return int(total > 0)


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="of each target")
    parser.add_argument("--count", type=int, default=-1, help="most inputs of each target")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs; 0: another each time")
    parser.add_argument("--target", action="append", default=[], help="default: all")
    parser.add_argument(
        "--replay", action="store_true", help="try what was found before, and nothing else"
    )
    parser.add_argument("--page", action="store_true", help="write docs/security.md of RESULTS")
    parser.add_argument("--out", type=Path, help="a JSON file of what was done and found")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--corpus", type=Path, help="a folder of inputs to go on from")
    return parser.parse_args(words)


def replay() -> int:
    """Try every input of fuzz/findings; returns 1 where one fails. One that takes too long ends the
    process.
    """
    from fuzz.judge import SECONDS, Judge
    from fuzz.targets import TARGETS, prepare

    prepare()
    home, failed, count = Path(tempfile.mkdtemp(prefix="nearfar-fuzz-")), 0, 0
    try:
        for name, target in TARGETS.items():
            (home / name).mkdir()
            judge = Judge(target, home / name)
            for path in sorted((KEPT / name).glob("*")):
                print(f"{name}/{path.name}", flush=True)
                data = path.read_bytes()
                with judge.at_work():
                    signal.alarm(SECONDS)
                    failure = judge.failure(data)
                    signal.alarm(0)
                count += 1
                if failure is not None:
                    print(f"{failure.key}\n{failure.text}", flush=True)
                    failed += 1
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(f"{count} inputs, {failed} findings")
    return int(failed > 0)


def table_of(report: dict[str, Any]) -> str:
    """The page's lines of a report, for docs/security.md."""
    parts = report["targets"]
    total = sum(len(part["findings"]) for part in parts.values())
    names = ", ".join(f"{name} {number}" for name, number in report["libraries"].items())
    lines = [
        f"`{report['command']}`, {report['date']}, commit {report['commit'][:9]}: "
        f"{report['inputs']:,} inputs, {total} findings. Python {report['python']}, {names}.",
        "",
        "| target | inputs | seconds | findings |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, part in parts.items():
        numbers = f"{part['inputs']:,} | {part['seconds']:.0f} | {len(part['findings'])}"
        lines.append(f"| {name} | {numbers} |")
    return "\n\n" + "\n".join(lines) + "\n"


def about(options: argparse.Namespace) -> dict[str, Any]:
    """The head of a report: when, of what, by which command."""
    git = ["git", "-C", str(Path(__file__).parents[1]), "rev-parse", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    named = "".join(f" --target {name}" for name in options.target)
    count = f" --count {options.count}" if options.count >= 0 else ""
    count += f" --seed {options.seed}" if options.seed else ""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": f"python -m fuzz --seconds {options.seconds}{count}{named}",
        "commit": commit,
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "inputs": 0,
        "targets": {},
    }


def _take_memory_as_needed() -> None:
    """Have no library reserve address space ahead, so that what an input takes can be measured."""
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    if platform.libc_ver()[0] == "glibc":
        arenas = -8  # M_ARENA_MAX of <malloc.h>
        ctypes.CDLL(None).mallopt(arenas, 1)


def _memory_folder() -> str | None:
    """A folder in memory, where files are written fast; None for the usual one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Campaign:
    """A target that is fuzzed in processes of its own, each a copy of this one."""

    def __init__(
        self, name: str, target: Target, home: Path, corpus: Path, options: argparse.Namespace
    ) -> None:
        self.name, self.target, self.corpus, self.options = name, target, corpus, options
        self.scratch = home / name
        self.findings = options.findings.resolve() / name
        self.counted = mmap.mmap(-1, 8)  # inputs, in memory that the processes share
        for folder in (self.scratch, self.corpus, self.findings):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def count(self) -> int:
        """Inputs so far."""
        return int.from_bytes(self.counted[:8], "little")

    def fuzzed(self) -> dict[str, Any]:
        """Fuzz until the time is over or the inputs are done; returns what to report."""
        from fuzz.judge import name_of

        for seed in self.target.seeds():
            (self.corpus / name_of(seed)).write_bytes(seed)
        words = self.scratch.with_suffix(".dict")
        quoted = ("".join(map(r"\x{:02x}".format, word)) for word in self.target.words)
        words.write_text("".join(f'"{word}"\n' for word in quoted))
        start, restarts = time.monotonic(), 0
        while restarts <= MOST_RESTARTS:
            left = start + self.options.seconds - time.monotonic()
            more = self.options.count - self.count if self.options.count >= 0 else -1
            if left <= 0.5 or more == 0:
                break
            child = os.fork()
            if child == 0:
                try:
                    self._fuzz(words, max(1, round(left)), more)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)  # what follows is for the first process alone
            if self._ended(child, start) == 0:
                break
            restarts += 1
        seconds = time.monotonic() - start
        findings = self.found()
        self._say(seconds, "\n")
        return {"inputs": self.count, "seconds": round(seconds, 1), "findings": findings}

    def _fuzz(self, words: Path, seconds: int, count: int) -> None:
        """Fuzz in this process, which ends then."""
        import atheris

        from fuzz.judge import SECONDS, Judge, name_of

        log = os.open(self.findings / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number in (1, 2):
            os.dup2(log, number)
        judge = Judge(self.target, self.scratch)
        known = {path.name for path in self.findings.iterdir()}

        def one_input(data: bytes) -> None:
            failure = judge.failure(data)
            self.counted[:8] = (self.count + 1).to_bytes(8, "little")
            if failure is None or (name := name_of(failure.key.encode())) in known:
                return
            known.add(name)
            (self.findings / name).write_bytes(data)
            (self.findings / f"{name}.txt").write_text(f"{failure.key}\n{failure.text}")

        def mutated(data: bytes, most: int, seed: int) -> bytes:
            assert self.target.repaired is not None
            new = atheris.Mutate(data, most)
            return self.target.repaired(new)[:most] if seed % 4 else new

        flags = {
            "max_total_time": seconds,
            "runs": count,
            "seed": self.options.seed,
            "timeout": SECONDS,
            "rss_limit_mb": RESIDENT_MB,
            "max_len": self.target.largest,
            "len_control": 0,
            "artifact_prefix": f"{self.findings}/",
            "report_slow_units": SECONDS,
        }
        arguments = ["fuzz", *(f"-{name}={value}" for name, value in flags.items())]
        if self.target.words:
            arguments.append(f"-dict={words}")
        custom = {} if self.target.repaired is None else {"custom_mutator": mutated}
        atheris.Setup([*arguments, str(self.corpus)], one_input, **custom)
        # libFuzzer calls exit, where Arrow would wait for threads that no fork has taken along
        leave = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)(
            lambda code, _: os._exit(code)
        )
        ctypes.CDLL(None).on_exit(leave, None)
        with judge.at_work():
            atheris.Fuzz()

    def _ended(self, child: int, start: float) -> int:
        """Wait for a process and show how far it is; returns how it ended, 0 for as it should."""
        try:
            while True:
                number, status = os.waitpid(child, os.WNOHANG)
                if number:
                    return status
                self._say(time.monotonic() - start, "\r")
                time.sleep(0.2)
        except BaseException:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise

    def _say(self, seconds: float, end: str) -> None:
        if end == "\n" or sys.stdout.isatty():
            total = len(self.found())
            print(
                f"{self.name:12} {self.count:12,} inputs {seconds:7.1f} s {total:3} findings",
                end=end,
                flush=True,
            )

    def found(self) -> list[str]:
        """The findings: the first line on each, or the name of libFuzzer's file."""
        texts = sorted(self.findings.glob("*.txt"))
        crashes = [path.name for kind in CRASHES for path in sorted(self.findings.glob(kind))]
        return [text.read_text(errors="replace").split("\n")[0] for text in texts] + crashes


if __name__ == "__main__":
    sys.exit(main())
