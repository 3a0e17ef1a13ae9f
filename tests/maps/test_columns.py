import base64

import numpy as np
import pytest

from nearfar.maps.columns import described, packed


def named(column):
    return [column.classes[code].name for code in column.values]


def test_text_is_classes_the_most_frequent_first_and_missing_last():
    (column,) = described({"camera": np.array(["B", None, "A", "A", "", "A", "B", "C"], dtype=object)}, 8)
    assert [one.name for one in column.classes] == ["A", "B", "C", "none"]
    assert named(column) == ["B", "none", "A", "A", "none", "A", "B", "C"]
    assert len({one.colour for one in column.classes}) == 4


def test_numbers_are_a_scale_and_few_whole_ones_classes():
    scale, few, flag = described({"a": np.arange(100), "b": np.arange(100) % 3, "c": np.arange(100) == 4}, 100)
    assert scale.classes is None and (scale.low, scale.high) == pytest.approx((0.99, 98.01))
    assert named(few)[:4] == ["0", "1", "2", "0"]
    assert named(flag)[3:6] == ["no", "yes", "no"]


def test_numbers_that_are_missing_or_infinite_have_no_colour():
    (column,) = described({"a": [1.0, np.nan, np.inf, 3.0]}, 4)
    assert np.isnan(column.values).tolist() == [False, True, True, False]
    assert 1 <= column.low < column.high <= 3
    (empty,) = described({"a": [np.nan, np.nan]}, 2)
    assert np.isnan(empty.values).all() and empty.low < empty.high


def test_rare_classes_are_drawn_together():
    (column,) = described({"id": [f"{i}" for i in range(600)] + ["0", ""]}, 602)
    assert len(column.classes) == 502 and column.classes[0].name == "0"
    assert named(column).count("all others") == 100 and named(column)[-1] == "none"


@pytest.mark.parametrize(("values", "says"), [([1, 2], "one value for each"), ([1j] * 3, "numbers or text")])
def test_columns_that_cannot_be_drawn(values, says):
    with pytest.raises(ValueError, match=says):
        described({"a": np.array(values)}, 3)


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32, ">f4"])
def test_numbers_are_packed_little_endian(kind):
    given = packed(np.array([1, 258], dtype=kind))
    assert np.frombuffer(base64.b64decode(given["bytes"]), "<" + given["type"]).tolist() == [1, 258]
