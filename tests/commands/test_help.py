"""The pages of --help: read from the source, they say what the parsers take."""

import functools
import re
import shlex
from typing import get_args

import pytest

from nearfar import cli
from nearfar.cli import VERBS, build_parser, function_of, main
from nearfar.commands.declared import read_verb
from nearfar.commands.help import GROUPS
from nearfar.methods import method_class, method_names
from nearfar.methods.recipe import OptimizerName


def page(capsys, *words):
    assert main(list(words)) == 0
    return capsys.readouterr().out


def options_of(text):
    return set(re.findall(r"^ +(--[\w-]+)", text, re.MULTILINE))


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_read_is_what_is_parsed(verb):
    """Names, defaults and words of the options."""
    read = {option.name: option for option in read_verb(verb).options}
    actions = {action.dest: action for action in build_parser(verb)._actions}
    numbers = set(vars(method_class("simclr").from_recipe())) if verb == "pretrain" else set()
    assert set(read) == set(actions) - {"help", "print_config"} - numbers
    for name, option in read.items():
        parsed = actions[name].default
        if option.default is not None:
            assert (tuple(parsed) if isinstance(parsed, list) else parsed) == option.default, name
        assert option.meaning, name


def test_words_that_an_option_is_limited_to():
    (optimizer,) = (option for option in read_verb("pretrain").options if option.name == "optimizer")
    assert optimizer.choices == get_args(OptimizerName)
    (precision,) = (option for option in read_verb("pretrain").options if option.name == "precision")
    assert precision.choices == ("auto", "32-true", "16-mixed", "bf16-mixed")  # of a type with a name
    (to,) = (option for option in read_verb("export").options if option.name == "to")
    assert to.choices == ("onnx", "torch", "timm", "safetensors") and to.required


@pytest.mark.parametrize("verb", VERBS)
def test_examples_can_be_run(verb, monkeypatch, capsys):
    """They are parsed as they are written; the function behind the verb is not called."""
    called = []

    def recorded(verb):
        function = function_of(verb)

        @functools.wraps(function)
        def call(*given, **named):
            called.append(verb)
            return {"problems": [], "name": []}

        return call

    monkeypatch.setattr(cli, "function_of", recorded)
    monkeypatch.setattr("nearfar.commands.pretrain.resume", recorded("pretrain"))
    examples = read_verb(verb).examples
    assert examples
    for example in examples:
        first, *words = shlex.split(re.split("[|>]", example)[0])
        assert (first, words[0]) == ("nearfar", verb)
        assert main(words) == 0, capsys.readouterr().err
    assert len(called) == len(examples)


def test_the_usual_settings_are_on_a_short_page_and_all_on_a_long_one(capsys):
    short = page(capsys, "pretrain", "--help")
    assert {"--minutes", "--batch-size", "--method", "--encoder", "--views", "--out", "--help-all"} <= options_of(short)
    assert not {"--vector-lr", "--health-every", "--temperature"} & options_of(short)
    assert len(short.splitlines()) < 80
    long = page(capsys, "pretrain", "--help-all")
    assert {f"--{option.name.replace('_', '-')}" for option in read_verb("pretrain").options} <= options_of(long) | {
        "--data"
    }
    titles = [*GROUPS, *(f"--method {name}" for name in method_names())]
    places = [long.index(f"\n{title}:\n") for title in titles]
    assert places == sorted(places)  # in the order in which people need them, the methods' own numbers last
    assert "In Python" not in long and "in Python" not in long
    assert "--value-range X [X ...]" in long and "--micro-batch N" in long and "--optimizer {sgd,adam" in long


def test_numbers_of_a_method_stand_as_its_recipe_sets_them(capsys):
    text = page(capsys, "pretrain", "--help-all", "--method", "simclr", "--recipe", "cifar")
    assert "--method simclr --recipe cifar:" in text and "--queue-size" not in text
    numbers = " ".join(text.split("--recipe cifar:")[1].split())
    assert re.search(r"--temperature X of the softmax; .*? Default: 0\.5 ", numbers)
    assert "widths of the projector. Default: 2048 128" in numbers
    assert main(["pretrain", "--help-all", "--method", "simclrr"]) == 2
    assert "did you mean 'simclr'" in capsys.readouterr().err


def test_pages_show_places_and_what_is_required(capsys):
    assert page(capsys, "embed", "-h").startswith("nearfar embed RUN [DATA ...] --out OUT [options]\n")
    assert page(capsys, "search", "--help").startswith("nearfar search RUN [IMAGES ...] [options]\n")
    assert page(capsys, "evaluate", "run", "--help-all") == page(capsys, "evaluate", "--help")


def test_a_switch_needs_no_value():
    words = build_parser("push").parse_args(["run", "owner/name", "--private"]).as_dict()
    assert words["private"] is True and words["to"] is None
    assert build_parser("evaluate").parse_args(["run", "--baselines", "false"]).baselines is False
    given = build_parser("pretrain", "simclr").parse_args(["photos", "--output_norm", "--adapt"])
    assert given.output_norm is True and given.adapt is True and given.tensorboard is False
