"""The texts that a test compares with a message are found whatever way the test has them."""

import pytest

from tools.wording import compared_texts, count_words

TABLE = """
import pytest

SAYS = {"a": "of a table", "b": "of another row"}

@pytest.mark.parametrize(("given", "says"), [(1, "of a parameter"), pytest.param(2, "of one more")])
def test_it(given, says, log, complaint, capsys):
    with pytest.raises(ValueError, match=f"of {given} format"):
        give(given, "that is given")
    with pytest.raises(OSError, match=says) as caught:
        give(given)
    assert "of an error" in str(caught.value)
    for word, message in SAYS.items():
        assert message in complaint(word)
    line = complaint("x")
    assert line == ("of two " "lines") and "of the log" not in log.text
    found = {"of no message": line}
    assert "in a dictionary" in found
    assert capsys.readouterr().err.startswith("of a beginning")
    assert re.search("of a pattern", log.lines[0])
"""


def test_texts_are_found_in_all_places(tmp_path):
    (tmp_path / "test_it.py").write_text(TABLE)
    texts = {text for _, text in compared_texts(tmp_path / "test_it.py")}
    assert texts == {
        *("of a table", "of another row", "of a parameter", "of one more", "of 0 format"),
        *("of an error", "of two lines", "of the log", "of a beginning", "of a pattern"),
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [("no column 'sort'", 3), (r"\d+ of \d+ images", 2), (r"\[2, 3\] .* 4", 0), ("a-b c", 2)],
)
def test_numbers_and_signs_are_no_words(text, words):
    assert count_words(text) == words
