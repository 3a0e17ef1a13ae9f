"""The pages of --help, made of the same signatures as the parsers; and the examples on them."""

import inspect
import re
import shlex

import pytest

from nearfar import cli
from nearfar.arguments import GROUPS, VERBS, examples_of, function_of, verb_app
from nearfar.cli import main


def page(capsys, *words):
    assert main(list(words)) == 0
    return capsys.readouterr().out


def options_of(text):
    return set(re.findall(r"^│ +(--[\w-]+)", text, re.MULTILINE))


def words_of(text):
    return " ".join(re.sub("[│─╮╭╰╯]", " ", text).split())


@pytest.mark.parametrize("verb", VERBS)
def test_every_argument_says_what_it_means_and_can_be_given(verb):
    """Parameters that take objects alone, and nothing else, are left out."""
    known = {one.field_info.name: one for one in verb_app(verb).assemble_argument_collection()}
    assert all(one.parameter.help for one in known.values())
    if verb != "pretrain":
        parameters = inspect.signature(function_of(verb)).parameters
        left_out = parameters.keys() - known.keys()
        assert {"console"} <= left_out <= {"console", "encoder", "views"} - ({"views"} if verb == "views" else set())
        assert known.keys() - parameters.keys() <= {"json", "null"}
        assert all(one.field_info.required == (parameters[name].default is inspect.Parameter.empty)
                   for name, one in known.items() if name in parameters)  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_examples_can_be_run(verb, monkeypatch, capsys):
    """They are parsed as they are written; the function behind the verb is not called."""
    examples = examples_of(verb)
    assert examples and all(example in page(capsys, verb, "--help") for example in examples)
    called = []

    def recorded(*given, **named):
        called.append(verb)
        return {"problems": [], "name": []}

    monkeypatch.setattr(cli, "function_of", lambda verb: recorded)
    monkeypatch.setattr("nearfar.resume", recorded)
    for example in examples:
        first, *words = shlex.split(re.split("[|>]", example)[0])
        assert (first, words[0]) == ("nearfar", verb)
        assert main(words) == 0, capsys.readouterr().err
    assert called == [verb] * len(examples)


def test_the_usual_settings_are_on_a_short_page_and_all_on_a_long_one(capsys):
    short = page(capsys, "pretrain", "--help")
    assert {"--minutes", "--batch-size", "--method", "--encoder", "--views", "--out"} <= options_of(short)
    assert "--help-all" in short
    assert not {"--weight-decay", "--log-every", "--temperature"} & options_of(short)
    assert len(short.splitlines()) < 80
    long = page(capsys, "pretrain", "--help-all")
    arguments = verb_app("pretrain").assemble_argument_collection()
    assert {one.name for one in arguments if one.name.startswith("--")} <= options_of(long)
    titles = [*GROUPS, "--method simclr --recipe small"]
    places = [long.index(f"─ {title} ─") for title in titles]
    assert places == sorted(places)  # in the order in which people need them, the method's own numbers last
    assert "In Python" not in long and "in Python" not in long
    said = words_of(long)
    assert "[choices: sgd, adam" in said and "Default: 30, unless epochs" in said and "[default: None]" not in said


def test_numbers_of_a_method_stand_as_its_recipe_sets_them(capsys):
    text = page(capsys, "pretrain", "--help-all", "--method", "simclr", "--recipe", "cifar")
    assert "--queue-size" not in text
    numbers = words_of(text.split("--method simclr --recipe cifar ─")[1])
    assert re.search(r"--temperature .*of the softmax; .*? \[default: 0\.5\]", numbers)
    assert "widths of the projector. [default: 2048 128]" in numbers
    assert "--queue-size" in page(capsys, "pretrain", "--method", "moco-v2", "--help")
    assert main(["pretrain", "--help-all", "--method", "simclrr"]) == 2
    assert "did you mean 'simclr'" in capsys.readouterr().err


def test_pages_show_places_and_what_is_required(capsys):
    text = page(capsys, "embed", "-h")
    assert text.startswith("Usage: nearfar embed ") and " RUN [ARGS...]\n" in text
    assert re.search(r"\* +--out .*\[required\]", " ".join(text.split()))
    assert page(capsys, "evaluate", "run", "-h") == page(capsys, "evaluate", "--help")
