"""What a docstring says of each argument."""

from nearfar.docstrings import arguments

DOCS = """First line.

Args:
    data: images, as one
        reads them: a folder.
    k: how many.

Returns:
    k: not an argument.
"""


def test_meanings_are_one_line_each():
    assert arguments(DOCS) == {"data": "images, as one reads them: a folder.", "k": "how many."}
    assert arguments("First line.") == {}
