"""The estimator of scikit-learn: the same numbers give the same features, in any type and layout."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.sklearn import ContrastiveEncoder

TYPES = [
    "u1",
    "u2",
    "i1",
    "i2",
    "i4",
    "i8",
    "u8",
    "f2",
    "f4",
    "f8",
    ">u2",
    ">i4",
    ">f4",
    ">f8",
    "O",
]
LAYOUTS = {
    "plain": lambda numbers: numbers,
    "in the order of Fortran": np.asfortranarray,
    "every second": lambda numbers: np.repeat(numbers, 2, axis=1)[:, ::2],
    "turned around": lambda numbers: numbers[:, ::-1].copy()[:, ::-1],
    "lists": lambda numbers: numbers.tolist(),
    "with an axis of channels": lambda numbers: numbers[..., None],
}


def drawn_images(seed, most, count=24):
    numbers = np.random.default_rng(seed).integers(0, most + 1, (count, 8, 8))
    numbers[0, 0, :2] = 0, most  # the range is that of the numbers
    return numbers


@pytest.fixture(scope="module")
def fitted():
    """Estimators by the type and the largest number that they were fitted to."""
    known = {}

    def fit(kind, most):
        if (kind, most) not in known:
            quick = dict(held_out=0, optimizer="sgd", lr=0.01)
            estimator = ContrastiveEncoder(encoder="tiny", epochs=1, batch_size=12, settings=quick)
            known[kind, most] = estimator.fit(drawn_images(0, most).astype(kind))
        return known[kind, most]

    return fit


@settings(max_examples=12 if settings.default.derandomize else settings.default.max_examples)
@given(
    of_fit=st.sampled_from(["u1", "f8"]),
    most=st.just(100) if settings.default.derandomize else st.integers(2, 127),
    kind=st.sampled_from(TYPES),
    layout=st.sampled_from(sorted(LAYOUTS)),
    seed=st.integers(1, 99),
)
def test_equal_numbers_give_equal_features(of_fit, most, kind, layout, seed, fitted):
    estimator = fitted(of_fit, most)
    numbers = drawn_images(seed, most, count=3)
    expected = estimator.transform(numbers.astype(of_fit))
    assert np.ptp(expected, axis=0).max() > 1e-3  # it sees the images
    again = estimator.transform(LAYOUTS[layout](numbers.astype(kind)))
    np.testing.assert_array_equal(again, expected)
