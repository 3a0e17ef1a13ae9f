"""Losses of nearfar: an index of any whole numbers, and learned numbers that are pushed far away."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nearfar import losses
from nearfar.testing import make_inputs, state_of, step_of
from tests.losses.test_contract import LEARNED

IMAGES, BATCH = 100, 6
OF_IMAGES = {
    "SACLR": lambda: losses.SACLR(IMAGES, "row", "all"),
    "SogCLR": lambda: losses.SogCLR(IMAGES),
    "ISogCLR": lambda: losses.ISogCLR(IMAGES),
}
WHOLE = [torch.int64, torch.int32, torch.int16, torch.int8]
INDEX = st.lists(st.integers(0, IMAGES - 1), min_size=BATCH, max_size=BATCH)


@given(st.sampled_from(sorted(OF_IMAGES)), INDEX, st.sampled_from(WHOLE))
def test_an_index_has_the_same_images_in_every_type(name, index, kind):
    """Value, gradients and state of two steps, and every row of the state but theirs at rest."""
    first, second = OF_IMAGES[name](), OF_IMAGES[name]()
    before = state_of(first)
    for step in range(2):
        rows = make_inputs(("view", "view"), BATCH, dtype=torch.float32, step=step)
        wanted = step_of(first, [*rows, torch.tensor(index)])
        again = step_of(second, [*rows, torch.tensor(index).to(kind)])
        assert torch.equal(wanted[0], again[0])
        assert all(torch.equal(*pair) for pair in zip(wanted[1][:2], again[1][:2], strict=True))
    others = [row for row in range(IMAGES) if row not in index]
    for key, now in state_of(second).items():
        assert torch.equal(now, state_of(first)[key])
        if now.ndim and len(now) == IMAGES:
            assert torch.equal(now[others], before[key][others])


@given(
    st.sampled_from(sorted(OF_IMAGES)),
    INDEX,
    st.integers(-128, -1) | st.integers(IMAGES, 127),
    st.integers(0, BATCH - 1),
    st.sampled_from(WHOLE),
)
def test_an_index_of_no_image_is_refused_and_leaves_no_trace(name, index, wrong, place, kind):
    loss = OF_IMAGES[name]()
    before = state_of(loss)
    index[place] = wrong
    rows = make_inputs(("view", "view"), BATCH, dtype=torch.float32)
    with pytest.raises(ValueError, match=f"got {wrong}"):
        loss(*rows, torch.tensor(index).to(kind))
    assert all(torch.equal(value, before[key]) for key, value in state_of(loss).items())


LEARNING = {name: case for name, case in LEARNED.items() if "groups" not in name}
LEARNING["SigCLR"] = (lambda: losses.SigCLR(learn_temperature=True), "oo")
NAMES = {"o": "view", "O": "views", "k": "key", "K": "keys", "q": "queue", "i": "index"}


@pytest.mark.parametrize("name", sorted(LEARNING))
@settings(max_examples=2 if settings.default.derandomize else settings.default.max_examples)
@given(exponent=st.floats(-3, 6), seed=st.integers(0, 99))
@example(exponent=6.0, seed=0)
def test_learned_numbers_stay_finite_at_any_learning_rate(exponent, seed, name):
    """Ten steps of plain descent: a rate too high throws them far away, and never to NaN."""
    made, kinds = LEARNING[name]
    loss = made()
    optimizer = torch.optim.SGD(loss.parameters(), lr=10**exponent)
    for step in range(10):
        given_now = make_inputs([NAMES[k] for k in kinds], dtype=torch.float32, step=seed + step)
        optimizer.zero_grad()
        value = loss(*(x.detach() for x in given_now))
        value.backward()
        optimizer.step()
        assert value.isfinite(), (step, value)
        assert all(parameter.isfinite().all() for parameter in loss.parameters())
        temperature = loss.monitored["temperature"].item()
        assert 0.01 * (1 - 1e-5) <= temperature <= 100 * (1 + 1e-5)
        assert math.isfinite(temperature)
