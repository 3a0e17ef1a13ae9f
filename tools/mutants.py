"""Mutation testing: change one place of a file at a time and see whether its tests notice.

`python -m tools.mutants FILE ...` (`make mutants FILE=...`) tries the mutants of files that stand in tools/mutants.toml
with their tests. It goes on where it was stopped, and then writes docs/results/mutants.json and docs/mutants.md.

The mutations are mutmut's. Its runner leaves decorated functions out, among them the forward pass of every loss, and
wraps all others, which torch.compile and the check of types see. Here one process of pytest collects and runs the tests
once and notes which test calls which function; then each mutant is a fork of it, in which the code of the function is
replaced before the tests that call it run, up to the first that fails.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import gc
import hashlib
import json
import marshal
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from importlib.metadata import version
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

from tools import typechecker

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tools/mutants.toml"
STATE = ROOT / ".mutants"
RESULTS = ROOT / "docs/results/mutants.json"
PAGE = ROOT / "docs/mutants.md"
SEED = 0
KILLED, SURVIVED, TIMEOUT, UNTESTED = "killed", "survived", "timeout", "no test"
LEAST_SECONDS = 10.0
SLOWER = 5.0
SILENT_CALLS = {"len", "isinstance", "cast", "warn", "debug", "info", "warning", "TypeVar"}
"""Calls whose arguments are not changed: types, and words that are printed."""

SILENT_FUNCTIONS = {"__repr__", "extra_repr", "__str__", "__setattr__", "__new__"}


class Mutant(NamedTuple):
    """A changed file. function: the qualified name of the outermost one that changed."""

    function: str
    line: int
    was: str
    now: str
    source: str

    @property
    def key(self) -> str:
        """The digest that tells this mutant from others of its file, also after changes elsewhere in it."""
        return hashlib.sha256(f"{self.function}\0{self.was}\0{self.now}".encode()).hexdigest()[:16]


def mutants_of(source: str, most: int | None = None) -> tuple[int, list[Mutant]]:
    """Return how many mutants a file has, and all of them, or `most` drawn by the seed: those that
    differ from it once compiled.
    """
    import libcst
    from mutmut.mutation.mutators import mutation_operators

    operators = [(kind, make) for kind, make in mutation_operators if kind is not libcst.BaseString]
    module = libcst.parse_module(source)
    changes = [
        (function, node, changed)
        for function, node in _places(module, ())
        for kind, make in operators
        if isinstance(node, kind)
        for changed in make(node)
    ]
    original, mutants = _bytes(source), {}
    for function, node, changed in random.Random(SEED).sample(changes, len(changes)):
        if most is not None and len(mutants) == most:
            break
        text = module.deep_replace(node, changed).code
        code = _bytes(text)
        if code is not None and code != original:
            mutants[code] = Mutant(function, *_difference(source, text), text)
    return len(changes), [*mutants.values()]


def _places(node: Any, outer: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """The nodes inside functions, with the qualified name of the outermost function."""
    import libcst as cst

    silent = (cst.Annotation, cst.Decorator, cst.Raise, cst.BaseString, cst.Import, cst.ImportFrom)
    if isinstance(node, silent) or _is_silent(node):
        return
    inside = bool(outer) and outer[-1] == "()"
    if inside:
        yield ".".join(outer[:-1]), node
    if isinstance(node, (cst.ClassDef, cst.FunctionDef)) and not inside:
        ending = ("()",) if isinstance(node, cst.FunctionDef) else ()
        outer = (*outer, node.name.value, *ending)
    for child in node.children:
        yield from _places(child, outer)


def _is_silent(node: Any) -> bool:
    """Return whether a node has nothing that a test should notice."""
    import libcst as cst

    if isinstance(node, cst.Param):
        return node.default is not None and not _is_literal(node.default)
    if isinstance(node, cst.FunctionDef):
        return node.name.value in SILENT_FUNCTIONS
    if isinstance(node, cst.Call):
        name = getattr(node.func, "attr", node.func)
        return getattr(name, "value", None) in SILENT_CALLS
    return False


def _is_literal(node: Any) -> bool:
    import libcst as cst

    return isinstance(node, cst.BaseNumber) or getattr(node, "value", "") in ("True", "False")


def _bytes(source: str) -> bytes | None:
    """The compiled file without lines and columns, or None where that is no Python."""
    try:
        return marshal.dumps(_without_places(compile(source, "", "exec", dont_inherit=True)))
    except SyntaxError:
        return None


def _without_places(code: CodeType) -> CodeType:
    inner = tuple(_without_places(x) if isinstance(x, CodeType) else x for x in code.co_consts)
    return code.replace(co_consts=inner, co_linetable=b"", co_firstlineno=1)


def _difference(before: str, after: str) -> tuple[int, str, str]:
    """The first line that differs, and the lines that were there and are there now."""
    old, new = before.splitlines(), after.splitlines()
    changes = [
        change
        for change in difflib.SequenceMatcher(None, old, new, False).get_opcodes()
        if change[0] != "equal"
    ]
    first, last = changes[0], changes[-1]
    was, now = old[first[1] : last[2]], new[first[3] : last[4]]
    return first[1] + 1, _joined(was), _joined(now)


def _joined(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines)


def functions_in(code: CodeType) -> list[CodeType]:
    """Return the code of all functions in a compiled file, outer ones first."""
    codes = []
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            codes += [inner, *functions_in(inner)]
    return codes


def put_in(path: Path, source: str) -> None:
    """Replace the code and the defaults of all functions of a file in this process."""
    old = functions_in(compile(path.read_text(), str(path), "exec", dont_inherit=True))
    new = functions_in(compile(source, str(path), "exec", dont_inherit=True))
    changed = defaultdict(list)
    for code in new:
        changed[code.co_qualname].append(code)
    places = defaultdict(list)
    for code in old:
        places[code.co_qualname].append(code.co_firstlineno)
    defaults = _defaults(source)
    for function in gc.get_objects():
        if type(function) is not FunctionType or function.__code__.co_filename != str(path):
            continue
        code, lines = function.__code__, places[function.__code__.co_qualname]
        if len(lines) != len(changed[code.co_qualname]) or not lines:
            continue
        nearest = min(range(len(lines)), key=lambda n: abs(lines[n] - code.co_firstlineno))
        replaced = changed[code.co_qualname][nearest]
        if replaced.co_freevars == code.co_freevars:
            function.__code__ = replaced
        if len(lines) == 1:
            _set_defaults(function, defaults.get(code.co_qualname, {}))


def _defaults(source: str) -> dict[str, dict[str, Any]]:
    """The literal defaults of functions and methods, by qualified name and parameter."""
    literals = {}

    def look(node: ast.AST, outer: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                if isinstance(child, ast.FunctionDef):
                    literals[outer + child.name] = _literals(child.args)
                look(child, f"{outer}{child.name}.")

    look(ast.parse(source), "")
    return literals


def _literals(arguments: ast.arguments) -> dict[str, Any]:
    placed = [*arguments.posonlyargs, *arguments.args]
    late = arguments.defaults
    pairs = [*zip(placed[len(placed) - len(late) :], late, strict=True)]
    pairs += [*zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return {
        each.arg: value.value
        for each, value in pairs
        if isinstance(value, ast.Constant) and isinstance(value.value, (int, float))
    }


def _set_defaults(function: FunctionType, values: dict[str, Any]) -> None:
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    given = function.__defaults__ or ()
    late = names[len(names) - len(given) :]
    if given:
        pairs = zip(late, given, strict=True)
        function.__defaults__ = tuple(values.get(name, value) for name, value in pairs)
    for name in function.__kwdefaults__ or {}:
        function.__kwdefaults__[name] = values.get(name, function.__kwdefaults__[name])


class Runner:
    """A plugin of pytest: the tests once as they are, then once for each mutant in a fork."""

    def __init__(self, path: Path, mutants: list[Mutant], state: State) -> None:
        self.path, self.mutants, self.state = path, mutants, state
        self.calls: dict[str, set[str]] = {}
        self.shared: dict[str, set[str]] = defaultdict(set)
        self.seconds: dict[str, float] = {}
        self.into: set[str] = set()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        sys.settrace(self._note)
        threading.settrace(self._note)
        for place, item in enumerate(session.items):
            if not self._passes(item, session.items[place + 1 : place + 2]):
                print(f"{item.nodeid} fails without a mutant", flush=True)
                raise session.Failed()
        sys.settrace(None)
        threading.settrace(None)
        unchanged = Mutant("", 0, "", "", self.path.read_text())
        if self._outcome(unchanged, session.items, 600) != SURVIVED:
            print("the tests fail in a fork without a mutant", flush=True)
            raise session.Failed()
        for mutant in self.mutants:
            started, tests = time.monotonic(), self._tests(mutant, session.items)
            limit = LEAST_SECONDS + SLOWER * sum(self.seconds[test.nodeid] for test in tests)
            outcome = self._outcome(mutant, tests, limit) if tests else UNTESTED
            seconds = round(time.monotonic() - started, 1)
            self.state.outcomes[mutant.key] = [outcome, seconds, *mutant[:4]]
            self.state.save(self.path)
            print(f"{len(self.state.outcomes)}: {outcome} {mutant.line}: {mutant.now}", flush=True)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
        """Note what a fixture of several tests calls for all tests of its file."""
        before, self.into = self.into, set()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self.shared[request.node.nodeid.partition("::")[0]] |= self.into
            self.into = before | self.into

    def _note(self, frame: FrameType, event: str, value: Any) -> None:
        if frame.f_code.co_filename == str(self.path):
            self.into.add(frame.f_code.co_qualname.partition(".<locals>")[0])

    def _passes(self, item: pytest.Item, after: list[pytest.Item]) -> bool:
        self.into, started = set(), time.monotonic()
        reports = runtestprotocol(item, log=False, nextitem=after[0] if after else None)
        self.calls[item.nodeid] = self.into
        self.seconds[item.nodeid] = time.monotonic() - started
        return not any(report.failed for report in reports)

    def _tests(self, mutant: Mutant, items: list[pytest.Item]) -> list[pytest.Item]:
        """The tests that call the function of a mutant, the fastest first."""
        of_all = self.shared[""]
        called = [
            item
            for item in items
            if mutant.function
            in self.calls[item.nodeid] | self.shared[item.nodeid.partition("::")[0]] | of_all
        ]
        return sorted(called, key=lambda item: self.seconds[item.nodeid])

    def _outcome(self, mutant: Mutant, tests: list[pytest.Item], limit: float) -> str:
        child = os.fork()
        if child == 0:
            self._run(mutant, tests)
        until = time.monotonic() + limit
        while time.monotonic() < until:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return SURVIVED if status == 0 else KILLED
            time.sleep(0.005)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return TIMEOUT

    def _run(self, mutant: Mutant, tests: list[pytest.Item]) -> None:
        """Run tests on a mutant, in a process of its own, which ends here."""
        try:
            os.setsid()
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(nowhere, stream)
            for kept in gc.get_objects():
                if isinstance(kept, functools._lru_cache_wrapper) and _is_ours(kept):
                    kept.cache_clear()
            from nearfar import messages

            messages._told.clear()  # lines that the tests before the fork had to say
            put_in(self.path, mutant.source)
            for place, test in enumerate(tests):
                if not self._passes(test, tests[place + 1 : place + 2]):
                    os._exit(1)
        except BaseException:
            os._exit(2)
        os._exit(0)


def _is_ours(function: Any) -> bool:
    return str(function.__module__).partition(".")[0] in ("nearfar", "tests", "references")


@contextmanager
def _copy_with(path: Path, source: str) -> Iterator[str]:
    """Make a copy of the package with this source, and yield its folder."""
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(ROOT / "src", copy, dirs_exist_ok=True, copy_function=os.link)
        changed = Path(copy, path.relative_to(ROOT / "src"))
        changed.unlink()
        changed.write_text(source)
        yield copy


class State(NamedTuple):
    """The outcomes of a file's mutants so far, and what they were found with.

    mutants: how many the file has. outcomes: by a mutant's key its outcome, the seconds that it
    took, its function, its line, and the lines before and now.
    """

    tests: str
    commit: str
    day: str
    mutants: int
    outcomes: dict[str, list[Any]]

    def save(self, path: Path) -> None:
        STATE.mkdir(exist_ok=True)
        made = _state_file(path).with_suffix(".part")
        made.write_text(json.dumps(self._asdict()))
        made.replace(_state_file(path))


def _state_file(path: Path) -> Path:
    return STATE / f"{path.relative_to(ROOT).as_posix().replace('/', '-')}.json"


def load_state(path: Path) -> State | None:
    """Return the outcomes of a file so far."""
    file = _state_file(path)
    return State(**json.loads(file.read_text())) if file.is_file() else None


def _commit() -> str:
    words = ["git", "describe", "--always", "--dirty", "--abbrev=8"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def _digest(entry: dict[str, Any]) -> str:
    """The digest of what tries the mutants of a file."""
    digest = hashlib.sha256(" ".join(entry.get("options", [])).encode())
    for test in entry["tests"]:
        digest.update((ROOT / test.partition("::")[0]).read_bytes())
    return digest.hexdigest()[:16]


def try_file(entry: dict[str, Any]) -> None:
    """Try those mutants of a file that were not tried yet, in a process of its own; once its tests
    change also those that no test noticed.
    """
    path, digest = ROOT / entry["name"], _digest(entry)
    total, chosen = mutants_of(path.read_text(), entry.get("most"))
    keys, before = {mutant.key for mutant in chosen}, load_state(path)
    outcomes = before.outcomes if before else {}
    known = {key: outcome for key, outcome in outcomes.items() if key in keys}
    same = before is not None and before.tests == digest
    settled = {key for key, outcome in known.items() if same or outcome[0] in (KILLED, TIMEOUT)}
    state = State(digest, _commit(), date.today().isoformat(), total, known)
    left = [mutant for mutant in chosen if mutant.key not in settled]
    print(f"{entry['name']}: {total} mutants, {len(chosen)} chosen, {len(left)} left", flush=True)
    if not left:
        return
    if entry.get("alone", False):
        for mutant in left:
            started = time.monotonic()
            outcome = run_alone(path, mutant, entry["tests"])
            state.outcomes[mutant.key] = [
                outcome,
                round(time.monotonic() - started, 1),
                *mutant[:4],
            ]
            state.save(path)
            print(f"{len(state.outcomes)}: {outcome} {mutant.line}: {mutant.now}", flush=True)
        return
    child = os.fork()
    if child == 0:
        typechecker.install = lambda: None  # the check of types would take most of the time
        runner = Runner(path, left, state)
        words = ["-s", "-q", "-p", "no:cacheprovider", "-W", "ignore", *entry.get("options", [])]
        os._exit(int(pytest.main([*words, *entry["tests"]], plugins=[runner])))
    if os.waitpid(child, 0)[1]:
        print(f"{entry['name']}: its tests fail without a mutant, or were stopped", flush=True)


def run_alone(path: Path, mutant: Mutant, tests: list[str]) -> str:
    """Run tests on a mutant in a new process: for those whose threads do not outlive a fork."""
    words = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    with _copy_with(path, mutant.source) as copy:
        environment = {**os.environ, "PYTHONPATH": copy}
        try:
            ended = subprocess.run(
                [sys.executable, *words],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                timeout=300,
            )
        except subprocess.TimeoutExpired:
            return TIMEOUT
    return KILLED if ended.returncode else SURVIVED


def summary(entry: dict[str, Any], reasons: list[dict[str, str]]) -> dict[str, Any] | None:
    """Return what became of a file's mutants, or None where none was tried."""
    state = load_state(ROOT / entry["name"])
    if state is None or not state.outcomes:
        return None
    counts = Counter(tried[0] for tried in state.outcomes.values())
    survivors = []
    for outcome, _, function, line, was, now in sorted(state.outcomes.values(), key=lambda x: x[3]):
        if outcome in (SURVIVED, UNTESTED):
            kind, why = reason_of(entry["name"], function, was, now, reasons)
            place = {"function": function, "line": line, "outcome": outcome}
            survivors.append(place | {"was": was, "now": now, "kind": kind, "why": why})
    return {
        "file": entry["name"],
        "commit": state.commit,
        "date": state.day,
        "tests": entry["tests"],
        "mutants": state.mutants,
        "tried": len(state.outcomes),
        "killed": counts[KILLED],
        "timeout": counts[TIMEOUT],
        "seconds": round(sum(tried[1] for tried in state.outcomes.values())),
        "survived": survivors,
    }


