"""The GPU of these tests: the stand-in, or this machine's own where NEARFAR_TEST_DEVICE is "gpu"
(`make gpu`).

Registering the stand-in hides a real GPU from torch, so it is imported only where it is used; and
before any test has run, since torch takes no new device once it has computed gradients.
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager

import pytest
import torch

REAL = os.environ.get("NEARFAR_TEST_DEVICE") == "gpu"
if not REAL:
    from tests.standin.device import DEVICE, available, synchronisations
collect_ignore = ["test_device.py"] if REAL else []  # what the stand-in alone can show


@pytest.fixture(autouse=True, scope="module")
def device():
    """The GPU, which torch finds while these tests run; float32 is float32 there."""
    if not REAL:
        with available():
            yield DEVICE
        return
    kind = torch.accelerator.current_accelerator(check_available=True)
    assert kind is not None, "NEARFAR_TEST_DEVICE is gpu, but torch finds none"
    with pytest.MonkeyPatch.context() as patch:
        for backend in (torch.backends.cudnn, torch.backends.cuda.matmul):
            patch.setattr(backend, "allow_tf32", False)
        yield torch.device(kind.type, 0)


@pytest.fixture(scope="module")
def tolerance():
    """Tolerance of float32: the stand-in computes on the CPU, a GPU adds up in another
    order.
    """
    return dict(rtol=1e-2, atol=1e-3) if REAL else dict(rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def waits_for():
    """A context that collects where the CPU waits for the GPU: (what, the line of the project that
    asked for it).
    """
    if not REAL:
        return synchronisations
    return _warned


@contextmanager
def _warned():
    """Warnings of torch's own debug mode on waiting; CUDA's alone has one."""
    notes = []
    if torch.accelerator.current_accelerator().type != "cuda":
        yield notes
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield notes
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for warning in caught:
        if "synchroniz" in str(warning.message) and "nearfar" in warning.filename:
            with open(warning.filename) as source:
                notes.append(
                    (str(warning.message), source.read().splitlines()[warning.lineno - 1].strip())
                )
