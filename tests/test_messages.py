"""The nearest name, the first line of an error, and what a docstring says of each argument."""

import pytest

from nearfar.messages import did_you_mean, first_line, of_arguments, one_line


def test_the_nearest_names_are_offered():
    assert did_you_mean("resnet81", ["small", "resnet18"]) == "did you mean 'resnet18'?"
    assert did_you_mean("xyz", ["small"], otherwise="see --help") == "see --help"
    assert did_you_mean("resnt", ["resnet18", "resnet50"], most=2) == "did you mean 'resnet50' or 'resnet18'?"


def test_the_first_line_of_an_error():
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"


def test_errors_of_the_kinds_given_become_one_line():
    with pytest.raises(ValueError, match=r"^cannot read it: at byte 7$") as caught, one_line("cannot read it"):
        raise RuntimeError("at byte 7\nand more")
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(RuntimeError), one_line("cannot read it", OSError, KeyError):
        raise RuntimeError("of another kind")
    with pytest.raises(KeyboardInterrupt), one_line("cannot read it"):
        raise KeyboardInterrupt


def test_the_docstring_of_an_argument_is_one_line():
    docs = "First line.\n\nArgs:\n    data: images, as one\n        reads them: a folder.\n    k: how many.\n"
    docs += "\nReturns:\n    k: no."
    assert of_arguments(docs) == {"data": "images, as one reads them: a folder.", "k": "how many."}
    assert of_arguments("First line.") == {}