def reason_of(
    file: str, function: str, was: str, now: str, reasons: list[dict[str, str]]
) -> tuple[str, str]:
    """Return why it is right that no test notices a mutant, by the table; "open" where it is not
    said.
    """
    for reason in reasons:
        if (
            reason["file"] == file
            and reason.get("function", function) == function
            and reason.get("was", "") in was
            and reason.get("now", "") in now
        ):
            return reason["kind"], reason["why"]
    return "open", ""


def write_results(table: dict[str, Any]) -> None:
    """Write docs/results/mutants.json and docs/mutants.md from all that was tried.

    A file that was not tried in this checkout keeps its last results.
    """
    reasons = table.get("survivor", [])
    last = {each["file"]: each for each in json.loads(RESULTS.read_text())["files"]}
    summaries = {entry["name"]: summary(entry, reasons) for entry in table["file"]}
    for name, tried in summaries.items():
        if tried is None and name in last:
            summaries[name] = with_reasons(last[name], reasons)
    about = {
        "command": "make mutants",
        "mutmut": version("mutmut"),
        "torch": version("torch"),
        "seed": SEED,
        "files": [each for each in summaries.values() if each],
        "not tried": [name for name, each in summaries.items() if each is None],
    }
    RESULTS.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(about))


def with_reasons(recorded: dict[str, Any], reasons: list[dict[str, str]]) -> dict[str, Any]:
    """Return recorded results of a file with the reasons that the table gives now."""
    survivors = []
    for survivor in recorded["survived"]:
        place = survivor["function"], survivor["was"], survivor["now"]
        kind, why = reason_of(recorded["file"], *place, reasons)
        survivors.append(survivor | {"kind": kind, "why": why})
    return recorded | {"survived": survivors}


