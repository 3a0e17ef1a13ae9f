"""nearfar and the program that calls it leave each other's random numbers and modes alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def isolated() -> Iterator[None]:
    """Compute in the usual modes of torch and NumPy, and put the global generators back afterwards;
    also a decorator of functions.

    Modes: gradients are recorded, new numbers are float32 on the CPU, autocast is off, and NumPy
    raises nothing, whatever the caller has set for its own work. Generators: those of torch, NumPy
    and `random`; of a GPU's, that of the current device is put back if it was in use before.
    """
    import numpy as np  # here: `nearfar --help` needs neither
    import torch

    of_numpy, of_python = np.random.get_state(), random.getstate()
    default = torch.get_default_dtype()
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    with ExitStack() as stack:
        devices = []
        if accelerator is not None:
            started = getattr(torch.get_device_module(accelerator), "is_initialized", lambda: True)
            devices = [torch.accelerator.current_device_index()] if started() else []
        of_gpu = {"device_type": accelerator.type} if accelerator is not None and devices else {}
        stack.enter_context(torch.random.fork_rng(devices, **of_gpu))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in {"cpu", "cpu" if accelerator is None else accelerator.type}:
            stack.enter_context(_no_autocast(kind))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(np.errstate(divide="warn", over="warn", invalid="warn", under="ignore"))
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(default)
            np.random.set_state(of_numpy)
            random.setstate(of_python)


@contextmanager
def _no_autocast(kind: str) -> Iterator[None]:
    """Switch autocast off for a kind of device.

    `torch.autocast(enabled=False)` would count as the outermost context, and torch forgets the
    copies of weights in half precision only where that ends: a training inside it would compute
    with the weights of its first step. Inside a caller's context they are not kept at all.
    """
    import torch

    enabled, kept = torch.is_autocast_enabled(kind), torch.is_autocast_cache_enabled()
    inside = torch.autocast_increment_nesting() > 1
    torch.autocast_decrement_nesting()
    torch.set_autocast_enabled(kind, False)
    torch.set_autocast_cache_enabled(kept and not inside)
    try:
        yield
    finally:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_cache_enabled(kept)
