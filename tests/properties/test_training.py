"""Runs: what they leave as it was, and what chance and the machine do not change."""

import random
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import nearfar
from nearfar.networks.backbone import fitting_size
from nearfar.training import loop
from nearfar.training.model_size import model_candidates
from nearfar.training.settings import Settings
from tests.properties.given import FEW
from tests.properties.test_tables import written
from tests.properties.test_verbs import IMAGES, VERBS, inside
from tests.steps import at_step, same_runs

QUICK = dict(
    epochs=1, batch_size=16, held_out=16, encoder="tiny", precision="32-true", compile=False
)
ONE = settings(FEW, max_examples=1 if settings.default.derandomize else FEW.max_examples)
"""For properties that train twice, or for many steps: others by `make properties`."""
USES = {
    **{
        verb: lambda verb=verb, **options: getattr(nearfar, verb)("t.csv", **options)
        for verb in VERBS
    },
    "pretrain": lambda: nearfar.pretrain(
        "photos", out="run", **QUICK | {"batch_size": 4, "held_out": 0}
    ),
    "views": lambda: nearfar.views("photos", out="views.html"),
}


def states():
    """The states of the global generators, in plain values."""
    kind, keys, *others = np.random.get_state()
    return torch.get_rng_state().tolist(), (kind, keys.tolist(), *others), random.getstate()


@settings(FEW, max_examples=5 if settings.default.derandomize else FEW.max_examples)
@given(st.sampled_from(sorted(USES)), st.integers(0, 2**31), st.integers(0, 3))
def test_the_global_generators_are_as_before_after_each_function(name, seed, drawn):
    table = written(
        [(f"photos/{file}", str(n % 2)) for n, file in enumerate(IMAGES)], ["path", "label"]
    )
    before = states()
    try:
        with inside(IMAGES) as folder:
            (folder.parent / "t.csv").write_bytes(table)
            torch.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            torch.rand(drawn), np.random.rand(drawn), [random.random() for _ in range(drawn)]
            own = states()
            USES[name](
                **VERBS.get(name, {}) | ({"images": "photos/0.png"} if name == "search" else {})
            )
            assert states() == own
    finally:
        torch.set_rng_state(torch.tensor(before[0], dtype=torch.uint8))
        kind, keys, *others = before[1]
        np.random.set_state((kind, np.array(keys, np.uint32), *others))
        random.setstate(before[2])


@contextmanager
def computing_with(threads):
    """As if the caller, or OMP_NUM_THREADS, had set this number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@ONE
@given(
    threads=st.integers(1, 2),
    around=st.permutations([1, 2]),
    workers=st.permutations([0, 1]),
    method=st.sampled_from(["simclr", "sogclr", "moco-v2", "vicreg"]),
)
def test_a_run_has_the_same_bits_whatever_threads_and_workers_are_around(
    threads, around, workers, method, images_file
):
    """Its own number of threads is a setting, since sums depend on it; nothing else may."""
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for number in range(2):
            with computing_with(around[number]):
                options = QUICK | {"method": method, "threads": threads}
                runs.append(
                    nearfar.pretrain(
                        images_file,
                        out=Path(folder, f"run{number}"),
                        workers=workers[number],
                        **options,
                    )
                )
        same_runs(*runs)


@ONE
@given(
    each=st.floats(1, 3),
    log_every=st.sampled_from([1, 7, 1000, 10**6]),
    minutes=st.floats(0.5, 1.5),
)
@example(each=1.5, log_every=10**6, minutes=0.5)
def test_a_run_keeps_to_its_minutes_however_rarely_it_logs(each, log_every, minutes, images_file):
    """By a clock that moves at each step alone: at most a few steps too long."""
    now = [0.0]

    def slow():
        now[0] += each

    budget = loop.StepBudget
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as folder,
        at_step(*range(10_000), do=slow),
    ):
        patch.setattr(loop, "StepBudget", lambda *given: budget(*given, clock=lambda: now[0]))
        options = QUICK | {"epochs": None, "image_size": 8}
        nearfar.pretrain(
            images_file, out=Path(folder, "run"), minutes=minutes, log_every=log_every, **options
        )
    assert now[0] <= 60 * minutes * 1.1 + 3 * each


@FEW
@given(
    st.sampled_from([2, 3, 4, 5, 7, 8, 14, 16]),
    st.integers(28, 40) | st.integers(24, 300),
    st.integers(16, 300),
    st.none() | st.integers(1, 9),
    st.sampled_from(["small", "cifar"]),
)
@example(7, 32, 32, 5, "small")
@example(16, 200, 200, None, "small")
def test_sizes_that_are_chosen_are_multiples_of_the_patch(patch, side, wanted, epochs, recipe):
    """Of images and of crops, at every size of the data, with a time to fill or without."""
    encoder = f"vit_tiny_patch16_224(patch_size={patch}, depth=1, embed_dim=24, num_heads=2)"
    size = fitting_size(encoder, min(wanted, side), side)
    assert size <= side and size % patch == 0
    given_settings = Settings("photos", encoder=encoder, epochs=epochs, recipe=recipe)
    for candidate in model_candidates(given_settings, side):
        assert candidate.image_size <= side and candidate.crop_size <= candidate.image_size
        assert candidate.image_size % patch == candidate.crop_size % patch == 0