WORDS = """# Mutants

`make mutants` changes one place of a file at a time (an operator, a number, an argument, a condition), by the mutations of
mutmut {mutmut}, and runs the tests of the table `tools/mutants.toml` on it. A mutant that no test notices survives. Not
changed are texts, annotations, decorators, what stands outside functions, and the messages of errors. Where a file has
more mutants than were tried, they are drawn by seed {seed}. Every survivor is listed with its reason: "equivalent" computes
the same, "words" changes a message or a line of the log alone, "speed" changes time or memory alone, "elsewhere" is a matter of
tests that take too long for this table (they were not run on the mutant), "open" means that nobody has said why no test
of the table notices it.

The score is the share of the tried mutants that a test noticed; the last column leaves out those that are equivalent,
words or speed. [mutants.json](results/mutants.json) has the tests, the commit and the day of each file.

| file | mutants | tried | noticed | score | survived | open | score without equivalent ones |
|---|---|---|---|---|---|---|---|
{rows}
{untried}
{survivors}"""
HARMLESS = ("equivalent", "words", "speed")


def page(about: dict[str, Any]) -> str:
    """Return docs/mutants.md."""
    files = about["files"]
    sums = {
        key: sum(each[key] for each in files) for key in ("mutants", "tried", "killed", "timeout")
    }
    everything = sums | {"file": "all", "survived": [x for each in files for x in each["survived"]]}
    rows = [_row(each) for each in (*files, everything)]
    names = ", ".join(f"`{name}`" for name in about["not tried"])
    parts = [_survivors(each) for each in files if each["survived"]]
    return WORDS.format(
        mutmut=about["mutmut"],
        seed=about["seed"],
        rows="\n".join(rows),
        untried=f"\nNot tried yet: {names}.\n" if names else "",
        survivors="\n".join(parts),
    )


