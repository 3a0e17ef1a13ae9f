"""`nearfar reproduce` and `nearfar transfer` as `nearfar` finds them: listed, explained, parsed."""

import inspect
import shlex
import subprocess
import sys

import pytest

import nearfar_papers
from nearfar import cli, plugins
from nearfar.app import command_app, examples_of, function_of, options_of_app
from nearfar.cli import main

COMMANDS = sorted(nearfar_papers.__all__)


def test_every_public_function_is_a_command(capsys):
    assert sorted(plugins.commands()) == COMMANDS
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    for name in COMMANDS:
        assert function_of(name) is getattr(nearfar_papers, name)
        assert inspect.getdoc(function_of(name))[:40] in listed


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_says_what_it_means_and_can_be_given(name):
    known = {argument.field_info.name: argument for argument in options_of_app(command_app(name))}
    assert all(argument.parameter.help for argument in known.values())
    assert known.keys() - {"json"} == inspect.signature(function_of(name)).parameters.keys() - {
        "encoder"
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_can_be_run(name, monkeypatch, capsys):
    called, examples = [], examples_of(name)
    monkeypatch.setattr(cli, "function_of", lambda verb: lambda **given: called.append(given))
    for example in examples:
        assert main(shlex.split(example)[1:]) == 0, capsys.readouterr().err
    assert len(called) == len(examples) > 0


def test_words_are_taken_as_their_places_say(monkeypatch):
    given = {}
    monkeypatch.setattr(cli, "function_of", lambda verb: lambda **words: given.update(words))
    assert main(["reproduce", "saclr/table-7", "--no-run", "--seeds", "2"]) == 0
    assert given == {"table": "saclr/table-7", "run": False, "seeds": 2}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_imports_no_library(name):
    spared = {"torch", "numpy", "timm", "torchvision", "sklearn", "matplotlib"}
    script = (
        f"from nearfar.cli import main; assert main([{name!r}, '--help']) == 0\nimport sys\n"
        f"assert not {spared} & set(sys.modules), {spared} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
