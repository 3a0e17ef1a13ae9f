"""Text files in the encodings that people have: UTF-8 with and without a byte-order mark, UTF-16,
Latin-1.
"""

from __future__ import annotations

import codecs

_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def encoding_of(content: bytes) -> str:
    """The encoding of a text: by its mark, by the zero bytes of UTF-16, or UTF-8, else Windows'
    form of Latin-1.
    """
    encoding = next((name for mark, name in _MARKS.items() if content.startswith(mark)), None)
    if encoding is not None:
        return encoding
    head = content[:4096]
    for name, zeros in (("utf-16-le", head[1::2]), ("utf-16-be", head[::2])):
        others = head.count(0) - zeros.count(0)  # of letters such as U+0100
        if zeros and 2 * zeros.count(0) > len(zeros) and 8 * others <= zeros.count(0):
            return name
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def text_of(content: bytes) -> str:
    """The text; of bytes that Windows' form of Latin-1 leaves out, Latin-1's."""
    encoding = encoding_of(content)
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        return content.decode("latin-1" if encoding == "cp1252" else encoding, "replace")


def lines_of(text: str) -> list[str]:
    """Return the entries of a list, one a line or with a zero byte behind each; empty ones are left
    out.
    """
    return [line for line in (text.split("\0") if "\0" in text else text.splitlines()) if line]