def _row(each: dict[str, Any]) -> str:
    noticed, tried = each["killed"] + each["timeout"], each["tried"]
    kinds = Counter(survivor["kind"] for survivor in each["survived"])
    rest = tried - sum(kinds[kind] for kind in HARMLESS)
    cells = [each["file"].removeprefix("src/nearfar/"), each["mutants"], tried, noticed]
    cells += [f"{100 * noticed / tried:.1f} %", len(each["survived"]), kinds["open"]]
    cells += [f"{100 * noticed / rest:.1f} %" if rest else ""]
    return f"| {' | '.join(map(str, cells))} |"


def _survivors(each: dict[str, Any]) -> str:
    lines = [f"## {each['file'].removeprefix('src/nearfar/')}", ""]
    for survivor in each["survived"]:
        lines += [f"- Line {survivor['line']}, `{survivor['function']}`, {survivor['kind']}"]
        lines[-1] += f": {survivor['why']}" if survivor["why"] else ""
        lines += [
            "",
            "    ```diff",
            f"    -{survivor['was']}",
            f"    +{survivor['now']}",
            "    ```",
            "",
        ]
    return "\n".join(lines)


def main() -> None:
    """Try mutants, and write the results and the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", help="files of the table (default: all)")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    options = parser.parse_args()
    table = tomllib.loads(TABLE.read_text())
    unknown = {*options.files} - {entry["name"] for entry in table["file"]}
    if unknown:
        raise SystemExit(f"not in {TABLE.name}: {', '.join(sorted(unknown))}")
    for entry in [] if options.page else table["file"]:
        if not options.files or entry["name"] in options.files:
            try_file(entry)
    write_results(table)


if __name__ == "__main__":
    main()
