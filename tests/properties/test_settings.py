"""Settings there and back: what is given arrives, through YAML and through the command line."""

import tempfile
from math import inf
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nearfar import cli
from nearfar.messages import to_argv
from nearfar.training.settings import OBJECTS, Settings, read_yaml, settings_fields

HINTS = get_type_hints(Settings)
TEXTS = st.text(min_size=1, max_size=12)
WORDS = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=12
)


def values(hint, at_least, at_most, texts):
    """Values of a type within a range."""
    if get_origin(hint) in (Union, UnionType):
        parts = [
            values(declared, at_least, at_most, texts)
            for declared in get_args(hint)
            if declared is not type(None)
        ]
        return st.one_of(parts)
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) is list:
        return st.lists(values(get_args(hint)[0], -(2**31), 2**31, texts), min_size=1, max_size=4)
    if hint is bool:
        return st.booleans()
    if hint is str:
        return texts
    if issubclass(hint, Integral):
        return st.integers(int(max(at_least, -(2**31))), int(min(at_most, 2**31)))
    assert issubclass(hint, Real)
    low, high = max(at_least, -1e30), min(at_most, 1e30)
    return st.floats(low, high, allow_subnormal=False)


def settings(texts):
    """Settings by name, of which some are given."""
    drawn = {
        declared.name: texts
        if declared.name in OBJECTS
        else values(HINTS[declared.name], *declared.metadata.get("range", (-inf, inf)), texts)
        for declared in settings_fields()
    }
    drawn["recipe"] = st.sampled_from(["small", "cifar"])
    method = st.just({"method": "simclr"})  # whose hyperparameters the parser knows
    drawn |= {"temperature": st.floats(0.01, 1), "large_views": st.integers(2, 4)}
    some = st.fixed_dictionaries({}, optional={k: v for k, v in drawn.items() if k != "method"})
    return st.tuples(some, method).map(lambda both: both[0] | both[1])


def parsed(words):
    """The settings that `nearfar pretrain` is called with; fails where it is not called."""
    called = []

    def function_of(verb):
        return lambda **given: called.append((verb, given))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "function_of", function_of)
        assert cli.main(["pretrain", *words]) == 0, words
    ((verb, given_now),) = called
    assert verb == "pretrain"
    return Settings.of(**given_now)


@given(settings(TEXTS))
@example({"method": "simclr", "data": "a\x85b"})
def test_yaml_gives_back_what_was_saved(given_settings):
    before = Settings.of(**given_settings)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.yaml")
        before.save(path)
        assert Settings.load(path) == before
        assert read_yaml(path)["seed"] == before.seed


@given(settings(WORDS))
def test_a_saved_file_is_the_same_on_the_command_line(given_settings):
    before = Settings.of(**given_settings)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.yaml")
        before.save(path)
        assert parsed(["--config", str(path)]) == before


@given(settings(WORDS.filter(lambda text: not text.startswith("-"))), st.integers(0, 9))
@example({"method": "simclr", "data": "photos", "adapt": True}, 1)
def test_options_of_the_command_line_arrive_as_they_are(given_settings, behind):
    """With the data before them, or behind one that takes no word."""
    data = given_settings.pop("data", None)
    options = [to_argv({name: value}) for name, value in given_settings.items()]
    if data is not None:
        flags = [n for n, words in enumerate(options, 1) if len(words) == 1]
        places = [0, *flags]
        options.insert(places[behind % len(places)], [data])
    expected = Settings.of(**given_settings, **({} if data is None else {"data": data}))
    assert parsed([word for words in options for word in words]) == expected


@given(st.integers(2, 9), st.integers(1, 12))
@example(9, 9)
def test_aliases_that_stand_for_more_than_a_file_holds_are_refused(width, depth):
    """Each name stands for the one before it so many times, down to a word."""
    names = [
        "&a0 x",
        *(f"&a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, depth + 1)),
    ]
    text = "".join(f"{key}: {value}\n" for key, value in zip("abcdefghijklm", names, strict=False))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.yaml")
        path.write_text(text)
        try:
            read_yaml(path)
        except ValueError as error:
            assert width**depth > 1000 and "\n" not in str(error)
        else:
            assert width**depth < 10**6
