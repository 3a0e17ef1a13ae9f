"""docs/interface.md lists the public interface as the code has it, and rooms export few names."""

import importlib
import inspect
from pathlib import Path

import pytest

import nearfar
from nearfar.app import command_paths
from nearfar.methods import Method, method_names
from tools.interface import ROOMS, interface_page, options_of, public_names, signature

PAGE = Path(__file__).parents[2] / "docs" / "interface.md"
NAMES = 8  # at most, in one room
MORE = {
    "losses": 23,
    "pairs": 16,
    "methods": 10,
    "networks": 10,
    "evaluation": 11,
}  # a loss for each paper; the reductions, kernels and samples behind them; what protocols need


def test_the_committed_page_is_the_interface():
    """A change of a public name, argument, default or option shows in this file; CHANGELOG.md says
    what it was.
    """
    assert PAGE.read_text(encoding="utf-8") == interface_page(), "run: python -m tools.interface"


def test_the_page_has_every_verb_and_every_public_name():
    words = interface_page()
    assert all(f"| `{verb}` |" in words for verb in command_paths())
    listed = {line.split("(")[0] for line in words.splitlines()}
    assert {*nearfar.__all__} - {"__version__"} <= listed
    assert all({*public_names(room)} <= listed for room in ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_exports_few_names(room):
    module = importlib.import_module(f"nearfar.{room}")
    names = [name for name in public_names(room) if not _is_a_method(getattr(module, name))]
    assert len(names) <= MORE.get(room, NAMES)
    assert len({*names}) == len(names)


def _is_a_method(value):
    return isinstance(value, type) and issubclass(value, Method) and value is not Method


def test_every_registered_method_is_exported():
    listed = {
        name for name in public_names("methods") if _is_a_method(getattr(nearfar.methods, name))
    }
    assert len(listed) == len(method_names())


def test_every_public_function_has_a_docstring():
    rooms = [importlib.import_module(f"nearfar.{room}") for room in ROOMS]
    shown = [
        getattr(room, name)
        for room in rooms
        for name in public_names(room.__name__.partition(".")[2])
    ]
    assert not [
        public.__name__
        for public in shown
        if inspect.isroutine(public) and not inspect.getdoc(public)
    ]


def test_options_and_signatures_are_written_as_they_are_given():
    assert list(options_of("export")) == ["RUN", "--out", "--to"]
    assert (
        signature("SimCLR", nearfar.losses.SimCLR)
        == "SimCLR(\n    temperature: float = 0.2,\n    gather: bool = False,\n"
        "    group_size: int | None = None,\n    learn_temperature: bool = False,\n)"
    )

    def drawn(rows, *, out=None): ...

    drawn.__annotations__ = {
        "rows": "Float[Tensor, 'a b']",
        "out": "str | None",
        "return": "tuple['A', int]",
    }
    assert (
        signature("f", drawn)
        == "f(rows: Float[Tensor, 'a b'], *, out: str | None = None) -> tuple['A', int]"
    )
    assert signature("Stopped", nearfar.TrainingStopped) == "Stopped"
