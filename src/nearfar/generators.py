"""The random numbers of the user's own program: what nearfar draws does not move them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def generators_kept() -> Iterator[None]:
    """Put the global generators of torch, NumPy and `random` back afterwards; also a decorator of
    functions.

    Of a GPU's generators, that of the current device is put back if it was in use before.
    """
    import numpy as np  # here: `nearfar --help` needs neither
    import torch

    of_numpy, of_python = np.random.get_state(), random.getstate()
    there = torch.accelerator.current_accelerator(check_available=True)
    with ExitStack() as stack:
        devices = []
        if there is not None:
            started = getattr(torch.get_device_module(there), "is_initialized", lambda: True)
            devices = [torch.accelerator.current_device_index()] if started() else []
        of_gpu = {"device_type": there.type} if there is not None and devices else {}
        stack.enter_context(torch.random.fork_rng(devices, **of_gpu))
        try:
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)
