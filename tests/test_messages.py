"""The nearest name, and the first line of an error."""

from nearfar.messages import did_you_mean, first_line


def test_the_nearest_names_are_offered():
    assert did_you_mean("resnet81", ["small", "resnet18"]) == "did you mean 'resnet18'?"
    assert did_you_mean("xyz", ["small"], otherwise="see --help") == "see --help"
    assert did_you_mean("resnt", ["resnet18", "resnet50"], most=2) == "did you mean 'resnet50' or 'resnet18'?"


def test_the_first_line_of_an_error():
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"
